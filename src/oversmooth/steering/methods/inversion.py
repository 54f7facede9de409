"""Attention inversion (Chen et al., ICCV 2025): ``U = (1 + tanh b(x)) A V + g(x) (V − A V)``, with the high pass I − A.

b and g are linear maps of the input of attention, with one number per token and head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.arrays import repeat_heads
from oversmooth.steering.methods.base import Method, Part, register


@register
@dataclass(frozen=True)
class Inversion(Method):
    """Adds the high pass ``V − A V`` to what attention averages, both weighed token by token; learned, from nothing."""

    place = "attention"
    why_no_fold = "weighing a token's own value against what attention mixes, token by token"

    def part(self, layer: AttentionLayer) -> Part:
        return _Inversion(layer.heads, layer.width)


class _Inversion(Part):
    needs_input = True
    why_unknown = "weighs tokens one by one, so that rows of attention no longer sum to one"

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.low = nn.Parameter(torch.zeros(heads, width))
        self.high = nn.Parameter(torch.zeros(heads, width))

    def forward(self, U: Tensor, V: Tensor, _V0: Tensor | None, _mask: Tensor | None, x: Tensor) -> Tensor:
        """U = A V ``(..., n, heads, k)``; V ``(..., n, kv_heads, k)``; x ``(..., n, d)``."""
        b, g = (linear(x, W.to(x.dtype))[..., None].to(U.dtype) for W in (self.low, self.high))
        return (1 + b.tanh()) * U + g * (repeat_heads(V, self.heads) - U)
