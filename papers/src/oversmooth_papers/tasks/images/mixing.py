"""Mixup and CutMix of a batch with itself in reverse, and the targets that go with them (timm's mode "batch").

One of the two is drawn for the whole batch, with equal chance where both are asked for. Everything is decided on the
device from four uniform numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

UNIFORMS = 4  # uniform numbers per batch: which of the two, λ, and the box's middle down and across
_KNOTS = 1024
_CELLS = 65_536


@dataclass(frozen=True)
class Mix:
    """How much of each pixel and of each label an image keeps; the rest is its partner's."""

    kept: Tensor  # (h, w) float32
    label: Tensor  # () float32

    def images(self, x: Tensor) -> Tensor:
        """``(b, c, h, w) -> (b, c, h, w)``; the partner of image i is image b − 1 − i."""
        return x * self.kept + x.flip(0) * (1 - self.kept)

    def targets(self, labels: Tensor, classes: int, smoothing: float) -> Tensor:
        """``(b,) int64 -> (b, classes) float32``, rows that sum to one."""
        number = torch.arange(classes, device=labels.device)
        own = (labels[:, None] == number) * self.label
        other = (labels.flip(0)[:, None] == number) * (1 - self.label)
        return smoothing / classes + (1 - smoothing) * (own + other)


def draw_mix(uniform: Tensor, tables: Tensor, alphas: tuple[float, float], height: int, width: int) -> Mix:
    """The mix that four uniform numbers stand for.

    ``alphas`` are those of Mixup and CutMix, 0 for one that is not wanted; ``tables`` (2, knots) are their
    ``beta_table``. With CutMix λ is what the box leaves after it is cut at the image's border.
    """
    which, chance, down, across = uniform
    mixup, cutmix = alphas
    boxed = torch.full_like(which, cutmix > 0, dtype=torch.bool) if not (mixup and cutmix) else which < 0.5
    share = torch.where(boxed, beta_quantile(chance, tables[1], cutmix), beta_quantile(chance, tables[0], mixup))
    side = (1 - share).sqrt()
    rows, taken_down = _span(down, side, height)
    columns, taken_across = _span(across, side, width)
    inside = rows[:, None] & columns
    left = 1 - taken_down * taken_across / (height * width)
    return Mix(torch.where(boxed, (~inside).float(), share), torch.where(boxed, left, share))


def _span(middle: Tensor, share: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Which rows (or columns) the box covers, ``(size,)`` bool, and how many."""
    cut = (share * size).long()
    centre = (middle * size).long().clamp(max=size - 1)
    first, end = (centre - cut // 2).clamp(min=0), (centre + (cut + 1) // 2).clamp(max=size)
    pixel = torch.arange(size, device=middle.device)
    return (pixel >= first) & (pixel < end), end - first


def beta_table(alpha: float) -> Tensor:
    """The lower half of the quantile function of Beta(α, α), for `beta_quantile`. ``(knots + 1,)`` float32.

    Tabulated over ``(2u)^(1/α)``, in which it is smooth down to 0 for every α, so that straight lines between knots
    are good to 1e-6. No sampler of torch's takes a generator for Beta.
    """
    if alpha == 0:
        return torch.zeros(_KNOTS + 1)
    edges = np.linspace(0, 0.5, _CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    # The factor x^(α − 1), infinite at 0 for α < 1, is integrated exactly over each cell; the other is flat there.
    mass = np.diff(edges**alpha) * (1 - middles) ** (alpha - 1)
    reached = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
    return torch.from_numpy(np.interp(np.linspace(0, 1, _KNOTS + 1), reached ** (1 / alpha), edges)).float()


def beta_quantile(u: Tensor, table: Tensor, alpha: float) -> Tensor:
    """The number below which a share u of Beta(α, α) lies; 1 where α is 0: nothing is mixed."""
    if alpha == 0:
        return torch.ones_like(u)
    position = (2 * torch.minimum(u, 1 - u)) ** (1 / alpha) * _KNOTS
    knot = position.long().clamp(max=_KNOTS - 1)
    # gather, as an index of no dimensions would be read back to the host.
    low, high = (table.gather(0, near.flatten()).view_as(near) for near in (knot, knot + 1))
    half = torch.lerp(low, high, position - knot)
    return torch.where(u < 0.5, half, 1 - half)
