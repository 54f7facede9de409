"""What several corruptions share: grey levels to bytes, borders, separable linear maps, sampling between pixels.

All is float64: it is what the published procedure used, TF32 settings do not touch it, and it leaves CPU and GPU so
close together that bytes differ only where a value falls within rounding error of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

# Far above float64's rounding error on grey levels and far below anything visible: a value that is whole but for
# rounding keeps its level, so that a grey picture stays grey on every device.
_SLACK = 1e-6

Border = Callable[[Tensor, int], Tensor]


def truncated(values: Tensor) -> Tensor:
    """Grey levels to bytes, towards zero, as the published script casts."""
    return (values + _SLACK).clamp_(0, 255).to(torch.uint8)


def rounded(values: Tensor) -> Tensor:
    """Grey levels to bytes, to the nearest, halves up."""
    return (values + (0.5 + _SLACK)).clamp_(0, 255).to(torch.uint8)


def edge(index: Tensor, size: int) -> Tensor:
    """aaa|abcd|ddd: scipy's "nearest"."""
    return index.clamp(0, size - 1)


def mirror(index: Tensor, size: int) -> Tensor:
    """dcb|abcd|cba: OpenCV's default, "reflect 101"."""
    index = index.abs() % max(2 * size - 2, 1)
    return torch.minimum(index, (2 * size - 2) - index)


def reflect(index: Tensor, size: int) -> Tensor:
    """cba|abcd|dcb: scipy's "reflect"."""
    index = index % (2 * size)
    return torch.minimum(index, 2 * size - 1 - index)


def grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (h, 1) and columns (w,) of (..., h, w), int64."""
    height, width = images.shape[-2:]
    return torch.arange(height, device=images.device)[:, None], torch.arange(width, device=images.device)


def extended(images: Tensor, margin: int, border: Border) -> Tensor:
    """(..., h, w) -> (..., h + 2 margin, w + 2 margin), for any type of number."""
    height, width = images.shape[-2:]
    rows = border(torch.arange(-margin, height + margin, device=images.device), height)
    columns = border(torch.arange(-margin, width + margin, device=images.device), width)
    return images[..., rows, :][..., columns]


def correlated(images: Tensor, taps: Tensor, border: Border = mirror) -> Tensor:
    """(..., h, w) with each pixel replaced by the sum of its neighbours times ``taps`` (k, k), k odd and small."""
    height, width = images.shape[-2:]
    wide = extended(images, len(taps) // 2, border)
    out = torch.zeros_like(images)
    for down, row in enumerate(taps.tolist()):
        for right, tap in enumerate(row):
            if tap:
                out.add_(wide[..., down : down + height, right : right + width], alpha=tap)
    return out


def separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows X columnsᵀ for each (..., h, w); rows (h', h), columns (w', w)."""
    return rows.to(images.device) @ (images @ columns.to(images.device).mT)


def blurred(images: Tensor, sigma: float, *, reach: float = 4.0, border: Border = edge) -> Tensor:
    """A Gaussian of ``sigma`` cut at ``reach`` sigmas; by default as skimage's."""
    height, width = images.shape[-2:]
    return separable(images, _gaussian_map(height, sigma, reach, border), _gaussian_map(width, sigma, reach, border))


@lru_cache(maxsize=64)
def _gaussian_map(size: int, sigma: float, reach: float, border: Border) -> Tensor:
    radius = int(reach * sigma + 0.5)
    if not radius:
        return torch.eye(size, dtype=torch.float64)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    places = torch.arange(size)[:, None] + offsets
    return torch.zeros(size, size, dtype=torch.float64).scatter_add_(
        1, border(places, size), (weights / weights.sum()).expand(size, -1)
    )


def magnified(size: int, factor: float) -> tuple[int, int]:
    """How many middle pixels of ``size`` are taken, and how many they become."""
    crop = math.ceil(size / factor)
    return crop, round(crop * factor)


@lru_cache(maxsize=256)
def zoom_map(size: int, crop: int, grown: int) -> Tensor:
    """(size, size): the middle ``crop`` pixels made ``grown`` by linear interpolation, as scipy's zoom, cut to size."""
    places = torch.linspace(0, crop - 1, grown, dtype=torch.float64)[(grown - size) // 2 :][:size]
    low = places.floor().clamp_(max=max(crop - 2, 0))
    share, low = places - low, low.long() + (size - crop) // 2
    rows = torch.arange(size)
    out = torch.zeros(size, size, dtype=torch.float64)
    out[rows, low] = 1 - share
    out[rows, (low + 1).clamp_(max=size - 1)] += share
    return out


def sampled(images: Tensor, down: Tensor, right: Tensor, border: Border) -> Tensor:
    """Linear interpolation of ``images`` (n, c, h, w) at the places ``down``, ``right`` (n, h, w), in pixels."""
    height, width = images.shape[-2:]
    top, left = down.floor(), right.floor()
    low, near = (down - top)[:, None], (right - left)[:, None]
    top, left = top.long(), left.long()
    above, below = (border(row, height) * width for row in (top, top + 1))
    west, east = border(left, width), border(left + 1, width)
    upper = taken(images, above + west) * (1 - near) + taken(images, above + east) * near
    lower = taken(images, below + west) * (1 - near) + taken(images, below + east) * near
    return upper * (1 - low) + lower * low


def taken(images: Tensor, index: Tensor) -> Tensor:
    """(n, c, h, w), each pixel fetched from the place that ``index`` (n, h, w) gives as row · w + column."""
    n, channels, height, width = images.shape
    flat = index.reshape(n, 1, height * width).expand(-1, channels, -1)
    return images.reshape(n, channels, -1).gather(2, flat).view(images.shape)
