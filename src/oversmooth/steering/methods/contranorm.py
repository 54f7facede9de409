"""ContraNorm (Guo et al., ICLR 2023): ``Y − s · softmax(Ŷ Ŷᵀ / τ) Y``, Y the output of attention, Ŷ at unit length.

The LayerNorm at the end of the published layer is left out, because models have norms: so s = 0 changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety import arguments
from oversmooth.steering.methods.arrays import scaled
from oversmooth.steering.methods.base import MethodWithStrength, Part, PartWithStrength, register


@register
@dataclass(frozen=True)
class ContraNorm(MethodWithStrength):
    """Takes away what similar tokens have in common: ``Y − s · softmax(Ŷ Ŷᵀ / τ) Y``.

    Args:
        strength: s.
        learned: whether training starts from there, with one s per layer.
        temperature: τ.
    """

    strength: float = 0.1
    temperature: float = 1.0

    place = "output"
    averages = True
    why_no_fold = "comparing tokens with each other once more"

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.number(self.temperature, "temperature", "give a number from 1e-06 on", least=1e-6)

    def part(self, layer: AttentionLayer) -> Part:
        return _ContraNorm(self, layer.heads, size=1)


class _ContraNorm(PartWithStrength):
    method: ContraNorm

    def forward(self, Y: Tensor, mask: Tensor | None) -> Tensor:
        """Y ``(..., n, d)``."""
        unit = normalize(Y, dim=-1)
        scores = (unit @ unit.mT) / self.method.temperature
        if mask is not None:
            scores = scores.masked_fill(~mask[..., None, :], torch.finfo(scores.dtype).min)
        # A softmax, but not by that name: what captures attention in this layer must not capture it.
        weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
        return Y - scaled(self.strength, weights @ Y)
