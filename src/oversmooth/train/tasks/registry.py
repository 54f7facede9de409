"""From a recipe to its task, and from a file to the model that was trained, whatever the task is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from oversmooth.train.engine.recipe import BaseRecipe
from oversmooth.train.engine.saved_model import load_model
from oversmooth.train.engine.task import Task
from oversmooth.train.tasks.images.build import model_of
from oversmooth.train.tasks.images.recipe import Recipe as ImagesRecipe
from oversmooth.train.tasks.images.task import ImagesTask
from oversmooth.train.tasks.images.vit import ViT


def task_of(recipe: BaseRecipe, data: Any) -> Task:
    """The recipe on these data, which are refused where they do not fit."""
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return ImagesTask(recipe, data)


def plain_model(recipe: BaseRecipe) -> nn.Module:
    """Unsteered, on the CPU, with any weights."""
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return ViT(recipe.shape)


def untrained_model(recipe: BaseRecipe) -> nn.Module:
    """As training begins."""
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return model_of(recipe)


def load_trained(path: str | Path) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe."""
    return load_model(path, plain_model)
