"""Predicting tokens: the text lies on the device, and every step takes windows of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.randomness import seeded
from oversmooth.steering import steer, steering_of
from oversmooth.steering.layer_names import layers_named
from oversmooth.steering.reparametrized import compute
from oversmooth.theory import asymmetry
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.task import Batch, Evaluation, Forward, Probe, Task
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.language.evaluate import CausalEvaluation, MaskedEvaluation
from oversmooth_papers.tasks.language.model import LanguageModel, hide
from oversmooth_papers.tasks.language.recipe import Recipe

WATCHED = 8
"""Windows of the validation text on which smoothing is watched."""


def model_of(recipe: Recipe) -> LanguageModel:
    """On the CPU, with the weights that the seed gives on any machine; the caller's random state is left alone."""
    with seeded(recipe.seed):
        model = LanguageModel(recipe.shape)
        if methods := recipe.methods():
            steer(model, methods, layers_named(recipe.layers))
    return model


def windows(text: Text, recipe: Recipe) -> int:
    """Of an epoch: one less than there are, so that any offset below a window leaves as many."""
    return max(0, (len(text.train) - 1) // recipe.shape.length - 1)


class LanguageTask(Task):
    """``loss`` is the mean cross-entropy, the score the perplexity."""

    examples_are: ClassVar[str] = "windows"

    def __init__(self, recipe: Recipe, text: Text) -> None:
        recipe.check_fits(text)
        if len(text.valid) < 2 or (text.test is not None and len(text.test) < 2):
            raise InputError(f"{text.name} has less than 2 tokens to validate or to test with; give a longer text")
        self.recipe: Recipe = recipe
        self.text = text

    @property
    def examples(self) -> int:
        return windows(self.text, self.recipe)

    def plain_model(self) -> LanguageModel:
        return LanguageModel(self.recipe.shape)

    def model(self) -> LanguageModel:
        return model_of(self.recipe)

    def check_memory(self, device: torch.device) -> None:
        # Weights, gradients and two moments; on a CPU what a step leaves for its way back too, by a low estimate.
        shape, batch = self.recipe.shape, self.recipe.batch
        activations = 4 * batch * shape.length * (8 * shape.width * shape.depth + 3 * shape.vocabulary)
        shape.check_fits(4, activations if device.type == "cpu" else 0)

    def has_data_of(self, other: Task) -> bool:
        return isinstance(other, LanguageTask) and other.text is self.text

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> LanguageFeed:  # noqa: ARG002 (no kernels)
        return LanguageFeed(self.recipe, self.text, device, ranks)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        ids, targets, *weight = batch
        loss: Tensor = forward(ids, targets)
        return loss * weight[0] if weight else loss

    def blank(self, batch: int, device: torch.device) -> Batch:
        ids = torch.zeros(batch, self.recipe.shape.length, dtype=torch.int64, device=device)
        return ids, ids

    def evaluation(self, model: nn.Module, device: torch.device) -> Evaluation:
        kind = CausalEvaluation if self.recipe.shape.causal else MaskedEvaluation
        return kind(self.recipe, model, device, self.text)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        length = min(self.recipe.shape.length, len(self.text.valid))
        count = min(WATCHED, len(self.text.valid) // length)
        ids = self.text.valid[: count * length].view(count, length)
        return Probe((ids.to(device, torch.int64),), list(model.blocks))  # type: ignore[arg-type]

    @torch.no_grad()
    def look_at_weights(self, model: nn.Module) -> dict[str, list[float]]:
        """How far H is from symmetric, the mean over heads, block by block."""
        shape, looks = self.recipe.shape, []
        steering = steering_of(model)
        constrained = steering.reparametrized if steering is not None else []
        # All at once: read one by one, each weight would be computed by itself.
        computed = dict(
            zip((own.index for own in constrained), compute(constrained) if constrained else (), strict=True)
        )
        for number, block in enumerate(model.blocks):  # type: ignore[arg-type]
            if number in computed:
                rows, back = computed[number]
            else:
                rows = block.attn.qkv.weight[2 * shape.width :].unflatten(0, (shape.heads, -1))
                back = block.attn.proj.weight.mT.unflatten(0, (shape.heads, -1))
            looks.append(asymmetry(rows.mT, back).mean())
        return {"asymmetry": [float(f"{value:.5g}") for value in torch.stack(looks).nan_to_num().tolist()]}

    def metadata(self) -> dict[str, str]:
        return {"tokenizer": self.text.tokenizer.to_text()}

    def data(self) -> Iterable[Tensor | str]:
        text = self.text
        # Where there is none to test with, validation counts twice: cells were recorded so.
        return text.train, text.valid, text.valid if text.test is None else text.test, text.tokenizer.to_text()

    def facts(self) -> dict[str, Any]:
        text = self.text
        facts = {"train_tokens": len(text.train), "valid_tokens": len(text.valid)}
        return facts if text.test is None else {**facts, "test_tokens": len(text.test)}


class LanguageFeed:
    """Windows of one long text, cut at a random offset and taken in random order, both new in every epoch."""

    def __init__(self, recipe: Recipe, text: Text, device: torch.device, ranks: Ranks) -> None:
        shape = recipe.shape
        self.recipe, self.device, self.mask = recipe, device, 0 if shape.causal else text.tokenizer.mask
        self.tokens = text.train.to(device, torch.int64)
        self.examples = windows(text, recipe)
        self.units_per_step = recipe.batch * shape.length
        self.processes, self.places = ranks.world, ranks.places(recipe.batch).to(device)
        self.order = torch.zeros(self.examples, dtype=torch.int64, device=device)
        self.offset = torch.zeros(1, dtype=torch.int64, device=device)
        self.within = torch.arange(shape.length, device=device)
        self.draws = torch.zeros(2, recipe.batch, shape.length, device=device)

    def reorder(self, generator: torch.Generator) -> None:
        self.order.copy_(torch.randperm(self.examples, generator=generator, device=self.device))
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
        window = self.order.index_select(0, step * self.recipe.batch + self.places)
        rows = (window * shape.length + self.offset)[:, None] + self.within
        ids = self.tokens[rows]
        if shape.causal:
            return ids, self.tokens[rows + 1]
        kinds, fillers = self.draws[:, self.places]
        seen, targets = hide(ids, kinds, fillers, self.recipe.masked, self.mask, shape.vocabulary)
        if self.processes == 1:
            return seen, targets
        hidden = (self.draws[0] < self.recipe.masked).sum()
        return seen, targets, self.processes * (kinds < self.recipe.masked).sum() / hidden
