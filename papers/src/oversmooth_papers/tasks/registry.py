"""From a recipe to its data, its task and its models, and from a file to what was trained, whatever the task is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.saved_model import load_model
from oversmooth_papers.engine.task import Task
from oversmooth_papers.tasks.glue import recipe as glue
from oversmooth_papers.tasks.glue.data import load_glue
from oversmooth_papers.tasks.glue.task import GlueTask
from oversmooth_papers.tasks.glue.task import plain_model_of as plain_glue
from oversmooth_papers.tasks.imagenet import model as imagenet_model
from oversmooth_papers.tasks.imagenet import recipe as imagenet
from oversmooth_papers.tasks.imagenet.data import load_splits as load_pictures
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.images import build as images_build
from oversmooth_papers.tasks.images import recipe as images
from oversmooth_papers.tasks.images.data import load_splits as load_images
from oversmooth_papers.tasks.images.task import ImagesTask
from oversmooth_papers.tasks.images.vit import ViT
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.language.data import load_text
from oversmooth_papers.tasks.language.model import LanguageModel
from oversmooth_papers.tasks.language.task import LanguageTask
from oversmooth_papers.tasks.language.task import model_of as language_model
from oversmooth_papers.tasks.segmentation import build as segmentation_build
from oversmooth_papers.tasks.segmentation import recipe as segmentation
from oversmooth_papers.tasks.segmentation.data import load_splits as load_labelled
from oversmooth_papers.tasks.segmentation.task import SegmentationTask


@dataclass(frozen=True)
class _Parts:
    """What belongs to a kind of recipe, each a function of one."""

    load: Callable[[Any, str | Path], Any]
    """Its data."""
    fitted: Callable[[Any, Any], BaseRecipe]
    check: Callable[[Any, Any], None]
    task: Callable[[Any, Any], Task]
    plain: Callable[[Any], nn.Module]
    model: Callable[[Any], nn.Module]


_TASKS: dict[type[BaseRecipe], _Parts] = {
    images.Recipe: _Parts(
        load=lambda _recipe, what: load_images(what),
        fitted=lambda recipe, splits: recipe.fitted(splits.train),
        check=lambda recipe, splits: recipe.check_fits(splits.train),
        task=ImagesTask,
        plain=lambda recipe: ViT(recipe.shape),
        model=images_build.model_of,
    ),
    language.Recipe: _Parts(
        load=lambda r, what: load_text(what, r.tokenizer, r.vocabulary, masked=not r.shape.causal),
        fitted=language.Recipe.fitted,
        check=language.Recipe.check_fits,
        task=LanguageTask,
        plain=lambda recipe: LanguageModel(recipe.shape),
        model=language_model,
    ),
    segmentation.Recipe: _Parts(
        load=lambda _recipe, what: load_labelled(what),
        fitted=segmentation.Recipe.fitted,
        check=segmentation.Recipe.check_fits,
        task=SegmentationTask,
        plain=segmentation_build.plain_model_of,
        model=segmentation_build.model_of,
    ),
    imagenet.Recipe: _Parts(
        load=lambda _recipe, what: load_pictures(what),
        fitted=imagenet.Recipe.fitted,
        check=imagenet.Recipe.check_fits,
        task=ImagenetTask,
        plain=imagenet_model.plain_model_of,
        model=imagenet_model.model_of,
    ),
    glue.Recipe: _Parts(
        load=lambda recipe, pretrained: load_glue(recipe.data, Path(pretrained)),
        fitted=glue.Recipe.fitted,
        check=glue.Recipe.check_fits,
        task=GlueTask,
        plain=plain_glue,
        model=plain_glue,
    ),
}


def load_data(recipe: BaseRecipe, what: str | Path) -> Any:
    """What a recipe's task trains on, by name or from where it lies."""
    return _TASKS[type(recipe)].load(recipe, what)


def fitted(recipe: BaseRecipe, data: Any) -> BaseRecipe:
    """The recipe for these data: sizes and the like are theirs."""
    return _TASKS[type(recipe)].fitted(recipe, data)


def check_fits(recipe: BaseRecipe, data: Any) -> None:
    """Refuse data of another name or size than the recipe's."""
    _TASKS[type(recipe)].check(recipe, data)


def task_of(recipe: BaseRecipe, data: Any) -> Task:
    """The recipe on these data, which are refused where they do not fit."""
    return _TASKS[type(recipe)].task(recipe, data)


def plain_model(recipe: BaseRecipe) -> nn.Module:
    """Unsteered, on the CPU, with any weights."""
    return _TASKS[type(recipe)].plain(recipe)


def untrained_model(recipe: BaseRecipe) -> nn.Module:
    """As training begins."""
    return _TASKS[type(recipe)].model(recipe)


def load_trained(path: str | Path) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe."""
    return load_model(path, plain_model)
