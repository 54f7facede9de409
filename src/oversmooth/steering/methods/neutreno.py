"""NeuTRENO (Nguyen et al., NeurIPS 2023): ``U = A V + λ̃ (V⁰ − V)``, a fidelity term to the first layer's values.

THEORY §6 has its effect on spectra.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety import arguments
from oversmooth.steering.methods.arrays import repeat_heads, scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register
from oversmooth.theory.radii import AttentionChange


@register
@dataclass(frozen=True)
class NeuTRENO(MethodWithStrength):
    """Adds ``λ̃ (V⁰ − V)`` in every layer but the first, before the output projection; V⁰ is not detached.

    Args:
        strength: λ̃; in the paper 0.6 for vision and 0.4 for language.
        learned: whether training starts from there.
        per: "layer" learns one λ̃ per layer, "head" one per head.
    """

    strength: float = 0.6
    per: Literal["layer", "head"] = "layer"

    place = "attention"
    uses_first_values = True
    why_no_fold = "adding the first layer's values in later layers"

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.choice(self.per, "per", ("layer", "head"))

    def part(self, layer: AttentionLayer) -> Part:
        return _NeuTRENO(self, layer.heads, size=layer.heads if self.per == "head" else 1)


class _NeuTRENO(PartWithStrength):
    def forward(self, U: Tensor, V: Tensor, V0: Tensor, _mask: Tensor | None) -> Tensor:
        """U ``(..., n, heads, k)``; V and V⁰ ``(..., n, kv_heads, k)``."""
        return U + scaled(self.strength, repeat_heads(V0 - V, self.heads), 1)

    def change(self) -> AttentionChange:
        return AttentionChange(shift=self.by_head, source=True)
