"""Affine moves of a batch of images, each its own, sampled as Pillow does. One gather for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Move(NamedTuple):
    """Where each pixel of an image comes from: ``x' = xx x + xy y + x0`` and so on. ``(b,)`` each.

    Six tensors and not one matrix: stacking them would cost a compiled step a launch or two.
    """

    xx: Tensor
    xy: Tensor
    x0: Tensor
    yx: Tensor
    yy: Tensor
    y0: Tensor


def rotation(degrees: Tensor, height: int, width: int) -> Move:
    """The image turned counter-clockwise about its middle. ``(b,) -> (b,)`` each."""
    angle = -torch.deg2rad(degrees)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    x, y = width / 2, height / 2
    return Move(cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)


def warp(images: Tensor, move: Move, cubic: Tensor, fill: Tensor) -> Tensor:
    """``Image.transform(AFFINE)``: bilinear, or bicubic where ``cubic``; ``fill`` where a pixel comes from outside.

    ``images`` (b, c, h, w) uint8, ``move`` with pixel centres at halves, ``cubic`` (b,) bool, ``fill`` (c,) int32 ->
    (b, c, h, w) int32. Pillow cuts hard at the border and its cubic's parameter is −1; torch's grid_sample has neither.
    """
    count, channels, height, width = images.shape
    xx, xy, x0, yx, yy, y0 = (entry[:, None, None] for entry in move)
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    across, down = xx * x + xy * y + x0, yx * x + yy * y + y0
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)

    tap = torch.arange(-1, 3, device=images.device)
    columns, right = _taps(across, tap, width)
    rows, lower = _taps(down, tap, height)
    index = rows[:, :, None] * width + columns[:, None]  # (b, 4, 4, h, w)
    index = index.view(count, 1, -1).expand(-1, channels, -1)
    taps = images.flatten(2).gather(2, index).view(count, channels, 4, 4, height, width).float()

    curved = cubic[:, None, None, None].float()
    lines = _between(taps.unbind(3), right[:, None, None], curved[..., None])
    value = _between(lines.unbind(2), lower[:, None], curved)
    value = value.clamp(0, 255).to(torch.int32)  # truncated, as Pillow does
    return torch.where(inside[:, None], value, fill[:, None, None])


def _taps(position: Tensor, tap: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The four pixels about each place ``(b, 4, h, w)``, the border's repeated, and how far beyond the second it is."""
    position = position - 0.5
    first = position.floor()
    pixels = first.long()[:, None] + tap[:, None, None]
    return pixels.clamp(0, size - 1), position - first


def _between(taps: Sequence[Tensor], part: Tensor, curved: Tensor) -> Tensor:
    """The value ``part`` of the way from the second to the third of four; a line, or where curved 1 a cubic.

    In this form and not as a weighted sum, so that equal taps give their value exactly: it is truncated later.
    """
    a, b, c, d = taps
    slope = (c - b) + curved * (b - a)
    second = curved * (2 * (a - b) + c - d)
    third = curved * (b - a + d - c)
    return b + part * (slope + part * (second + part * third))
