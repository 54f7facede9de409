"""One vector per input at every depth, and a few tokens of each: what comparisons of different inputs are made of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oversmooth.metrics.across import curvature, token_entropy
from oversmooth.metrics.moments import reducing
from oversmooth.trace.plans import Site
from oversmooth.trace.reducers.base import PassFacts, Reducer

Pool = Literal["mean", "last", "first"]
TOKENS = 8
"""Tokens kept of each input, evenly spread over the valid ones."""
ENTROPIES = 128
"""Inputs whose token entropy is taken, the first ones: each needs a decomposition at every depth."""


@dataclass
class DepthVectors:
    """What one depth showed, over all inputs in order, on the CPU."""

    pooled: Tensor  # (inputs, d)
    tokens: Tensor  # (inputs, TOKENS, d)
    entropy: Tensor  # (inputs,); NaN beyond the first
    curvature: Tensor  # (inputs,)


class PooledVectors(Reducer):
    """Pooled vectors, sampled tokens, token entropy and curvature of what enters the first block and leaves each.

    Args:
        pool: "mean" over the valid tokens, the "last" of them, or the "first" token, valid or not, as [CLS].
    """

    result: list[DepthVectors]

    def __init__(self, pool: Pool = "mean") -> None:
        self.pool = pool
        self._rows: dict[int, list[tuple[Tensor, ...]]] = defaultdict(list)
        self._start = 0

    def begin(self, start: int, inputs: int) -> None:
        del inputs
        self._start = start

    @reducing
    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        if site.depth is None:
            return
        valid = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        tokens = torch.where(valid[..., None], x, 0.0).to(torch.promote_types(x.dtype, torch.float32))
        count = valid.sum(-1, keepdim=True)
        order = (~valid).byte().argsort(dim=-1, stable=True)  # the valid ones first
        spread = (2 * torch.arange(TOKENS, device=x.device) + 1) * count // (2 * TOKENS)
        positions = order.gather(-1, torch.cat([spread, (count - 1).clamp(min=0)], -1))
        picked = tokens.gather(1, positions[..., None].expand(*positions.shape, x.shape[-1]))
        if self.pool == "mean":
            pooled = tokens.sum(1) / count
        else:
            pooled = picked[:, -1] if self.pool == "last" else x[:, 0].to(tokens.dtype)
        few = max(0, ENTROPIES - self._start)
        entropy = torch.full((len(x),), torch.nan, dtype=torch.float64, device=x.device)
        entropy[:few] = token_entropy(tokens[:few], mask=valid[:few])
        self._rows[site.depth].append((pooled, picked[:, :-1], entropy, curvature(tokens, mask=valid)))

    def finish(self, facts: PassFacts) -> None:
        del facts
        columns = (zip(*self._rows[depth], strict=True) for depth in range(len(self._rows)))
        self.result = [DepthVectors(*(torch.cat(parts).cpu() for parts in depth)) for depth in columns]
