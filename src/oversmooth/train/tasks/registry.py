"""From a recipe to its task, and from a file to the model that was trained, whatever the task is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from oversmooth.train.engine.recipe import BaseRecipe
from oversmooth.train.engine.saved_model import load_model
from oversmooth.train.engine.task import Task
from oversmooth.train.tasks.images import build as images
from oversmooth.train.tasks.images.data.splits import load_splits
from oversmooth.train.tasks.images.recipe import Recipe as ImagesRecipe
from oversmooth.train.tasks.images.task import ImagesTask
from oversmooth.train.tasks.images.vit import ViT
from oversmooth.train.tasks.language import task as language
from oversmooth.train.tasks.language.data import load_text
from oversmooth.train.tasks.language.model import LanguageModel
from oversmooth.train.tasks.language.recipe import Recipe as LanguageRecipe


def load_data(recipe: BaseRecipe, what: str | Path) -> Any:
    """What a recipe's task trains on, by name or from where it lies."""
    if isinstance(recipe, LanguageRecipe):
        return load_text(what, recipe.tokenizer, recipe.vocabulary, masked=not recipe.shape.causal)
    return load_splits(what)


def fitted(recipe: BaseRecipe, data: Any) -> BaseRecipe:
    """The recipe for these data: sizes and the like are theirs."""
    if isinstance(recipe, LanguageRecipe):
        return recipe.fitted(data)
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return recipe.fitted(data.train)


def check_fits(recipe: BaseRecipe, data: Any) -> None:
    """Refuse data of another name or size than the recipe's."""
    if isinstance(recipe, LanguageRecipe):
        recipe.check_fits(data)
    elif isinstance(recipe, ImagesRecipe):
        recipe.check_fits(data.train)


def task_of(recipe: BaseRecipe, data: Any) -> Task:
    """The recipe on these data, which are refused where they do not fit."""
    if isinstance(recipe, LanguageRecipe):
        return language.LanguageTask(recipe, data)
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return ImagesTask(recipe, data)


def plain_model(recipe: BaseRecipe) -> nn.Module:
    """Unsteered, on the CPU, with any weights."""
    if isinstance(recipe, LanguageRecipe):
        return LanguageModel(recipe.shape)
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return ViT(recipe.shape)


def untrained_model(recipe: BaseRecipe) -> nn.Module:
    """As training begins."""
    if isinstance(recipe, LanguageRecipe):
        return language.model_of(recipe)
    assert isinstance(recipe, ImagesRecipe), f"no task takes {type(recipe).__name__}"
    return images.model_of(recipe)


def load_trained(path: str | Path) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe."""
    return load_model(path, plain_model)
