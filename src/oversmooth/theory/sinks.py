"""Attention sinks: keys that receive most attention whatever the query (Xiao et al., 2024; Gu et al., 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.theory.operators import AttentionOperator, as_operator

SINK = 0.3
"""A key is a head's sink where it receives more than this on average (Gu et al., 2025)."""


def received(A: Tensor | AttentionOperator, key: int = 0) -> Tensor:
    """Mean attention that one key receives from itself and from all queries after it.

    Linear in n where the log-sum-exp of scores is known, as of causal fused attention; else one product with A.

    Args:
        A: ``(..., heads, n, n)``, attention or its operator.
        key: its place among the valid tokens.

    Returns:
        ``(..., heads)``; NaN where an input has no such token.

    >>> received(torch.tensor([[[1.0, 0.0], [0.8, 0.2]]]))
    tensor([0.9000])
    """
    A, key = as_operator(A), arguments.whole(key, "key")
    keep = A.keep
    there = keep & (keep.cumsum(-1) > key)  # the key, and what comes after it
    place = there.byte().argmax(-1)
    return torch.where(there, A.column(place), 0.0).sum(-1) / torch.where(there, 1.0, 0.0).sum(-1)


def sink_rate(A: Tensor | AttentionOperator, key: int = 0, threshold: float = SINK) -> Tensor:
    """Share of heads in which one key is a sink.

    Args:
        A: ``(..., heads, n, n)``, attention or its operator.
        key: its place among the valid tokens.
        threshold: mean attention above which it is one.

    Returns:
        ``(...)``, NaN where an input has no such token.
    """
    mean = received(A, key)
    threshold = arguments.number(threshold, "threshold", "give a number from 0 to 1", least=0, most=1)
    return torch.where(mean.isnan(), mean, (mean > threshold).to(mean.dtype)).mean(-1)
