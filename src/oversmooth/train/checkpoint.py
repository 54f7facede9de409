"""A run on disk, whole at every moment: one safetensors file, replaced by the next in one rename.

It holds the model, AdamW's moments, the number of the step (which is the schedule's position), the generators' states
and how long the logs were. ViT-Ti's takes 65 MB.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oversmooth.errors import InputError
from oversmooth.train.recipe import Recipe
from oversmooth.train.saved import write_arrays

NAME = "checkpoint.safetensors"
_VERSION = 1
_ALWAYS = ("position", "losses", "failed", "generator.order", "generator.augment", "generator.torch")


def save(folder: Path, recipe: Recipe, arrays: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Replace the run's checkpoint; the old one stays until the new one is whole, and if it cannot be written."""
    metadata = {"version": str(_VERSION), "recipe": json.dumps(recipe.to_dict()), "facts": json.dumps(facts)}
    write_arrays(folder / NAME, {**arrays, "generator.torch": torch.get_rng_state()}, metadata)


def load(folder: Path, recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The arrays and facts of the run in this folder, if it has one; one of another recipe is refused."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
        found = Recipe.from_json(metadata["recipe"], f"the recipe of {path}")
        facts = dict(json.loads(metadata["facts"]))
        _ = [arrays[name] for name in _ALWAYS]
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no checkpoint of ours or is damaged ({error}); remove it to begin anew") from error
    if (differs := found.difference(recipe)) is not None:
        raise InputError(
            f"{path} is of another recipe: {differs}; give the same settings to resume it, or another directory"
        )
    return arrays, facts


def tidy(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for name in (Path(NAME).stem, "model"):
        for left in folder.glob(f".{name}-*.safetensors"):
            left.unlink(missing_ok=True)


def recipe_of(folder: Path) -> Recipe | None:
    """The recipe of the run in this folder, if it has a checkpoint."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return Recipe.from_json((file.metadata() or {})["recipe"], f"the recipe of {path}")
    except (SafetensorError, OSError, KeyError) as error:
        raise InputError(f"{path} is no checkpoint of ours or is damaged ({error}); remove it to begin anew") from error


def how_far(folder: Path) -> str:
    """In words, for a folder with a checkpoint."""
    recipe = recipe_of(folder)
    with safe_open(folder / NAME, framework="pt") as file:
        done, steps = int(file.get_tensor("position")), file.get_slice("losses").get_shape()[0]
    return f"epoch {done // steps} of {recipe.total_epochs}" if recipe else ""
