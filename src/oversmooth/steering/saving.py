"""Steered models on disk: safetensors with the methods' settings in their metadata or in config.json."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain, parse_json, read_json, whole_file, whole_folder
from oversmooth.safety.signals import delay_signals
from oversmooth.safety.typed import typed
from oversmooth.steering.apply import MARKER, put_on, take_off, write_config
from oversmooth.steering.layer_names import chosen_layers
from oversmooth.steering.methods.registry import method_from
from oversmooth.steering.record import Steering, steering_of

KEY = "oversmooth"
"""Of the settings, in a safetensors file's metadata and in a configuration."""
STOCK, STEERED = "model", "steered"
"""How the names of weight files begin. transformers looks only for the first, and would open a steered checkpoint as
the unsteered model; for the second it reports that there are no weights.
"""
WEIGHTS = (f"{STEERED}.safetensors", f"{STEERED}.safetensors.index.json")


@dataclasses.dataclass
class Saved:
    """The settings in a file, from `Steering.settings`."""

    methods: list[dict[str, Any]]
    layers: list[int]
    stack: str
    heads: int | None = None
    version: int = 1


def save_steered(model: nn.Module, path: str | Path) -> None:
    """Save a steered model with its methods' settings; `load_steered` reads it back.

    Args:
        model: steered.
        path: NAME.safetensors; or, for a Hugging Face model, a directory, which is written as save_pretrained does but
            with the weights in steered.safetensors, which only this package opens.

    Raises:
        InputError: the model is not steered, or has no configuration to go into a directory.
    """
    inside, path = unwrapped(check_is_module(model)), arguments.path(path)
    steering = steering_of(inside)
    if steering is None:
        raise InputError(f"this {type(inside).__name__} is not steered; save it as any other model")
    if path.suffix != ".safetensors":
        save = getattr(inside, "save_pretrained", None)
        if save is None:
            raise InputError(f"{path} is no file name and this model is not Hugging Face's; give NAME.safetensors")
        write_config(inside, steering.settings())
        with whole_folder(path) as temporary:
            save(temporary)
            rename_weights(temporary)
        return
    from safetensors.torch import save_file

    arrays, aliases = _distinct(inside.state_dict())
    metadata = {"format": "pt", KEY: json.dumps(steering.settings()), "aliases": json.dumps(aliases)}
    with whole_file(path) as temporary:
        save_file(arrays, temporary, metadata)


def rename_weights(folder: Path) -> None:
    """Give the weights that save_pretrained or timm wrote the name of steered ones."""
    for file in sorted(folder.glob(f"{STOCK}[.-]*safetensors*")):
        renamed = folder / (STEERED + file.name.removeprefix(STOCK))
        if file.name.endswith(".index.json"):
            index = read_json(file, "save the model again")
            shards = index["weight_map"]
            index["weight_map"] = {name: STEERED + shard.removeprefix(STOCK) for name, shard in shards.items()}
            file.write_text(json.dumps(index, indent=2), encoding="utf-8")
        file.rename(renamed)


def load_into(model: nn.Module, path: Path) -> nn.Module:
    """Load a file that `save_steered` wrote into the stock model it belongs to, in place."""
    inside = unwrapped(check_is_module(model))
    if steering_of(inside) is not None:
        raise InputError(f"the model for {path} is already steered; give a stock one")
    arrays, metadata = read_file(path)
    if KEY not in metadata:
        raise InputError(f"{path} has no settings of a steered model in its metadata; load it as any other")
    restore_into(inside, read_settings(metadata[KEY], path), arrays, path)
    return model


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All arrays of a safetensors file, aliases included, and its metadata."""
    from safetensors import SafetensorError, safe_open

    check_plain(path, "give a file that save_steered wrote")
    try:
        with delay_signals(), safe_open(path, framework="pt") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); it may be cut off: write it again") from error
    for alias, name in read_settings(metadata.get("aliases", "{}"), path).items():
        if not isinstance(name, str) or name not in arrays:
            raise InputError(f"{path}: {alias} stands for {name!r}, which is not in it; it is damaged: write it again")
        arrays[alias] = arrays[name]
    return arrays, metadata


def restore_into(model: nn.Module, settings: dict[str, Any], arrays: dict[str, Tensor], path: Path) -> None:
    """Steer a stock model by its settings and load its parameters; it is left as it was if they do not fit."""
    steering = restore_structure(model, settings)
    expected = model.state_dict()
    if MARKER in expected:
        arrays = {MARKER: expected[MARKER], **arrays}  # files of earlier versions do not have it
    wrong = [n for n in expected if n not in arrays or arrays[n].shape != expected[n].shape]
    wrong += [name for name in arrays if name not in expected]
    if wrong:
        take_off(model, steering)
        raise InputError(f"{path} is of another model: {wrong[0]} does not fit; give the model it was saved from")
    model.load_state_dict(arrays)


def restore_structure(model: nn.Module, settings: dict[str, Any]) -> Steering:
    """Steer a stock model by its settings; its parameters are loaded afterwards."""
    try:
        saved: Saved = typed(Saved, settings)
    except ValueError as error:
        raise InputError(
            f"the settings of the steered model cannot be read ({reason(error)}); they are damaged: save it again"
        ) from error
    try:
        anatomy = locate(model, stack=saved.stack, heads=saved.heads)
    except InputError:
        anatomy = locate(model, heads=saved.heads)
        if not anatomy.alone:  # a single stack may have another name, as a ViT's differs by transformers' version
            raise
    methods, layers = list(map(method_from, saved.methods)), chosen_layers(saved.layers, anatomy)
    return put_on(model, Steering(model, methods, layers, saved.heads, anatomy, restored=True))


def steered_class(cls: Any, settings: dict[str, Any]) -> Any:
    """A Hugging Face class whose models are steered as they are made, so that from_pretrained finds every parameter."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, *args, **kwargs)
        restore_structure(self, settings)

    return type(cls.__name__, (cls,), {"__init__": init, "__module__": cls.__module__})


def read_settings(text: str, path: Path) -> dict[str, Any]:
    """JSON from a file's metadata."""
    remedy = "it is damaged: write it again"
    settings = parse_json(text, f"{path}: the settings in its metadata cannot be read", remedy)
    if not isinstance(settings, dict):
        raise InputError(f"{path}: the settings in its metadata are {arguments.kind(settings)}, no object; {remedy}")
    return settings


def _distinct(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each array once, as safetensors needs it, and which other names share it."""
    arrays: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name, value in state.items():
        key = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)  # a transpose is another array
        if value.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            arrays[name] = value.detach().clone().contiguous()
    return arrays, aliases
