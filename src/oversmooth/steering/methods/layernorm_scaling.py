"""LayerNorm scaling: what the norms before attention and MLP give in layer ℓ is multiplied by 1/√ℓ.

So later layers write less into a stream whose variance has grown with depth. It is γ and β that are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.steering.methods.base import Method, check_number, register


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
        check_number("strength", self.strength)

    def changes_nothing(self) -> bool:
        return self.strength == 0

    def always_said(self) -> tuple[str, ...]:
        return ("strength",)

    def factor(self, index: int) -> float:
        """What multiplies the norms of a layer.

        Args:
            index: of the layer, from 0.
        """
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
        return None


def norms_of(modules: dict[str, nn.Module], layer: AttentionLayer) -> list[str] | str:
    """Names of the norms before attention and before the MLP, where the block has one; or why they are not known.

    Args:
        modules: every module of the model by name.
        layer: its attention, with a norm before it.
    """
    assert layer.norm is not None
    before = layer.norm.name
    inside = layer.block + "." if layer.block else ""
    others = [
        name
        for name, module in modules.items()
        if name.startswith(inside)
        and name != before
        and not name.startswith(layer.name + ".")
        and "norm" in type(module).__name__.lower()
        and not any(True for _ in module.children())
        and getattr(getattr(module, "weight", None), "shape", None) == (layer.width,)
    ]
    if len(others) > 1:  # norms stand on both sides of each part
        named = [name for name in others if name.rpartition(".")[2].startswith("pre_feedforward")]
        if len(named) != 1:
            return f"it has {len(others) + 1} norms, and which one stands before its MLP is not known"
        others = named
    return [before, *others]
