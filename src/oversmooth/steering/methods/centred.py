"""Centred attention (Ali et al., 2023): ``A − s J``, J all 1/n; s = 1 removes the mean of the values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.arrays import mean_over_tokens, repeat_heads, scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register
from oversmooth.theory.radii import AttentionChange


@register
@dataclass(frozen=True)
class Centred(MethodWithStrength):
    """Takes the mean of the values away: ``A V − s · mean(V)``.

    Args:
        strength: s; 1 removes the mean of the values.
        learned: whether training starts from there, with one s per head.
    """

    strength: float = 1.0

    place = "attention"
    averages = True
    why_no_fold = "taking away the mean of the values over tokens"

    def part(self, layer: AttentionLayer) -> Part:
        return _Centred(self, layer.heads, size=layer.heads)


class _Centred(PartWithStrength):
    def forward(self, U: Tensor, V: Tensor, _V0: Tensor | None, mask: Tensor | None) -> Tensor:
        """U ``(..., n, heads, k)``; V ``(..., n, kv_heads, k)``."""
        return U - scaled(self.strength, repeat_heads(mean_over_tokens(V, mask, -3), self.heads), 1)

    def change(self) -> AttentionChange:
        return AttentionChange(mean=self.by_head)
