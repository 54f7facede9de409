"""Laplacian heads (Zhang and Papyan, 2026, with the opposite sign): ``A − c I``.

With c = 1 a token receives the weighted mean of values minus its own value.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.arrays import repeat_heads, scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register
from oversmooth.theory.radii import AttentionChange


@register
@dataclass(frozen=True)
class Laplacian(MethodWithStrength):
    """Takes a token's own value away: ``A V − c V``.

    Args:
        strength: c.
        learned: whether training starts from there, with one c per head.
    """

    strength: float = 1.0

    place = "attention"
    why_no_fold = "taking a token's own value away from what attention mixes"

    def part(self, layer: AttentionLayer) -> Part:
        return _Laplacian(self, layer.heads, size=layer.heads)


class _Laplacian(PartWithStrength):
    def forward(self, U: Tensor, V: Tensor, _V0: Tensor | None, _mask: Tensor | None) -> Tensor:
        """U ``(..., n, heads, k)``; V ``(..., n, kv_heads, k)``."""
        return U - scaled(self.strength, repeat_heads(V, self.heads), 1)

    def change(self) -> AttentionChange:
        return AttentionChange(shift=self.by_head)
