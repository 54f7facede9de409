"""FeatScale (Wang et al., ICLR 2022): ``Y + s · LFC[Y] + t · HFC[Y]`` on the output Y of attention, per channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety import arguments
from oversmooth.steering.methods.arrays import broadcastable, mean_over_tokens
from oversmooth.steering.methods.base import Method, Part, number_or_parameter, register


@register
@dataclass(frozen=True)
class FeatScale(Method):
    """Scales the mean over tokens and the rest separately, per channel.

    Args:
        low: s, of the mean; 0 as published.
        high: t, of the rest; 0 as published.
        learned: whether training starts from there; True as published.
        as_published: add both terms twice, as the authors' code does.
    """

    low: float = 0.0
    high: float = 0.0
    learned: bool = True
    as_published: bool = False

    place = "output"
    averages = True
    why_no_fold = "scaling the mean over tokens and the rest differently"

    def __post_init__(self) -> None:
        arguments.number(self.low, "low")
        arguments.number(self.high, "high")
        arguments.flag(self.learned, "learned")
        arguments.flag(self.as_published, "as_published")

    def changes_nothing(self) -> bool:
        return self.low == self.high == 0 and not self.learned

    def always_shown(self) -> tuple[str, ...]:
        return "low", "high"

    def part(self, layer: AttentionLayer) -> Part:
        return _FeatScale(self, layer.width)


class _FeatScale(Part):
    s: Tensor | float
    t: Tensor | float

    def __init__(self, method: FeatScale, width: int) -> None:
        super().__init__()
        self.width = width
        self.times = 2 if method.as_published else 1
        number_or_parameter(self, "s", method.low, width, method.learned)
        number_or_parameter(self, "t", method.high, width, method.learned)

    def output_gains(self) -> tuple[Tensor, Tensor]:
        low, high = (torch.as_tensor(x).detach().float().expand(self.width) for x in (self.s, self.t))
        return 1 + self.times * low, 1 + self.times * high

    def forward(self, Y: Tensor, mask: Tensor | None) -> Tensor:
        """Y ``(..., n, d)``."""
        low = mean_over_tokens(Y, mask, -2)
        return Y + self.times * (broadcastable(self.s, Y) * low + broadcastable(self.t, Y) * (Y - low))
