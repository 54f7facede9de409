"""Spatter: drops of water or specks of mud on the lens.

The relief of the water is drawn as published by a chain of OpenCV's steps (edges, distance to them, equalisation, an
embossing filter); each is written here for a whole batch, in the same whole-number arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.pixels import blurred, correlated, edge, mirror, truncated

_WATER, _MUD = (175, 238, 238), (63, 42, 20)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = torch.ones(3, 3, dtype=torch.int64)
_FURTHEST = 20  # the published truncation, in pixels
_ONE, _SLANTED, _KNIGHT = 65536, 91750, 143976  # 1, 1.4 and 2.1969 in units of 2⁻¹⁶


def spatter(
    images: Tensor,
    draw: CorruptionDraws,
    mean: float,
    sigma: float,
    smooth: float,
    threshold: float,
    amount: float,
    mud: int,
) -> Tensor:
    liquid = blurred(draw.normal(*images.shape[-2:]).mul_(sigma).add_(mean), smooth)
    x = images.double()
    if mud:
        cover = blurred((liquid > threshold).double(), amount)
        cover = cover.where(cover >= 0.8, 0)[:, None]
        return truncated(x * (1 - cover) + cover * _colour(_MUD, x))
    depth = truncated(liquid.where(liquid >= threshold, 0) * 255).long()
    relief = (depth * _embossed(depth)).double()
    # Without any liquid the published division is 0 by 0; here such a picture stays as it is.
    relief = relief / relief.amax(dim=(1, 2), keepdim=True).clamp(min=1)
    return truncated(x + amount * relief[:, None] * _colour(_WATER, x))


def _colour(rgb: tuple[int, int, int], like: Tensor) -> Tensor:
    return like.new_tensor(rgb)[:, None, None]


def _embossed(depth: Tensor) -> Tensor:
    """(n, h, w), 0 to 255: the slopes of the distance from the drops' edges, seen from one corner."""
    distance = distances(edges(depth, 50, 150)).clamp(max=_FURTHEST * _ONE)
    soft = correlated(distance, _BOX, mirror) // (9 * _ONE)
    slopes = correlated(equalised(soft), torch.tensor(_EMBOSS), mirror).clamp(0, 255)
    return (2 * correlated(slopes, _BOX, mirror) + 9) // 18


def edges(grey: Tensor, low: int, high: int) -> Tensor:
    """(n, h, w) whole numbers -> bool: Canny's edges by the 3 by 3 Sobel filters and |dx| + |dy|, as OpenCV's."""
    smooth, slope = torch.tensor([1, 2, 1]), torch.tensor([-1, 0, 1])
    dx = correlated(grey, smooth[:, None] * slope, edge)
    dy = correlated(grey, slope[:, None] * smooth, edge)
    strength = dx.abs() + dy.abs()
    around = pad(strength, (1, 1, 1, 1))
    height, width = grey.shape[-2:]

    def beside(down: int, right: int) -> Tensor:
        return around[..., 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    # Directions by the tangents of 22.5 and 67.5 degrees, in units of 2⁻¹⁵.
    across, up = dx.abs() * 13573, dy.abs() << 15
    flat, steep = up < across, up > across + (dx.abs() << 16)
    ridge = (strength > beside(0, -1)) & (strength >= beside(0, 1))
    upright = (strength > beside(-1, 0)) & (strength >= beside(1, 0))
    falling = (strength > beside(-1, -1)) & (strength > beside(1, 1))
    rising = (strength > beside(-1, 1)) & (strength > beside(1, -1))
    slanted = torch.where((dx ^ dy) < 0, rising, falling)
    peak = torch.where(flat, ridge, torch.where(steep, upright, slanted)) & (strength > low)
    edges = peak & (strength > high)
    while True:  # an edge goes on through weaker peaks that touch it
        grown = peak & (max_pool2d(edges.float(), 3, 1, 1) > 0)
        if torch.equal(grown, edges):
            return edges
        edges = grown


def distances(zeros: Tensor) -> Tensor:
    """(n, h, w) bool -> how far the nearest True is, in 2⁻¹⁶ pixels, over steps of 1, 1.4 and 2.1969.

    Two passes, from the top and from the bottom; within a row, the steps of 1 are a running minimum.
    """
    out = torch.where(zeros, 0, 1 << 40)
    out = _pass(out)
    return _pass(out.flip(-2, -1)).flip(-2, -1)


def _pass(distance: Tensor) -> Tensor:
    n, _, width = distance.shape
    far = 1 << 40
    ramp = torch.arange(width, device=distance.device) * _ONE
    above = twice = distance.new_full((n, width + 4), far)
    rows = []
    for row in distance.unbind(dim=1):
        steps = (
            (twice[:, 1:-3], _KNIGHT),
            (twice[:, 3:-1], _KNIGHT),
            (above[:, :-4], _KNIGHT),
            (above[:, 1:-3], _SLANTED),
            (above[:, 2:-2], _ONE),
            (above[:, 3:-1], _SLANTED),
            (above[:, 4:], _KNIGHT),
        )
        for neighbour, cost in steps:
            row = torch.minimum(row, neighbour + cost)
        row = (row - ramp).cummin(dim=1).values + ramp
        rows.append(row)
        twice, above = above, pad(row, (2, 2), value=far)
    return torch.stack(rows, dim=1)


def equalised(grey: Tensor) -> Tensor:
    """(n, h, w) whole numbers up to 20 -> 0 to 255, each level as often as can be, as OpenCV's equalizeHist."""
    n, height, width = grey.shape
    flat = grey.view(n, -1)
    counts = torch.zeros(n, _FURTHEST + 1, dtype=torch.int64, device=grey.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    first = flat.amin(dim=1, keepdim=True)
    rest = height * width - counts.gather(1, first)  # all but the darkest level
    # Single precision and halves to even, as there.
    scale = 255 / rest.clamp(min=1).float()
    table = ((counts.cumsum(dim=1) - counts.gather(1, first)).clamp(min=0).float() * scale).round_().long()
    return torch.where(rest > 0, table.gather(1, flat), flat).view(grey.shape)
