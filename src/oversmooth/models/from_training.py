"""Models that `oversmooth train` wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from safetensors import safe_open

from oversmooth.anatomy.steered import steered_as
from oversmooth.inputs import Preprocessing
from oversmooth.models.loaded import Loaded, Wanted
from oversmooth.safety.errors import InputError
from oversmooth.train.model_file import trained_file

LIBRARY = ""


def accepts(name: str) -> bool:
    return trained_file(Path(name)) is not None


def load(wanted: Wanted) -> Loaded:
    from oversmooth.models.own_tokenizer import OwnTokenizer
    from oversmooth.train.tasks.images.recipe import Recipe
    from oversmooth.train.tasks.language.recipe import Recipe as LanguageRecipe
    from oversmooth.train.tasks.language.tokens import Tokenizer
    from oversmooth.train.tasks.registry import load_trained, untrained_model

    path = trained_file(Path(wanted.name))
    assert path is not None, "it was accepted"
    model, recipe = load_trained(path)
    name, steering = recipe.title, steered_as(model)
    if steering is not None and steering.methods != recipe.methods():
        name += ", steered since"
    if wanted.random:
        seed: dict[str, Any] = {"seed": wanted.seed}
        model = untrained_model(dataclasses.replace(recipe, **seed))
    if isinstance(recipe, LanguageRecipe):
        with safe_open(path, framework="pt") as opened:
            tokenizer = (opened.metadata() or {}).get("tokenizer")
        own = None if tokenizer is None else OwnTokenizer(Tokenizer.from_text(tokenizer))
        return Loaded(model, name, "text", tokenizer=own, longest=recipe.shape.length, recipe=recipe)
    if not isinstance(recipe, Recipe):
        raise InputError(f"{path} was trained for {recipe.task_name}; give a model of images or of language")
    side = (recipe.shape.image, recipe.shape.image)
    preprocessing = Preprocessing(size=side, mean=recipe.mean, std=recipe.std)
    return Loaded(model, name, "vision", preprocessing=preprocessing, argument="images", recipe=recipe)
