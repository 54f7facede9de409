"""The file that `oversmooth train` writes: safetensors with the recipe and the steering settings in its metadata.

A steered file follows the conventions of `steering.save_steered`: `oversmooth.load_steered(path, model)` reads it into
the unmodified model of its recipe. If modules were steered separately, such as an encoder and a decoder, the settings
are stored by module name, and only `TrainedFile` reads them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from oversmooth.anatomy.live import unwrapped
from oversmooth.anatomy.steered import STEERED
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import parse_json, whole_file
from oversmooth.safety.signals import delay_signals
from oversmooth.steering.saving import KEY, read_file, read_settings, restore_into, restore_structure

RECIPE = "recipe"  # key of the recipe in the metadata
PARTS = "oversmooth_parts"  # key of the settings of modules that were steered separately


def trained_file(path: Path) -> Path | None:
    """The file that `save_trained` wrote: this one, or the one in this run's folder; None otherwise."""
    file = path / "model.safetensors" if path.is_dir() and not (path / "config.json").is_file() else path
    if file.suffix != ".safetensors" or not file.is_file():
        return None
    try:
        with delay_signals(), safe_open(file, framework="pt") as opened:
            return file if RECIPE in (opened.metadata() or {}) else None
    except (SafetensorError, OSError):
        return None  # reading it reports what is wrong


def read_metadata(path: Path) -> dict[str, str]:
    """Without the arrays."""
    with safe_open(path, framework="pt") as opened:
        return dict(opened.metadata() or {})


def recipe_in(metadata: dict[str, str], path: Path) -> Any:
    """The recipe as JSON has it."""
    return parse_json(metadata[RECIPE], f"the recipe of {path} is not JSON", "write it again with Recipe.to_json")


@dataclass(frozen=True)
class TrainedFile:
    """The content of such a file."""

    path: Path
    arrays: dict[str, Tensor]
    metadata: dict[str, str]
    recipe: Any  # as JSON has it

    @classmethod
    def read(cls, path: Path) -> TrainedFile:
        arrays, metadata = read_file(path)
        if RECIPE not in metadata:
            raise InputError(f"{path} has no recipe in its metadata; give a model written by oversmooth train")
        return cls(path, arrays, metadata, recipe_in(metadata, path))

    def check_size(self, wanted: int) -> None:
        """Refuse a recipe with far more weights than the file, before they are allocated."""
        held = sum(value.numel() for value in self.arrays.values())
        if wanted > 2 * held:  # steering may store a weight in another form
            raise InputError(f"{self.path} has {held:,} weights, but its recipe needs {wanted:,}; train it again")

    def into(self, model: nn.Module) -> nn.Module:
        """The model of the recipe with these weights and its steering, in float32 and eval mode."""
        arrays = {name: value.float() for name, value in self.arrays.items()}
        if KEY in self.metadata:
            restore_into(model, read_settings(self.metadata[KEY], self.path), arrays, self.path)
            return model.eval()
        modules = dict(model.named_modules())
        for name, part in read_settings(self.metadata.get(PARTS, "{}"), self.path).items():
            if name not in modules or not isinstance(part, dict):
                raise InputError(f"{self.path}: {name!r} was steered, but the model has no such module; train it again")
            restore_structure(modules[name], part)
        expected = model.state_dict()
        for name in {**expected, **arrays}:
            if name not in arrays or name not in expected or arrays[name].shape != expected[name].shape:
                raise InputError(f"{self.path} does not fit its recipe at {name}; train it again")
        model.load_state_dict(arrays)
        return model.eval()


def save_trained(
    model: nn.Module, recipe: str, path: Path, *, dtype: torch.dtype, more: dict[str, str] | None = None
) -> None:
    """Save all weights of a model with its recipe as JSON; ViT-Ti's 5.4 million take 11 MB in bf16.

    more: further texts by name, such as a tokenizer.
    """
    inside = unwrapped(model)
    arrays = {name: value.detach().to("cpu", dtype).contiguous() for name, value in inside.state_dict().items()}
    metadata = {**(more or {}), "format": "pt", RECIPE: recipe, "aliases": "{}"}
    steered = {name: m.__dict__[STEERED].settings() for name, m in inside.named_modules() if STEERED in m.__dict__}
    if "" in steered:
        metadata[KEY] = json.dumps(steered[""])
    elif steered:
        metadata[PARTS] = json.dumps(steered)
    with whole_file(path) as temporary:
        # Not safetensors' own writer, whose error for a full disk has no number.
        temporary.write_bytes(safetensors.torch.save(arrays, metadata))
