"""From a recipe to its parts: the model, steered as the variant says, and the augmentation; and from a file to both."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from oversmooth.safety.errors import InputError
from oversmooth.steering import fold
from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.saved_model import load_model
from oversmooth_papers.tasks.common import begun
from oversmooth_papers.tasks.images.augment import Augment
from oversmooth_papers.tasks.images.recipe import Recipe
from oversmooth_papers.tasks.images.vit import Attention, ViT


def plain_model_of(recipe: Recipe) -> ViT:
    return ViT(recipe.shape)


def model_of(recipe: Recipe) -> ViT:
    """On the CPU, with the weights that the seed gives on any machine; the caller's random state is left alone."""

    def build() -> ViT:
        model = ViT(recipe.shape)
        for module in model.modules() if recipe.initialisation == "torch" else ():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        return model

    model = begun(recipe, build, layers=recipe.layers)
    if recipe.freed and recipe.variant != "plain":
        fold(model)
    if not recipe.output_bias and recipe.variant in ("smooth", "sharpen"):
        for module in model.modules():
            if isinstance(module, Attention):  # zero, and never learned: the files keep their layout
                nn.init.zeros_(module.proj.bias).requires_grad_(False)
    return model


augment_of = Augment
"""Crop, flip, RandAugment, Mixup or CutMix as a recipe sets them; ``.normalise`` alone for test images."""


def load_vit(path: str | Path) -> tuple[ViT, Recipe]:
    """A trained model, steered as it was, in float32 on the CPU and ready to evaluate; and its recipe."""

    def build(recipe: BaseRecipe) -> ViT:
        if not isinstance(recipe, Recipe):
            raise InputError(f"{path} was trained for {recipe.task_name}; give a model of images")
        return plain_model_of(recipe)

    model, recipe = load_model(path, build)
    assert isinstance(model, ViT)  # it was built so
    assert isinstance(recipe, Recipe)
    return model, recipe
