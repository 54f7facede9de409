"""Trained models on disk: safetensors with the recipe, and the steering's settings where it is steered.

A steered file follows the conventions of `steering.save_steered`: `oversmooth.load_steered(path, model)` reads it into
the plain model of its recipe. Where parts of a model were steered each for itself, as an encoder and a decoder are, the
settings of each stand by its name, and `load_model` alone reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from oversmooth.anatomy.live import unwrapped
from oversmooth.anatomy.steered import STEERED
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import parse_json, whole_file
from oversmooth.safety.typed import typed
from oversmooth.steering.record import steering_of
from oversmooth.steering.saving import KEY, read_file, read_settings, restore_into, restore_structure
from oversmooth.train.engine.recipe import BaseRecipe, read_recipe
from oversmooth.train.model_file import RECIPE, trained_file

PARTS = "oversmooth_parts"
"""Of the settings of parts that were steered each for itself, in the file's metadata."""


def save_model(
    model: nn.Module,
    recipe: BaseRecipe,
    path: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    notes: dict[str, Any] | None = None,
    more: dict[str, str] | None = None,
) -> None:
    """All weights, ViT-Ti's 5.4 million in 11 MB.

    notes: what else to write beside the recipe, such as its accuracy. more: further texts by name, such as a tokenizer.
    """
    inside = unwrapped(model)
    arrays = {name: value.detach().to("cpu", dtype).contiguous() for name, value in inside.state_dict().items()}
    metadata = {**(more or {}), "format": "pt", RECIPE: json.dumps(recipe.to_dict()), "aliases": "{}"}
    steered = {name: m.__dict__[STEERED].settings() for name, m in inside.named_modules() if STEERED in m.__dict__}
    if "" in steered:
        metadata[KEY] = json.dumps(steered[""])
    elif steered:
        metadata[PARTS] = json.dumps(steered)
    if notes:
        metadata["notes"] = json.dumps(notes)
    write_arrays(path, arrays, metadata)


def stored_as(model: nn.Module) -> torch.dtype:
    """bf16; float32 where weights are computed from others: rounding Θ would move H by up to 1 %, and who folds it can
    round the product alone.
    """
    steering = steering_of(unwrapped(model))
    computed = steering is not None and any(method.place == "weights" for method in steering.methods)
    return torch.float32 if computed else torch.bfloat16


def write_arrays(path: Path, arrays: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, on the disk whole or not at all; a full disk is told in one sentence."""
    before = "what was there before is untouched" if path.is_file() else "nothing was left there"
    try:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            # Not safetensors' own writer, whose error for a full disk has no number.
            file.write(safetensors.torch.save(arrays, metadata))
    except InputError as error:
        cause = error.__cause__
        why = getattr(cause, "strerror", None) or str(cause or error)
        raise InputError(
            f"{path} cannot be written ({why}); make room on the disk or name another directory: {before}"
        ) from cause


def load_model(path: str | Path, build: Callable[[BaseRecipe], nn.Module]) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe.

    build: the plain model of a recipe, with any weights.
    """
    path = Path(path)
    arrays, metadata = read_file(path)
    if RECIPE not in metadata:
        raise InputError(f"{path} has no recipe in its metadata; give a model that oversmooth train wrote")
    recipe = _recipe(metadata[RECIPE], path)
    held, wanted = sum(value.numel() for value in arrays.values()), recipe.parameters
    if wanted > 2 * held:  # before they are made; steering may store a weight in another form
        raise InputError(f"{path} has {held:,} weights and its recipe is of {wanted:,}; it is damaged: train it again")
    model = build(recipe)
    arrays = {name: value.float() for name, value in arrays.items()}
    if KEY in metadata:
        restore_into(model, read_settings(metadata[KEY], path), arrays, path)
    else:
        _steer_parts(model, read_settings(metadata.get(PARTS, "{}"), path), path)
        expected = model.state_dict()
        wrong = [
            n
            for n in {**expected, **arrays}
            if n not in arrays or n not in expected or arrays[n].shape != expected[n].shape
        ]
        if wrong:
            raise InputError(f"{path} is of another model: {wrong[0]} does not fit its recipe; train it again")
        model.load_state_dict(arrays)
    return model.eval(), recipe


def _steer_parts(model: nn.Module, settings: dict[str, Any], path: Path) -> None:
    modules = dict(model.named_modules())
    for name, part in settings.items():
        if name not in modules or not isinstance(part, dict):
            raise InputError(f"{path}: {name!r} was steered, and its model has no such part; train it again")
        restore_structure(modules[name], part)


def _recipe(text: str, path: Path) -> BaseRecipe:
    where = f"the recipe of {path}"
    return read_recipe(parse_json(text, f"{where} is no JSON", "write it again with Recipe.to_json"), where)


def recipe_of(path: Path) -> BaseRecipe | None:
    """Of a model that `save_model` wrote, without reading its arrays; None for any other file."""
    file = trained_file(path)
    if file is None:
        return None
    with safe_open(file, framework="pt") as opened:
        return _recipe(opened.metadata()[RECIPE], file)


def notes_of(path: str | Path) -> dict[str, Any]:
    """What was written beside the recipe."""
    with safe_open(path, framework="pt") as opened:
        notes = read_settings((opened.metadata() or {}).get("notes", "{}"), Path(path))
    try:
        return typed(dict[str, float | None], notes)
    except ValueError as error:
        raise InputError(f"{path}: the notes in its metadata are damaged ({error}); train it again") from error
