"""Models that `oversmooth train` wrote, of every task: the library finds it by the entry point `oversmooth.loaders`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oversmooth.anatomy.steered import steered_as
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.models.loaded import Loaded, LoadRequest
from oversmooth.models.trained_file import read_metadata, trained_file
from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tasks.imagenet.recipe import Recipe as ImagenetRecipe
from oversmooth_papers.tasks.images.recipe import Recipe
from oversmooth_papers.tasks.language.recipe import Recipe as LanguageRecipe
from oversmooth_papers.tasks.language.tokens import OwnTokenizer, Tokenizer
from oversmooth_papers.tasks.registry import load_trained, untrained_model

LIBRARY = ""


def accepts(name: str) -> bool:
    return trained_file(Path(name)) is not None


def load(wanted: LoadRequest) -> Loaded:
    path = trained_file(Path(wanted.name))
    assert path is not None, "it was accepted"
    model, recipe = load_trained(path)
    name, steering = recipe.title, steered_as(model)
    since = steering is not None and steering.methods != recipe.methods()
    if wanted.random:
        seed: dict[str, Any] = {"seed": wanted.seed}
        model = untrained_model(dataclasses.replace(recipe, **seed))

    def write(changed: nn.Module, to: Path) -> None:
        save_model(changed, recipe, to, dtype=torch.float32)

    def loaded(kind: Any, **more: Any) -> Loaded:
        about = {} if wanted.random or since else {"recipe": recipe.to_dict()}
        return Loaded(model, f"{name}, steered since" if since else name, kind, about=about, write=write, **more)

    if isinstance(recipe, LanguageRecipe):
        tokenizer = read_metadata(path).get("tokenizer")
        own = None if tokenizer is None else OwnTokenizer(Tokenizer.from_text(tokenizer))
        return loaded("text", tokenizer=own, longest=recipe.shape.length)
    if isinstance(recipe, ImagenetRecipe):
        return loaded("vision", preprocessing=Preprocessing.from_timm(recipe.preprocessing(), name), argument="images")
    if not isinstance(recipe, Recipe):
        raise InputError(f"{path} was trained for {recipe.task_name}; give a model of images or of language")
    side = (recipe.shape.image, recipe.shape.image)
    preprocessing = Preprocessing(size=side, mean=recipe.mean, std=recipe.std)
    return loaded("vision", preprocessing=preprocessing, argument="images")
