"""JPEG's loss without its files.

The steps of libjpeg's coder and decoder that change pixels, in its own whole-number arithmetic (colours, 4:2:0 chroma
and its smooth enlargement, the "islow" cosine transforms), held in float64 where matrices multiply: the bytes are those
of PIL's encoding and decoding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.pixels import edge, extended

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
# The cosine transform in units of 2⁻¹³; its inverse is the transpose. libjpeg factors it to save products (Loeffler,
# Ligtenberg & Moschytz 1989) and rounds the factors, so entries may be one off their own cosines.
_COSINES = (
    (8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260, -2260, -6437, -9633, -11363),
    (10703, 4433, -4433, -10703, -10703, -4433, 4433, 10703),
    (9633, -2259, -11362, -6436, 6436, 11362, 2259, -9633),
    (8192, -8192, -8192, 8192, 8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633, -9633, -2261, 11362, -6437),
    (4433, -10704, 10704, -4433, -4433, 10704, -10704, 4433),
    (2260, -6436, 9633, -11363, 11363, -9633, 6436, -2260),
)
# Luma and the two chromas of red, green and blue, and what is added before the shift; in units of 2⁻¹⁶.
_HALF, _MIDDLE = 1 << 15, (128 << 16) + (1 << 15) - 1
_YCC = ((19595, 38470, 7471, _HALF), (-11059, -21709, 32768, _MIDDLE), (32768, -27439, -5329, _MIDDLE))


def recoded(images: Tensor, quality: int) -> Tensor:
    """(n, 3, h, w), uint8, as PIL's JPEG by default: the standard's tables, chroma at half size."""
    height, width = images.shape[-2:]
    small = ((height + 1) // 2, (width + 1) // 2)
    # A last row or column is repeated to fill the blocks: columns before the chroma is halved, rows after it.
    red, green, blue = _padded(images.int(), 2, 16).unbind(dim=1)
    luma, *chroma = ((r * red + g * green + b * blue + added) >> 16 for r, g, b, added in _YCC)
    luma = _coded(_padded(luma, 8, 8), _LUMA, quality)[..., :height, :width]
    chroma = [_coded(_padded(_halved(c), 8, 8), _CHROMA, quality)[..., : small[0], : small[1]] for c in chroma]
    cb, cr = (_doubled(c)[..., :height, :width] - 128 for c in chroma)
    parts = (91881 * cr + _HALF, -22554 * cb - 46802 * cr + _HALF, 116130 * cb + _HALF)
    return torch.stack([luma + (part >> 16) for part in parts], dim=1).clamp_(0, 255).to(torch.uint8)


def _padded(planes: Tensor, rows: int, columns: int) -> Tensor:
    """(..., h, w) to whole multiples of ``rows`` and ``columns`` by repeating the last."""
    height, width = planes.shape[-2:]
    down = edge(torch.arange(-(-height // rows) * rows, device=planes.device), height)
    right = edge(torch.arange(-(-width // columns) * columns, device=planes.device), width)
    return planes[..., down, :][..., right]


def _halved(plane: Tensor) -> Tensor:
    """(n, h, w) -> (n, h/2, w/2): means of four, rounded down and up in turn so that neither wins."""
    n, height, width = plane.shape
    four = plane.view(n, height // 2, 2, width // 2, 2).sum(dim=(2, 4), dtype=plane.dtype)
    return (four + 1 + torch.arange(width // 2, device=plane.device, dtype=plane.dtype) % 2) >> 2


def _doubled(plane: Tensor) -> Tensor:
    """(n, h, w) -> (n, 2 h, 2 w): three parts of the nearest and one of the next, in both directions."""
    n, height, width = plane.shape
    wide = extended(plane, 1, edge)
    near = 3 * wide[:, 1:-1]
    tall = torch.stack((near + wide[:, :-2], near + wide[:, 2:]), dim=2).view(n, 2 * height, width + 2)
    near = 3 * tall[..., 1:-1]
    large = torch.stack((near + tall[..., :-2] + 8, near + tall[..., 2:] + 7), dim=3) >> 4
    return large.view(n, 2 * height, 2 * width)


def _coded(plane: Tensor, base: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """(n, h, w): what is left of each block of 8 by 8 when coefficients are multiples of the scaled ``base``'s."""
    n, height, width = plane.shape
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = ((torch.tensor(base) * percent + 50) // 100).clamp_(1, 255).double().to(plane.device)
    cosines = torch.tensor(_COSINES, dtype=torch.float64).to(plane.device)
    blocks = (plane - 128).double().view(n, height // 8, 8, width // 8, 8).transpose(2, 3)
    # Rows first, with two bits beyond the point, then columns; what comes out is eight times the transform.
    levels = _over(cosines @ _over(blocks @ cosines.mT, 11), 15)
    levels = ((levels.abs() + 4 * table) / (8 * table)).floor_().copysign_(levels)  # halves go away from zero
    blocks = _over(_over(cosines.mT @ (levels * table), 11) @ cosines, 18)
    return blocks.transpose(2, 3).reshape(n, height, width).add_(128).clamp_(0, 255).int()


def _over(values: Tensor, bits: int) -> Tensor:
    """Whole numbers over 2 to the ``bits``, to the nearest, halves up: exact, since the divisor is a power of two."""
    return values.mul_(2.0**-bits).add_(0.5).floor_()
