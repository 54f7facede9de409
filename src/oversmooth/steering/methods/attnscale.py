"""AttnScale (Wang et al., ICLR 2022): ``A' = J + (1 + w)(A − J)``, J all 1/n.

The part of attention that is not uniform is amplified.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.arrays import mean_over_tokens, repeat_heads, scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register
from oversmooth.theory.radii import AttentionChange


@register
@dataclass(frozen=True)
class AttnScale(MethodWithStrength):
    """Amplifies the part of attention that is not uniform, with one w per head.

    Args:
        strength: w; 0 as published.
        learned: whether training starts from there; True as published.
    """

    learned: bool = True

    place = "attention"
    averages = True
    why_no_fold = "taking away the mean of the values over tokens"

    def part(self, layer: AttentionLayer) -> Part:
        return _AttnScale(self, layer.heads, size=layer.heads)


class _AttnScale(PartWithStrength):
    def forward(self, U: Tensor, V: Tensor, _V0: Tensor | None, mask: Tensor | None) -> Tensor:
        """``(1 + w) A V − w mean(V)``; U = A V ``(..., n, heads, k)``, V ``(..., n, kv_heads, k)``."""
        mean = repeat_heads(mean_over_tokens(V, mask, -3), self.heads)
        return scaled(1 + self.strength, U, 1) - scaled(self.strength, mean, 1)

    def change(self) -> AttentionChange:
        return AttentionChange(gain=1 + self.by_head, mean=self.by_head)
