"""The relief of spatter's water, by the published chain of OpenCV's steps in the same whole-number arithmetic.

Edges, the distance to them, equalisation, an embossing filter; each for a whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from oversmooth_papers.tasks.images.corruptions.pixels import correlated, edge, mirror

_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = torch.ones(3, 3, dtype=torch.int64)
_FURTHEST = 20  # the published truncation, in pixels
_FAR = 1 << 40
_ONE, _SLANTED, _KNIGHT = 65536, 91750, 143976  # 1, 1.4 and 2.1969 in units of 2⁻¹⁶


def embossed(depth: Tensor) -> Tensor:
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
    down = _swept(torch.where(zeros, 0, _FAR))
    return _swept(down.flip(-2, -1)).flip(-2, -1)


def _swept(distance: Tensor) -> Tensor:
    n, _, width = distance.shape
    ramp = torch.arange(width, device=distance.device) * _ONE
    # One and two rows above, two pixels wider at either side; costs of the pixels that a step may come from.
    above = twice = distance.new_full((n, width + 4), _FAR)
    near, far = (_KNIGHT, _SLANTED, _ONE, _SLANTED, _KNIGHT), {1: _KNIGHT, 3: _KNIGHT}
    rows = []
    for row in distance.unbind(dim=1):
        for place, cost in enumerate(near):
            row = torch.minimum(row, above[:, place : place + width] + cost)
        for place, cost in far.items():
            row = torch.minimum(row, twice[:, place : place + width] + cost)
        row = (row - ramp).cummin(dim=1).values + ramp
        rows.append(row)
        twice, above = above, pad(row, (2, 2), value=_FAR)
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
