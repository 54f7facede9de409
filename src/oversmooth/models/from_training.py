"""Models that `oversmooth train` wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from oversmooth.anatomy.steered import steered_as
from oversmooth.inputs import Preprocessing
from oversmooth.models.loaded import Loaded, Wanted
from oversmooth.train.model_file import trained_file

LIBRARY = ""


def accepts(name: str) -> bool:
    return trained_file(Path(name)) is not None


def load(wanted: Wanted) -> Loaded:
    from oversmooth.train.tasks.images.build import model_of
    from oversmooth.train.tasks.images.saved_model import load_model

    path = trained_file(Path(wanted.name))
    assert path is not None, "it was accepted"
    model, recipe = load_model(path)
    name, steering = recipe.title, steered_as(model)
    if steering is not None and steering.methods != recipe.methods():
        name += ", steered since"
    if wanted.random:
        model = model_of(dataclasses.replace(recipe, seed=wanted.seed))
    side = (recipe.shape.image, recipe.shape.image)
    preprocessing = Preprocessing(size=side, mean=recipe.mean, std=recipe.std)
    return Loaded(model, name, "vision", preprocessing=preprocessing, argument="images", recipe=recipe)
