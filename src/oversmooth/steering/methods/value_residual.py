"""Value residual (Zhou et al., 2024, ResFormer): later layers mix ``(1 − s) V + s V⁰``, V⁰ the first layer's values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.arrays import scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register
from oversmooth.theory.radii import AttentionChange


@register
@dataclass(frozen=True)
class ValueResidual(MethodWithStrength):
    """Mixes the first layer's values into those of every later layer: ``(1 − s) V + s V⁰``.

    Args:
        strength: s; 0.5 as published.
        learned: whether training starts from there, with one s per layer.
    """

    strength: float = 0.5

    place = "values"
    uses_first_values = True
    why_no_fold = "adding the first layer's values in later layers"

    def part(self, layer: AttentionLayer) -> Part:
        return _ValueResidual(self, layer.heads, size=1)


class _ValueResidual(PartWithStrength):
    def forward(self, V: Tensor, V0: Tensor) -> Tensor:
        """Both ``(..., n, kv_heads, k)``."""
        return V + scaled(self.strength, V0 - V)

    def change(self) -> AttentionChange:
        return AttentionChange(gain=1 - self.by_head, source=True)
