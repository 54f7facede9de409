"""Contrast, saturation, elastic warps, coarse pixels, and JPEG's loss without its files.

JPEG is the steps of libjpeg's coder and decoder that change pixels, in its own whole-number arithmetic (colours, 4:2:0
chroma and its smooth enlargement, the "islow" cosine transforms), held in float64 where matrices multiply: the bytes
are those of PIL's encoding and decoding.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.pixels import (
    blurred,
    edge,
    mirror,
    reflect,
    rounded,
    sampled,
    truncated,
)

# The example tables of the standard (ITU-T T.81, annex K.1), which libjpeg scales by quality.
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


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


def jpeg_compression(images: Tensor, _draw: CorruptionDraws, quality: int) -> Tensor:
    """As PIL's by default: the standard's tables, chroma at half size."""
    height, width = images.shape[-2:]
    small = ((height + 1) // 2, (width + 1) // 2)
    # A last row or column is repeated to fill the blocks: columns before the chroma is halved, rows after it.
    luma, *chroma = _to_ycc(_padded(images.int(), 2, 16))
    luma = _coded(_padded(luma, 8, 8), _table(_LUMA, quality))[..., :height, :width]
    chroma = [_coded(_padded(_halved(c), 8, 8), _table(_CHROMA, quality)) for c in chroma]
    return _to_rgb(luma, *(_doubled(c[..., : small[0], : small[1]])[..., :height, :width] for c in chroma))


def _padded(planes: Tensor, rows: int, columns: int) -> Tensor:
    """(..., h, w) to whole multiples of ``rows`` and ``columns`` by repeating the last."""
    height, width = planes.shape[-2:]
    down = edge(torch.arange(-(-height // rows) * rows, device=planes.device), height)
    right = edge(torch.arange(-(-width // columns) * columns, device=planes.device), width)
    return planes[..., down, :][..., right]


def _fixed(value: float) -> int:
    return int(value * 65536 + 0.5)


def _to_ycc(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = images.unbind(dim=1)
    half, middle = 1 << 15, (128 << 16) + (1 << 15) - 1
    y = _fixed(0.299) * red + _fixed(0.587) * green + _fixed(0.114) * blue + half
    cb = -_fixed(0.16874) * red - _fixed(0.33126) * green + _fixed(0.5) * blue + middle
    cr = _fixed(0.5) * red - _fixed(0.41869) * green - _fixed(0.08131) * blue + middle
    return y >> 16, cb >> 16, cr >> 16


def _to_rgb(luma: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    blue, red, half = blue - 128, red - 128, 1 << 15
    parts = (
        luma + ((_fixed(1.402) * red + half) >> 16),
        luma + ((-_fixed(0.34414) * blue - _fixed(0.71414) * red + half) >> 16),
        luma + ((_fixed(1.772) * blue + half) >> 16),
    )
    return torch.stack(parts, dim=1).clamp_(0, 255).to(torch.uint8)


def _halved(plane: Tensor) -> Tensor:
    """(n, h, w) -> (n, h/2, w/2): means of four, rounded down and up in turn so that neither wins."""
    n, height, width = plane.shape
    four = plane.view(n, height // 2, 2, width // 2, 2).sum(dim=(2, 4), dtype=plane.dtype)
    return (four + 1 + torch.arange(width // 2, device=plane.device, dtype=plane.dtype) % 2) >> 2


def _doubled(plane: Tensor) -> Tensor:
    """(n, h, w) -> (n, 2 h, 2 w): three parts of the nearest and one of the next, in both directions."""
    n, height, width = plane.shape
    above, below = _shifted_by_one(plane, dim=1)
    tall = torch.stack((3 * plane + above, 3 * plane + below), dim=2).view(n, 2 * height, width)
    left, right = _shifted_by_one(tall, dim=2)
    return (torch.stack((3 * tall + left + 8, 3 * tall + right + 7), dim=3) >> 4).view(n, 2 * height, 2 * width)


def _shifted_by_one(plane: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """What precedes and what follows along ``dim``; the ends precede and follow themselves."""
    places, last = torch.arange(plane.shape[dim], device=plane.device), plane.shape[dim] - 1
    before, after = (places - 1).clamp(min=0), (places + 1).clamp(max=last)
    return plane.index_select(dim, before), plane.index_select(dim, after)


def _coded(plane: Tensor, table: Tensor) -> Tensor:
    """(n, h, w): what is left of each block of 8 by 8 when its coefficients are multiples of ``table``'s."""
    n, height, width = plane.shape
    cosines, table = _cosines().to(plane.device), table.to(plane.device)
    blocks = (plane - 128).double().view(n, height // 8, 8, width // 8, 8).transpose(2, 3)
    # Rows first, with two bits beyond the point, then columns; what comes out is eight times the transform.
    levels = _over(cosines @ _over(blocks @ cosines.mT, 11), 15)
    levels = ((levels.abs() + 4 * table) / (8 * table)).floor_().copysign_(levels)  # halves go away from zero
    blocks = _over(_over(cosines.mT @ (levels * table), 11) @ cosines, 18)
    return blocks.transpose(2, 3).reshape(n, height, width).add_(128).clamp_(0, 255).int()


def _over(values: Tensor, bits: int) -> Tensor:
    """Whole numbers over 2 to the ``bits``, to the nearest, halves up: exact, since the divisor is a power of two."""
    return values.mul_(2.0**-bits).add_(0.5).floor_()


@lru_cache(maxsize=1)
def _cosines() -> Tensor:
    """(8, 8), whole, in units of 2⁻¹³: between two roundings the integer transform is this linear map.

    libjpeg factors it to save products (Loeffler, Ligtenberg & Moschytz 1989) and rounds the factors, not the entries,
    so an entry is a sum of rounded factors and may be one off its own cosine. The inverse is the transpose.
    """
    c1, c2, c3, c5, c6, c7 = (math.sqrt(2) * math.cos(k * math.pi / 16) for k in (1, 2, 3, 5, 6, 7))
    both, a, b, c, d = (round(8192 * f) for f in (c3, c7 - c3, -c1 - c3, -c3 - c5, c5 - c3))
    own = [round(8192 * f) for f in (c5 + c3 - c1 - c7, c1 + c3 - c5 + c7, c1 + c3 + c5 - c7, c1 + c3 - c5 - c7)]
    odd = [  # of coefficients 7, 5, 3, 1 on the differences of places 3, 2, 1, 0
        [own[0] + a + c + both, both, c + both, a + both],
        [both, own[1] + b + d + both, b + both, d + both],
        [c + both, b + both, own[2] + b + c + both, both],
        [a + both, d + both, both, own[3] + a + d + both],
    ]
    small, near, far = round(8192 * c6), round(8192 * (c2 - c6)), round(8192 * (c2 + c6))
    even = [  # of coefficients 0, 2, 4, 6 on the sums of places 0 to 3
        [8192] * 4,
        [small + near, small, -small, -small - near],
        [8192, -8192, -8192, 8192],
        [small, small - far, far - small, -small],
    ]
    matrix = torch.zeros(8, 8, dtype=torch.float64)
    matrix[0::2, :4] = torch.tensor(even, dtype=torch.float64)
    matrix[1::2, :4] = torch.tensor(odd, dtype=torch.float64).flip(0, 1)
    matrix[:, 4:] = matrix[:, :4].flip(1)
    matrix[1::2, 4:] *= -1
    return matrix


@lru_cache(maxsize=16)
def _table(base: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """(8, 8), whole: ``base`` scaled as libjpeg does for a ``quality`` of 1 to 100."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = (torch.tensor(base) * percent + 50) // 100
    return table.clamp_(1, 255).double()
