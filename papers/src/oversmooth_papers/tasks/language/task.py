"""Predicting tokens: the text lies on the device, and every step takes windows of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oversmooth.steering import steering_of
from oversmooth.steering.reparametrized import compute
from oversmooth.theory import asymmetry
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.task import Batch, Forward, Probe
from oversmooth_papers.tasks.common import DataTask, ShuffledFeed, begun
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.language.evaluate import Perplexity
from oversmooth_papers.tasks.language.model import LanguageModel, hide
from oversmooth_papers.tasks.language.recipe import Recipe

WATCHED = 8
"""Windows of the validation text on which smoothing is watched."""


def plain_model_of(recipe: Recipe) -> LanguageModel:
    """Unsteered, on the CPU, with random weights."""
    return LanguageModel(recipe.shape)


def model_of(recipe: Recipe) -> LanguageModel:
    """As training begins."""
    return begun(recipe, lambda: LanguageModel(recipe.shape), layers=recipe.layers)


class LanguageTask(DataTask[Recipe, Text]):
    """``loss`` is the mean cross-entropy, the score the perplexity."""

    examples_are: ClassVar[str] = "windows"

    @property
    def examples(self) -> int:
        """Windows of an epoch: one less than there are, so that any offset below a window leaves as many."""
        return max(0, (len(self.given.train) - 1) // self.recipe.shape.length - 1)

    def plain_model(self) -> LanguageModel:
        return plain_model_of(self.recipe)

    def model(self) -> LanguageModel:
        return model_of(self.recipe)

    def activations(self) -> int:
        shape = self.recipe.shape
        return self.recipe.batch * shape.length * (8 * shape.width * shape.depth + 3 * shape.vocabulary)

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> LanguageFeed:  # noqa: ARG002 (no kernels)
        return LanguageFeed(self, device, ranks)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        ids, targets, *weight = batch
        loss: Tensor = forward(ids, targets)
        return loss * weight[0] if weight else loss

    def blank(self, batch: int, device: torch.device) -> Batch:
        ids = torch.zeros(batch, self.recipe.shape.length, dtype=torch.int64, device=device)
        return ids, ids

    def evaluation(self, model: nn.Module, device: torch.device) -> Perplexity:
        return Perplexity(self.recipe, model, device, self.given)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        length = min(self.recipe.shape.length, len(self.given.valid))
        count = min(WATCHED, len(self.given.valid) // length)
        ids = self.given.valid[: count * length].view(count, length)
        return Probe((ids.to(device, torch.int64),), list(model.blocks))  # type: ignore[arg-type]

    @torch.no_grad()
    def look_at_weights(self, model: nn.Module) -> dict[str, list[float]]:
        """How far H is from symmetric, the mean over heads, block by block."""
        shape, steering = self.recipe.shape, steering_of(model)
        constrained = steering.reparametrized if steering is not None else []
        # All at once: read one by one, each weight would be computed by itself.
        computed = compute(constrained) if constrained else ()
        weights = dict(zip((own.index for own in constrained), computed, strict=True))
        means = []
        for number, block in enumerate(model.blocks):  # type: ignore[arg-type]
            if number not in weights:
                rows = block.attn.qkv.weight[2 * shape.width :].unflatten(0, (shape.heads, -1))
                weights[number] = rows, block.attn.proj.weight.mT.unflatten(0, (shape.heads, -1))
            rows, back = weights[number]
            means.append(asymmetry(rows.mT, back).mean())
        return {"asymmetry": [float(f"{value:.5g}") for value in torch.stack(means).nan_to_num().tolist()]}

    def metadata(self) -> dict[str, str]:
        return {"tokenizer": self.given.tokenizer.to_text()}

    def data(self) -> Iterable[Tensor | str]:
        text = self.given
        # Where there is none to test with, validation counts twice: cells were recorded so.
        return text.train, text.valid, text.valid if text.test is None else text.test, text.tokenizer.to_text()

    def facts(self) -> dict[str, Any]:
        text = self.given
        facts = {"train_tokens": len(text.train), "valid_tokens": len(text.valid)}
        return facts if text.test is None else {**facts, "test_tokens": len(text.test)}


class LanguageFeed(ShuffledFeed):
    """Windows of one long text, cut at a random offset, new in every epoch, and taken in random order."""

    def __init__(self, task: LanguageTask, device: torch.device, ranks: Ranks) -> None:
        super().__init__(task.recipe, task.examples, device, ranks)
        shape = task.recipe.shape
        self.mask = 0 if shape.causal else task.given.tokenizer.mask
        self.tokens = task.given.train.to(device, torch.int64)
        self.units_per_step = task.recipe.batch * shape.length
        self.offset = torch.zeros(1, dtype=torch.int64, device=device)
        self.within = torch.arange(shape.length, device=device)
        self.draws = torch.zeros(2, task.recipe.batch, shape.length, device=device)

    def reorder(self, generator: torch.Generator) -> None:
        super().reorder(generator)
        self.offset.random_(0, self.recipe.shape.length, generator=generator)

    def draw(self, generator: torch.Generator) -> None:
        if not self.recipe.shape.causal:
            self.draws.uniform_(generator=generator)

    def batch(self, step: Tensor) -> Batch:
        """Tokens and targets, ``(b, n)`` each: the next tokens, or those that are hidden.

        Of several processes each hides another number, and its mean counts by that: the mean over processes is then the
        mean over all hidden tokens.
        """
        shape = self.recipe.shape
        rows = (self.rows(step) * shape.length + self.offset)[:, None] + self.within
        ids = self.tokens[rows]
        if shape.causal:
            return ids, self.tokens[rows + 1]
        kinds, fillers = self.draws[:, self.places]
        seen, targets = hide(ids, kinds, fillers, self.recipe.masked, self.mask, shape.vocabulary)
        if self.ranks.world == 1:
            return seen, targets
        hidden = (self.draws[0] < self.recipe.masked).sum()
        return seen, targets, self.ranks.world * (kinds < self.recipe.masked).sum() / hidden
