"""Trained models on disk, with their recipes: `oversmooth.models.trained_file` for recipes of the tasks here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oversmooth.anatomy.live import unwrapped
from oversmooth.models import trained_file as files
from oversmooth.safety.errors import InputError
from oversmooth.safety.typed import typed
from oversmooth.steering.record import steering_of
from oversmooth.steering.saving import read_settings
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe


def save_model(
    model: nn.Module,
    recipe: BaseRecipe,
    path: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    notes: dict[str, Any] | None = None,
    more: dict[str, str] | None = None,
) -> None:
    """notes: what else to write beside the recipe, such as its accuracy. more: further texts by name."""
    texts = {**(more or {}), **({"notes": json.dumps(notes)} if notes else {})}
    files.save_trained(model, json.dumps(recipe.to_dict()), path, dtype=dtype, more=texts)


def stored_as(model: nn.Module) -> torch.dtype:
    """bf16; float32 where weights are computed from others, as rounding Θ would move H by up to 1 %."""
    steering = steering_of(unwrapped(model))
    computed = steering is not None and any(method.place == "weights" for method in steering.methods)
    return torch.float32 if computed else torch.bfloat16


def load_model(path: str | Path, build: Callable[[Any], nn.Module]) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe.

    build: the plain model of a recipe, with any weights.
    """
    file = files.TrainedFile.read(Path(path))
    recipe = read_recipe(file.recipe, f"the recipe of {path}")
    file.check_size(recipe.parameters)
    return file.into(build(recipe)), recipe


def recipe_of(path: Path) -> BaseRecipe | None:
    """Of a model that `save_model` wrote, without reading its arrays; None for any other file."""
    if (file := files.trained_file(path)) is None:
        return None
    return read_recipe(files.recipe_in(files.read_metadata(file), file), f"the recipe of {file}")


def notes_of(path: str | Path) -> dict[str, Any]:
    notes = read_settings(files.read_metadata(Path(path)).get("notes", "{}"), Path(path))
    try:
        return typed(dict[str, float | None], notes)
    except ValueError as error:
        raise InputError(f"{path}: the notes in its metadata are damaged ({error}); train it again") from error
