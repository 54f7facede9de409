"""Orthogonal updates (Oh et al., 2025): ``f − s (⟨x, f⟩/⟨x, x⟩) x``: attention adds only what is orthogonal to a token.

f is the output of the output projection and x the stream that it is added to, token by token. What a model does to f on
the way, such as dropout or a norm, comes after it. What the MLP adds is left as it is: it mixes no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.safety import arguments
from oversmooth.steering.methods.arrays import scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register


@register
@dataclass(frozen=True)
class OrthogonalUpdate(MethodWithStrength):
    """Takes away from what attention adds the part along the token that it is added to.

    Args:
        strength: s, from 0 (nothing) to 1 (all of it).
        learned: whether training starts from there, with one s per layer.
    """

    strength: float = 1.0

    place = "output"
    uses_stream = True
    why_no_fold = "a projection along each token"

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.number(self.strength, "strength", "give a number from 0 to 1", least=0.0, most=1.0)

    def part(self, layer: AttentionLayer) -> Part:
        return _OrthogonalUpdate(self, layer.heads, size=1)

    def refusal(self, layer: AttentionLayer, anatomy: Anatomy) -> str | None:
        if (why := super().refusal(layer, anatomy)) is not None:
            return why
        if layer.layer_scale is not None:
            return "a layer scale changes the direction of what it adds, channel by channel"
        return None


class _OrthogonalUpdate(PartWithStrength):
    def forward(self, Y: Tensor, _mask: Tensor | None, stream: Tensor) -> Tensor:
        """Both ``(..., n, d)``."""
        wide = torch.promote_types(Y.dtype, torch.float32)
        x, f = stream.to(wide), Y.to(wide)
        # The projection does not depend on the length of x: scaled, its square neither overflows nor vanishes.
        size = x.detach().abs().amax(-1, keepdim=True)
        x = x / torch.where(size > 0, size, 1.0)
        square = x.square().sum(-1, keepdim=True)
        along = (x * f).sum(-1, keepdim=True) / torch.where(square > 0, square, 1.0) * x
        # Rounded once: what is taken away may be many times what is left.
        return (f - scaled(self.strength, along)).to(Y.dtype)
