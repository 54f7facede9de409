"""Perplexity: of windows side by side, or of windows that slide, where every token but the first sees a full context.

Nguyen et al.'s windows slide by one token, and only the last prediction of each counts (all of the first window's):
``stride=1``. Side by side, ``stride=length``, is what is measured on the way. A masked model is scored on the tokens
that training asks for too: hidden, replaced or left as they are, the same for every model.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety.untouched import in_eval_mode
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.language.model import IGNORED, hide
from oversmooth_papers.tasks.language.recipe import Recipe

_TOKENS_AT_ONCE = {"cuda": 2**17, "cpu": 2**11}  # read
_LOGITS_AT_ONCE = {"cuda": 2**29, "cpu": 2**23}  # in float32, and some more of them on the way
_MASKS = 20_250  # the seed of the tokens that are hidden in a test, the same for every model


class Perplexity:
    """Of validation on the way; at the end of test too, if any, and with sliding windows on a GPU or for few tokens."""

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device, text: Text) -> None:
        self.recipe, self.model, self.device, self.text = recipe, model, device, text

    @torch.no_grad()
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

    @torch.no_grad()
    def causal(self, tokens: Tensor, stride: int) -> float:
        """exp of the mean cross-entropy of all predictions, each counted once.

        tokens ``(n,)``; stride: by how much windows slide, at most their length.
        """
        length, predictions = self.recipe.shape.length, len(tokens) - 1
        tokens = tokens.to(self.device, torch.int64)
        first = min(length, predictions)
        ends = torch.tensor(range(first + stride, predictions + 1, stride), dtype=torch.int64, device=self.device)
        with in_eval_mode(self.model):
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
        with in_eval_mode(self.model):
            for some, wanted in zip(ids.split(at_once), targets.split(at_once), strict=True):
                total += self._loss(some.to(self.device), wanted.to(self.device))
        return math.exp(min(total / max(1, int((targets != IGNORED).sum())), 700.0))

    def _windows_at_once(self, last: int) -> int:
        """As many as fit, where each is asked for its last predictions."""
        by_tokens = _TOKENS_AT_ONCE[self.device.type] // self.recipe.shape.length
        return max(1, min(by_tokens, _LOGITS_AT_ONCE[self.device.type] // (last * self.recipe.shape.vocabulary)))

    def _loss(self, ids: Tensor, targets: Tensor) -> float:
        """Summed over the last predictions of each window ``(b, n)``, as many as there are targets ``(b, last)``."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
            logits = self.model(ids, last=targets.shape[1])
        losses = F.cross_entropy(logits.float().mT, targets, ignore_index=IGNORED, reduction="none")
        return float(losses.double().sum())
