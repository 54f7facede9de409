"""A small text and a small language model for the tests of training: what a thread trains in a second."""

from dataclasses import replace

import torch
from support.runs import train_task

from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.language.recipe import Recipe, Shape
from oversmooth_papers.tasks.language.task import LanguageTask, model_of
from oversmooth_papers.tasks.language.tokens import Tokenizer

SHAPE = Shape(vocabulary=256, length=12, width=16, depth=2, heads=2, hidden=24, norm="pre", dropout=0.2)
RECIPE = Recipe(data="counting", tokenizer="bytes", shape=SHAPE, epochs=3, warmup=4, lr=3e-3, batch=8)


def counting(letters: int = 700, masked: bool = False) -> Text:
    """Letters that follow each other by a rule, with some noise: a model can learn it."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.where(torch.rand(letters, generator=generator) < 0.8, 1, 3)
    tokens = (97 + steps.cumsum(0) % 26).int()
    train, valid, test = tokens[:-160], tokens[-160:-60], tokens[-60:]
    return Text(train, valid, test, Tokenizer("bytes", masked), "counting")


def masked_recipe(**changes: object) -> Recipe:
    return replace(RECIPE, shape=replace(SHAPE, causal=False, vocabulary=257), **changes)  # type: ignore[arg-type]


def task_of(recipe: Recipe, text: Text | None = None) -> LanguageTask:
    return LanguageTask(recipe, text or counting(masked=not recipe.shape.causal))


CPU = torch.device("cpu")


def step_of(recipe, device=CPU, ranks=None, **settings):
    """The engine's step, and its model on the device."""
    return Step(task_of(recipe), model_of(recipe).to(device), device, ranks, **settings)


def train(recipe, **settings):
    return train_task(task_of(recipe), **settings)
