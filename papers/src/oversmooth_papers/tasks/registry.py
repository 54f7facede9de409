"""From a recipe to its data, its task and its models, and from a file to what was trained, whatever the task is.

A new task is a folder in `tasks`, and one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.saved_model import load_model
from oversmooth_papers.engine.task import Task
from oversmooth_papers.tasks.common import DataTask
from oversmooth_papers.tasks.glue import recipe as glue
from oversmooth_papers.tasks.glue.data import load_glue
from oversmooth_papers.tasks.glue.task import GlueTask
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
from oversmooth_papers.tasks.language.task import LanguageTask
from oversmooth_papers.tasks.segmentation import recipe as segmentation
from oversmooth_papers.tasks.segmentation.data import load_splits as load_labelled
from oversmooth_papers.tasks.segmentation.task import SegmentationTask


class _Entry(NamedTuple):
    load: Callable[[Any, Any], Any]
    """A recipe's data, by name or from where they lie."""
    task: Callable[[Any, Any], Task]
    plain: Callable[[Any], nn.Module]
    """The model unsteered, with any weights."""
    untrained: Callable[[Any], nn.Module]
    """The model as training begins."""


def _entry(load: Callable[[Any, Any], Any], task: type[DataTask[Any, Any]]) -> _Entry:
    return _Entry(load, task, task.plain_model_of, task.model_of)


_TASKS: dict[type[BaseRecipe], _Entry] = {
    images.Recipe: _Entry(
        lambda _recipe, what: load_images(what), ImagesTask, lambda recipe: ViT(recipe.shape), images_build.model_of
    ),
    language.Recipe: _entry(
        lambda recipe, what: load_text(what, recipe.tokenizer, recipe.vocabulary, masked=not recipe.shape.causal),
        LanguageTask,
    ),
    segmentation.Recipe: _entry(lambda _recipe, what: load_labelled(what), SegmentationTask),
    imagenet.Recipe: _entry(lambda _recipe, what: load_pictures(what), ImagenetTask),
    glue.Recipe: _entry(lambda recipe, pretrained: load_glue(recipe.data, Path(pretrained)), GlueTask),
}


def load_data(recipe: BaseRecipe, what: str | Path) -> Any:
    """What a recipe's task trains on, by name or from where it lies."""
    return _TASKS[type(recipe)].load(recipe, what)


def fitted(recipe: Any, data: Any) -> Any:
    """The recipe for these data: sizes and the like are theirs."""
    return recipe.fitted(data.train if isinstance(recipe, images.Recipe) else data)


def check_fits(recipe: Any, data: Any) -> None:
    """Refuse data of another name or size than the recipe's."""
    recipe.check_fits(data.train if isinstance(recipe, images.Recipe) else data)


def task_of(recipe: BaseRecipe, data: Any) -> Task:
    """The recipe on these data, which are refused where they do not fit."""
    return _TASKS[type(recipe)].task(recipe, data)


def plain_model(recipe: BaseRecipe) -> nn.Module:
    """Unsteered, on the CPU, with any weights."""
    return _TASKS[type(recipe)].plain(recipe)


def untrained_model(recipe: BaseRecipe) -> nn.Module:
    """As training begins."""
    return _TASKS[type(recipe)].untrained(recipe)


def load_trained(path: str | Path) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe."""
    return load_model(path, plain_model)
