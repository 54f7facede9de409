"""Gated attention (Qiu et al., NeurIPS 2025): ``U = A V ⊙ 2σ(x W_g)``, x the input of attention.

Every feature of every head has a gate; the factor 2 makes it 1 at W_g = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.base import Method, Part, register


@register
@dataclass(frozen=True)
class GatedAttention(Method):
    """Multiplies what attention mixes by ``2σ(x W_g)``, token by token and feature by feature; W_g is learned, from 0,
    where every gate is 1.
    """

    place = "attention"
    why_no_fold = "a gate that depends on the token"

    def part(self, layer: AttentionLayer) -> Part:
        return _GatedAttention(layer.heads, layer.head_dim, layer.width)


class _GatedAttention(Part):
    needs_input = True
    why_unknown = "weighs tokens one by one, so that rows of attention no longer sum to one"

    def __init__(self, heads: int, head_dim: int, width: int) -> None:
        super().__init__()
        self.shape = (heads, head_dim)
        self.gate = nn.Parameter(torch.zeros(heads * head_dim, width))

    def forward(self, U: Tensor, _V: Tensor, _V0: Tensor | None, _mask: Tensor | None, x: Tensor) -> Tensor:
        """U = A V ``(..., n, heads, k)``; x ``(..., n, d)``."""
        opened = linear(x, self.gate.to(x.dtype)).to(U.dtype).unflatten(-1, self.shape)
        return U * (2 * opened.sigmoid())
