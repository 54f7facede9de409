"""LayerNorm scaling (Sun et al., 2025): the norms before attention and MLP of layer ℓ, times ``1/√ℓ``.

Later layers then write less into a stream whose variance grows with depth. γ and β are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.safety import arguments
from oversmooth.steering.methods.base import Method, register


@register
@dataclass(frozen=True)
class LayerNormScaling(Method):
    """Multiplies the norms before attention and MLP of layer ℓ, counted from 1, by ``ℓ^(−s/2)``.

    Args:
        strength: s; 1 as published, ``1/√ℓ``; 0 changes nothing.
    """

    strength: float = 1.0

    place = "norms"
    why_no_fold = ""

    def __post_init__(self) -> None:
        arguments.number(self.strength, "strength")

    def changes_nothing(self) -> bool:
        return self.strength == 0

    def always_shown(self) -> tuple[str, ...]:
        return ("strength",)

    def factor(self, index: int) -> float:
        """What multiplies the norms of a layer, by its index from 0."""
        return float((index + 1) ** (-self.strength / 2))

    def refusal(self, layer: AttentionLayer, anatomy: Anatomy) -> str | None:
        """Why a layer has no norms to scale; none of its projections is touched, so nothing else matters."""
        if anatomy.shared:
            return "its layers share their norms, and each would need a factor of its own"
        if layer.name == anatomy.layers[0].name:
            return None  # 1/√1 = 1
        if layer.norm_position == "post":
            return "its norms stand after the addition, and not before attention"
        if layer.norm is None:
            return "it has no norm before attention that is known"
        if layer.norm.weight != "weight":  # the norm before the MLP would not be recognised
            return f"the weight of its norm is called {layer.norm.weight!r} and not 'weight'"
        return None
