"""What a changed model costs, on the unchanged model's own terms: its loss, its distribution or its pooled vector."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.inputs.batches import Batch
from oversmooth.results.spans import Effect
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

IGNORED = -100
"""The target of a position that is not predicted, as torch and transformers have it."""
_MASKED_SHARE = 0.15  # of tokens, as BERT was trained with (Devlin et al., 2019)


def scores_of(out: Any) -> Tensor:
    """Logits ``(b, C)`` or ``(b, n, C)``, or the last tokens ``(b, n, d)``, of whatever a model returned."""
    first = out[0] if isinstance(out, (tuple, list)) and out else out
    known = [getattr(out, name, None) for name in ("logits", "last_hidden_state")]
    for scores in (*known, first):
        if isinstance(scores, Tensor) and scores.ndim in (2, 3) and scores.is_floating_point():
            return scores
    raise InputError(
        f"the model returns {arguments.kind(out)} ({type(out).__name__}) without logits or last_hidden_state; wrap it "
        "so that it returns (b, classes), (b, n, vocabulary) or (b, n, d)"
    )


def vocabulary(model: nn.Module) -> int | None:
    """How many tokens a language model knows; None for any other model."""
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    tables = (module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding))
    return known if isinstance(known, int) else max(tables, default=None)


def effect_of(model: nn.Module, out: Any, *, labelled: bool, classes: int | None, causal: bool, masks: bool) -> Effect:
    """What is measured: labels if there are any, else the model's own task if it has a head, else its pooled vector.

    classes: how many the model states. causal: of its attention. masks: whether its tokenizer has a mask token.
    """
    scores, known = scores_of(out), vocabulary(model)
    width = classes if scores.ndim == 2 else known
    head = isinstance(getattr(out, "logits", None), Tensor) or scores.shape[-1] == width
    if labelled:
        if not head:
            raise InputError(f"labels were given, but this {type(model).__name__} has no head; leave them out")
        return "labels"
    if not head:
        return "cosine"
    if scores.ndim == 2 or scores.shape[-1] != known:
        return "KL"
    return "next token" if causal else "masked token" if masks else "KL"


def next_tokens(ids: Tensor, valid: Tensor | None) -> Tensor:
    """``(b, n)``: the token after each."""
    shifted = F.pad(ids[:, 1:], (0, 1), value=IGNORED)
    return shifted if valid is None else shifted.masked_fill(~F.pad(valid[:, 1:].bool(), (0, 1)), IGNORED)


def ids_of(batch: Batch | Tensor) -> Tensor | None:
    """``(b, n)``: the token ids among a model's inputs."""
    ids = batch if isinstance(batch, Tensor) else batch.inputs.get("input_ids")
    return ids if ids is not None and ids.ndim == 2 and not ids.is_floating_point() else None


def with_ids(batch: Batch | Tensor, ids: Tensor) -> Batch | Tensor:
    """The batch with other token ids."""
    return ids if isinstance(batch, Tensor) else dataclasses.replace(batch, inputs={**batch.inputs, "input_ids": ids})


def masked(
    batch: Batch | Tensor, valid: Tensor | None, mask_token: int, generator: torch.Generator
) -> tuple[Batch | Tensor, Tensor]:
    """The batch with 15% of its tokens masked, one of each text at least, and these tokens as targets ``(b, n)``."""
    ids = ids_of(batch)
    assert ids is not None, "it is a masked language model's"
    usual = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid.bool()
    if isinstance(batch, Batch) and batch.special is not None:
        usual &= ~batch.special.to(ids.device)
    order = torch.rand(ids.shape, generator=generator).to(ids.device).masked_fill(~usual, torch.inf)
    chosen = usual & ((order < _MASKED_SHARE) | (order == order.amin(-1, keepdim=True)))
    return with_ids(batch, ids.masked_fill(chosen, mask_token)), ids.masked_fill(~chosen, IGNORED)


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """``(b,)``: mean cross-entropy of an input's targets; NaN where it has none."""
    if scores.shape[:-1] != targets.shape:
        raise InputError(
            f"labels have shape {tuple(targets.shape)}, but the model's outputs {tuple(scores.shape)}; give one label "
            "for each output"
        )
    wanted = targets[targets != IGNORED]
    if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < scores.shape[-1]:
        raise InputError(
            f"labels range from {int(wanted.min())} to {int(wanted.max())}, but the model has {scores.shape[-1]} "
            "outputs; give class numbers from 0"
        )
    rows = F.cross_entropy(scores.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return rows.view(len(targets), -1).sum(-1) / (targets != IGNORED).view(len(targets), -1).sum(-1)


def mean_token(x: Tensor, valid: Tensor | None) -> Tensor:
    """``(b, d)``: the mean of an input's valid tokens ``(b, n, d)``."""
    if valid is None or valid.shape != x.shape[:2]:
        return x.mean(1)
    weight = valid.to(x)[..., None]
    return (x * weight).sum(1) / weight.sum(1)


class EffectOn:
    """The effect of a change on one batch, against what the unchanged model returned for it. targets: ``(b,)`` or
    ``(b, n)``, for a loss; valid: ``(b, n)``: the tokens that are not padding, None for all.
    """

    def __init__(self, effect: Effect, unchanged: Any, targets: Tensor | None, valid: Tensor | None) -> None:
        scores = scores_of(unchanged)
        self.effect, self.valid = effect, valid
        self.targets = None if targets is None or effect in ("KL", "cosine") else targets.to(scores.device)
        self.before = self._read(scores)

    def __call__(self, out: Any) -> Tensor:
        """``(b,)``: per input, 0 if nothing changed."""
        after = self._read(scores_of(out))
        if self.effect == "KL":
            each = (self.before.exp() * (self.before - after)).sum(-1)  # (b,), or (b, n)
            return each if each.ndim == 1 else mean_token(each[..., None], self.valid)[:, 0]
        return 1 - F.cosine_similarity(self.before, after, dim=-1) if self.effect == "cosine" else after - self.before

    def _read(self, scores: Tensor) -> Tensor:
        if self.effect == "KL":
            return scores.double().log_softmax(-1)
        if self.effect == "cosine":
            return (scores if scores.ndim == 2 else mean_token(scores, self.valid)).double()
        assert self.targets is not None
        return loss(scores, self.targets).double()
