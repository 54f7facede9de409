"""From a recipe to its parts: the model, steered as the variant says, and the augmentation."""

from __future__ import annotations

import torch
from torch import nn

from oversmooth.steering import steer
from oversmooth.train.tasks.images.augment import Augment
from oversmooth.train.tasks.images.recipe import Recipe
from oversmooth.train.tasks.images.vit import Attention, ViT


def model_of(recipe: Recipe) -> ViT:
    """On the CPU, with the weights that the seed gives on any machine; the caller's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = ViT(recipe.shape)
        if recipe.initialisation == "torch":
            for module in model.modules():
                if isinstance(module, nn.Linear):
                    module.reset_parameters()
        methods = recipe.methods()
        if methods:
            steer(model, methods)
        if not recipe.output_bias and recipe.variant in ("smooth", "sharpen"):
            for module in model.modules():
                if isinstance(module, Attention):  # zero, and never learned: the files keep their layout
                    nn.init.zeros_(module.proj.bias).requires_grad_(False)
    return model


def augment_of(recipe: Recipe) -> Augment:
    return Augment(
        classes=recipe.shape.classes,
        size=recipe.shape.image,
        padding=recipe.padding,
        flip=recipe.flip,
        rand_augment=recipe.rand_augment,
        mixup=recipe.mixup,
        cutmix=recipe.cutmix,
        smoothing=recipe.smoothing,
        mean=recipe.mean,
        std=recipe.std,
    )
