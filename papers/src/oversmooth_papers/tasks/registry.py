"""From a recipe to its data, its task and its models, and from a file to what was trained, whatever the task is.

A new task is a folder in `tasks`, and one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.saved_model import load_model
from oversmooth_papers.engine.task import Task
from oversmooth_papers.tasks.glue.data import load_glue
from oversmooth_papers.tasks.glue.task import GlueTask
from oversmooth_papers.tasks.imagenet.data import load_splits as load_pictures
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.images.data import load_splits as load_images
from oversmooth_papers.tasks.images.task import ImagesTask
from oversmooth_papers.tasks.language.data import load_text
from oversmooth_papers.tasks.language.task import LanguageTask
from oversmooth_papers.tasks.segmentation.data import load_splits as load_labelled
from oversmooth_papers.tasks.segmentation.task import SegmentationTask

_TASKS: dict[str, tuple[Callable[[Any, Any], Any], type[Task]]] = {
    "images": (lambda _recipe, what: load_images(what), ImagesTask),
    "language": (
        lambda recipe, what: load_text(what, recipe.tokenizer, recipe.vocabulary, masked=not recipe.shape.causal),
        LanguageTask,
    ),
    "segmentation": (lambda _recipe, what: load_labelled(what), SegmentationTask),
    "imagenet": (lambda _recipe, what: load_pictures(what), ImagenetTask),
    "glue": (lambda recipe, pretrained: load_glue(recipe.data, Path(pretrained)), GlueTask),
}
"""By the name in its recipe, what loads a task's data, by name or from where they lie, and the task."""


def load_data(recipe: BaseRecipe, what: str | Path) -> Any:
    """What a recipe's task trains on, by name or from where it lies."""
    return _TASKS[recipe.task_name][0](recipe, what)


def task_of(recipe: BaseRecipe, data: Any) -> Task:
    """The recipe on these data, which are refused where they do not fit."""
    return _TASKS[recipe.task_name][1](recipe, data)


def plain_model(recipe: BaseRecipe) -> nn.Module:
    """Unsteered, on the CPU, with any weights."""
    return _TASKS[recipe.task_name][1].plain_model_of(recipe)


def untrained_model(recipe: BaseRecipe) -> nn.Module:
    """As training begins."""
    return _TASKS[recipe.task_name][1].model_of(recipe)


def load_trained(path: str | Path) -> tuple[nn.Module, BaseRecipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe."""
    return load_model(path, plain_model)
