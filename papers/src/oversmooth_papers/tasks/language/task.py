"""Predicting tokens: the text lies on the device, every step takes windows of it, and the score is the perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.steering import steering_of
from oversmooth.steering.reparametrized import compute
from oversmooth.theory import asymmetry
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.common import WATCHED, ShuffledFeed, begun, tested
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.language.model import IGNORED, LanguageModel, hide
from oversmooth_papers.tasks.language.recipe import Recipe

_TOKENS_AT_ONCE = {"cuda": 2**17, "cpu": 2**11}  # read
_LOGITS_AT_ONCE = {"cuda": 2**29, "cpu": 2**23}  # in float32, and some more of them on the way
_MASKS = 20_250  # the seed of the tokens that are hidden in a test, the same for every model


def plain_model_of(recipe: Recipe) -> LanguageModel:
    return LanguageModel(recipe.shape)


def model_of(recipe: Recipe) -> LanguageModel:
    return begun(recipe, lambda: LanguageModel(recipe.shape), layers=recipe.layers)


class LanguageTask(Task):
    """``loss`` is the mean cross-entropy, the score the perplexity; smoothing is watched on validation windows."""

    recipe: Recipe
    dataset: Text
    plain_model_of, model_of = staticmethod(plain_model_of), staticmethod(model_of)

    @property
    def examples(self) -> int:
        """Windows of an epoch: one less than there are, so that any offset below a window leaves as many."""
        return max(0, (len(self.dataset.train) - 1) // self.recipe.shape.length - 1)

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
        return Perplexity(self.recipe, model, device, self.dataset)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        length = min(self.recipe.shape.length, len(self.dataset.valid))
        count = min(WATCHED, len(self.dataset.valid) // length)
        ids = self.dataset.valid[: count * length].view(count, length)
        return Probe((ids.to(device, torch.int64),), list(model.blocks))  # type: ignore[arg-type]

    @torch.no_grad()
    def weight_metrics(self, model: nn.Module) -> dict[str, list[float]]:
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
        return {"tokenizer": self.dataset.tokenizer.to_text()}

    def data(self) -> Iterable[Tensor | str]:
        text = self.dataset
        # Where there is none to test with, validation counts twice: cells were recorded so.
        return text.train, text.valid, text.valid if text.test is None else text.test, text.tokenizer.to_text()

    def facts(self) -> dict[str, Any]:
        text = self.dataset
        facts = {"train_tokens": len(text.train), "valid_tokens": len(text.valid)}
        return facts if text.test is None else {**facts, "test_tokens": len(text.test)}


class LanguageFeed(ShuffledFeed):
    """Windows of one long text, cut at a random offset, new in every epoch, and taken in random order."""

    def __init__(self, task: LanguageTask, device: torch.device, ranks: Ranks) -> None:
        super().__init__(task.recipe, task.examples, device, ranks)
        shape = task.recipe.shape
        self.mask = 0 if shape.causal else task.dataset.tokenizer.mask
        self.tokens = task.dataset.train.to(device, torch.int64)
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


class Perplexity:
    """Of validation on the way; at the end of test too, if any, and with sliding windows on a GPU or for few tokens.

    Nguyen et al.'s windows slide by one token, and only the last prediction of each counts (all of the first window's):
    ``stride=1``. Side by side, ``stride=length``, is what is measured on the way. A masked model is scored on the
    tokens that training asks for too: hidden, replaced or left as they are, the same for every model.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device, text: Text) -> None:
        self.recipe, self.model, self.device, self.text = recipe, model, device, text

    def scores(self, *, final: bool) -> Scores:
        splits = {"valid": self.text.valid}
        if final and self.text.test is not None:
            splits["test"] = self.text.test
        causal, length = self.recipe.shape.causal, self.recipe.shape.length
        scores = {
            f"{name}_perplexity": self.causal(split, length) if causal else self.masked(split)
            for name, split in splits.items()
        }
        few = sum(map(len, splits.values())) < 4096
        if causal and final and self.recipe.sliding and (few or self.device.type == "cuda"):
            scores |= {f"{name}_perplexity_sliding": self.causal(split, 1) for name, split in splits.items()}
        return scores

    def causal(self, tokens: Tensor, stride: int) -> float:
        """exp of the mean cross-entropy of all predictions, each counted once.

        tokens ``(n,)``; stride: by how much windows slide, at most their length.
        """
        length, predictions = self.recipe.shape.length, len(tokens) - 1
        tokens = tokens.to(self.device, torch.int64)
        first = min(length, predictions)
        ends = torch.tensor(range(first + stride, predictions + 1, stride), dtype=torch.int64, device=self.device)
        with tested(self.model, self.recipe, self.device):
            total = self._loss(tokens[None, :first], tokens[None, 1 : first + 1])
            for some in ends.split(self._windows_at_once(stride)):
                rows = tokens[some[:, None] + torch.arange(-length, 1, device=self.device)]
                total += self._loss(rows[:, :-1], rows[:, -stride:])
            if left := predictions - first - stride * len(ends):  # less than a stride
                total += self._loss(tokens[None, -length - 1 : -1], tokens[None, -left:])
        return math.exp(min(total / predictions, 700.0))

    def masked(self, tokens: Tensor) -> float:
        """exp of the mean cross-entropy of the tokens ``(n,)`` that are to be found."""
        shape, length = self.recipe.shape, min(self.recipe.shape.length, len(tokens))
        rows = tokens[: len(tokens) // length * length].view(-1, length).to(torch.int64)
        kinds, fillers = torch.rand((2, *rows.shape), generator=torch.Generator().manual_seed(_MASKS))
        ids, targets = hide(rows, kinds, fillers, self.recipe.masked, self.text.tokenizer.mask, shape.vocabulary)
        total, at_once = 0.0, self._windows_at_once(shape.length)
        with tested(self.model, self.recipe, self.device):
            for some, wanted in zip(ids.split(at_once), targets.split(at_once), strict=True):
                total += self._loss(some.to(self.device), wanted.to(self.device))
        return math.exp(min(total / max(1, int((targets != IGNORED).sum())), 700.0))

    def _windows_at_once(self, last: int) -> int:
        """As many as fit, where each is asked for its last predictions."""
        by_tokens = _TOKENS_AT_ONCE[self.device.type] // self.recipe.shape.length
        return max(1, min(by_tokens, _LOGITS_AT_ONCE[self.device.type] // (last * self.recipe.shape.vocabulary)))

    def _loss(self, ids: Tensor, targets: Tensor) -> float:
        """Summed over the last predictions of each window ``(b, n)``, as many as there are targets ``(b, last)``."""
        logits = self.model(ids, last=targets.shape[1])
        losses = F.cross_entropy(logits.float().mT, targets, ignore_index=IGNORED, reduction="none")
        return float(losses.double().sum())
