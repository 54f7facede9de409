"""Contrast, saturation, elastic warps and coarse pixels; JPEG has a file of its own."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.pixels import blurred, mirror, reflect, rounded, sampled, truncated


def contrast(images: Tensor, _draw: CorruptionDraws, kept: float) -> Tensor:
    x = images.double()
    mean = x.mean(dim=(2, 3), keepdim=True)
    return truncated((x - mean) * kept + mean)


def saturate(images: Tensor, _draw: CorruptionDraws, factor: float, added: float) -> Tensor:
    """HSV's saturation scaled and shifted: with hue and value fixed, a colour's distance from its value goes with it.

    Grey has no hue; it counts as red, as in skimage, so a positive ``added`` tints it.
    """
    x = images.double()
    value, least = x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True)
    spread = value - least
    saturation = spread / value.clamp(min=1)
    changed = (saturation * factor + added).clamp_(0, 1)
    coloured = value - (value - x) * (changed * value / spread.clamp(min=1))
    red = torch.cat((value, value * (1 - changed), value * (1 - changed)), dim=1)
    return truncated(torch.where(spread > 0, coloured, red))


def elastic_transform(images: Tensor, draw: CorruptionDraws, length: float, smoothness: float, affine: float) -> Tensor:
    """A random affine map of the whole, then each pixel displaced by a smooth random field; in shares of the side."""
    height, width = images.shape[-2:]
    side = min(height, width)
    x = sampled(images.double(), *_affine(draw, height, width, affine * side), mirror)
    if length:
        fields = draw.between(-1, 1, 2, height, width)
        across, down = (length * side * blurred(fields, smoothness * side, reach=3, border=reflect)).unbind(dim=1)
        rows, columns = _grid(height, width, x.device)
        x = sampled(x, rows + down, columns + across, reflect)
    return truncated(x)


def _affine(draw: CorruptionDraws, height: int, width: int, reach: float) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from, (n, h, w) down and right, when three corners of the middle move by up to ``reach``.

    With the corners P0, P1, P2 at a right angle and their images Q, the pixel Q1 + a (Q0 - Q1) + b (Q2 - Q1) shows
    what stood at P1 + a (P0 - P1) + b (P2 - P1).
    """
    half = min(height, width) // 3
    right, above = width // 2 + half, height // 2 - half  # P1; P0 is beneath it, P2 to its left
    moved = draw.between(-reach, reach, 3, 2)[..., None, None]
    rows, columns = _grid(height, width, moved.device)
    x, y = columns - (right + moved[:, 1, 0]), rows - (above + moved[:, 1, 1])
    x0, y0 = moved[:, 0, 0] - moved[:, 1, 0], moved[:, 0, 1] - moved[:, 1, 1] + 2 * half
    x2, y2 = moved[:, 2, 0] - moved[:, 1, 0] - 2 * half, moved[:, 2, 1] - moved[:, 1, 1]
    area = x0 * y2 - x2 * y0
    a, b = (x * y2 - x2 * y) / area, (x0 * y - x * y0) / area
    return above + 2 * half * a, right - 2 * half * b


def _grid(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return (
        torch.arange(height, dtype=torch.float64, device=device)[:, None],
        torch.arange(width, dtype=torch.float64, device=device),
    )


def pixelate(images: Tensor, _draw: CorruptionDraws, share: float) -> Tensor:
    """Made smaller and larger again by PIL's box filter, which rounds to bytes after each direction, columns first."""
    height, width = images.shape[-2:]
    across, columns = (part.to(images.device) for part in _boxes(width, int(width * share)))
    down, rows = (part.to(images.device) for part in _boxes(height, int(height * share)))
    narrow = rounded(images.double() @ across.mT)
    small = rounded(down @ narrow.double())
    return small[..., rows, :][..., columns]


@lru_cache(maxsize=32)
def _boxes(size: int, small: int) -> tuple[Tensor, Tensor]:
    """(small, size): the mean of the pixels whose middles fall in each box; and (size,): the box each is shown from."""
    scale = size / small
    places = torch.arange(size, dtype=torch.float64) + 0.5
    middles = (torch.arange(small, dtype=torch.float64)[:, None] + 0.5) * scale
    within = (places - middles) / scale
    inside = ((within > -0.5) & (within <= 0.5)).double()
    return inside / inside.sum(dim=1, keepdim=True), (places / scale).long().clamp_(max=small - 1)
