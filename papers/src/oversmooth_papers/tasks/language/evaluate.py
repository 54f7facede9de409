"""Perplexity: of windows side by side, or of windows that slide, where every token but the first sees a full context.

Nguyen et al.'s windows slide by one token, and only the last prediction of each counts (all of the first window's):
``stride=1``. Side by side, ``stride=length``, is what is looked at on the way.
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


class CausalEvaluation:
    """Validation on the way; at the end test too, if any, and windows that slide on a GPU or where they are few."""

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device, text: Text) -> None:
        self.recipe, self.model, self.device, self.text = recipe, model, device, text

    def scores(self, *, final: bool) -> Scores:
        length, text = self.recipe.shape.length, self.text
        splits = {"valid": text.valid} if text.test is None or not final else {"valid": text.valid, "test": text.test}
        scores = {f"{name}_perplexity": self.perplexity(split, length) for name, split in splits.items()}
        few = sum(map(len, splits.values())) < 4096
        if final and self.recipe.sliding and (few or self.device.type == "cuda"):
            scores |= {f"{name}_perplexity_sliding": self.perplexity(split, 1) for name, split in splits.items()}
        return scores

    @torch.no_grad()
    def perplexity(self, tokens: Tensor, stride: int) -> float:
        """exp of the mean cross-entropy of all predictions, each counted once.

        tokens ``(n,)``; stride: by how much windows slide, at most their length.
        """
        length, predictions = self.recipe.shape.length, len(tokens) - 1
        tokens = tokens.to(self.device, torch.int64)
        first = min(length, predictions)
        ends = torch.tensor(range(first + stride, predictions + 1, stride), dtype=torch.int64, device=self.device)
        with in_eval_mode(self.model):
            total = self._losses(tokens[None, : first + 1], first).sum()
            for some in ends.split(windows_at_once(self.recipe, self.device, stride)):
                rows = some[:, None] + torch.arange(-length, 1, device=self.device)
                total += self._losses(tokens[rows], stride).sum()
            if left := predictions - first - stride * len(ends):  # less than a stride
                total += self._losses(tokens[None, -length - 1 :], left).sum()
        return math.exp(min(float(total) / predictions, 700.0))

    def _losses(self, rows: Tensor, last: int) -> Tensor:
        """``(b, last)`` float64: of the last predictions of each row of tokens."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
            logits = self.model(rows[:, :-1], last=last)
        return F.cross_entropy(logits.float().mT, rows[:, -last:], reduction="none").double()


def windows_at_once(recipe: Recipe, device: torch.device, last: int) -> int:
    """As many as fit, where each is asked for its last predictions."""
    by_tokens = _TOKENS_AT_ONCE[device.type] // recipe.shape.length
    return max(1, min(by_tokens, _LOGITS_AT_ONCE[device.type] // (last * recipe.shape.vocabulary)))


class MaskedEvaluation:
    """exp of the mean cross-entropy of the tokens that training asks for too: hidden, replaced or left as they are.

    They are the same for every model.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device, text: Text) -> None:
        self.recipe, self.model, self.device, self.text = recipe, model, device, text

    def scores(self, *, final: bool) -> Scores:
        scores = {"valid_perplexity": self._perplexity(self.text.valid)}
        if final and self.text.test is not None:
            scores["test_perplexity"] = self._perplexity(self.text.test)
        return scores

    @torch.no_grad()
    def _perplexity(self, tokens: Tensor) -> float:
        shape, device = self.recipe.shape, self.device
        length = min(shape.length, len(tokens))
        rows = tokens[: len(tokens) // length * length].view(-1, length).to(torch.int64)
        kinds, fillers = torch.rand((2, *rows.shape), generator=torch.Generator().manual_seed(_MASKS))
        ids, targets = hide(rows, kinds, fillers, self.recipe.masked, self.text.tokenizer.mask, shape.vocabulary)
        total, batch = 0.0, windows_at_once(self.recipe, device, shape.length)
        with in_eval_mode(self.model):
            for some, wanted in zip(ids.split(batch), targets.split(batch), strict=True):
                with torch.autocast(device.type, torch.bfloat16, enabled=self.recipe.autocasts(device.type)):
                    logits = self.model(some.to(device))
                losses = F.cross_entropy(logits.float().mT, wanted.to(device), ignore_index=IGNORED, reduction="none")
                total += float(losses.double().sum())
        return math.exp(min(total / max(1, int((targets != IGNORED).sum())), 700.0))
