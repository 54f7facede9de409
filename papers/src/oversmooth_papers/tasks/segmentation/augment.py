"""From bytes to a training batch, on the device: image and mask scaled, cropped and mirrored alike, colours distorted.

The random numbers of a step are drawn up front; the rest is a pure function of them, fit for CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from oversmooth_papers.tasks.segmentation.data import IGNORE

CROP_UNIFORMS, COLOUR_UNIFORMS = 4, 9
"""Random numbers per image: scale, place down and across, mirrored or not; and those of `distorted`."""
_BRIGHTNESS, _FACTOR, _TURN = 32.0, (0.5, 1.5), 0.1


def crops(
    images: Tensor, masks: Tensor, uniform: Tensor, *, side: int, scales: tuple[float, float], flip: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Square parts of images that were scaled, and mirrored with probability ``flip``.

    ``(b, 3, h, w)`` uint8, masks ``(b, h, w)`` uint8 and ``(b, 4)`` from 0 to 1 ``-> (b, 3, side, side)`` floats from 0
    to 255; ``(b, side, side)`` int64, IGNORE beyond the image; and ``(b, side, side)``, whether a pixel lies in it.

    Where a scaled image is smaller than the crop, it begins at the crop's first row or column, and what lies beyond is
    no part of it. Pixels are squares: those of the image are interpolated bilinearly, those of the mask are the one
    that the new pixel's middle lies in.
    """
    height, width = images.shape[2:]
    scale, down, across, mirrored = uniform.unbind(1)
    scale = scales[0] + (scales[1] - scales[0]) * scale
    rows = _shares(scale * height, down, side)  # (b, side), of the image's height
    columns = _shares(scale * width, across, side)
    inside = (rows < 1)[:, :, None] & (columns < 1)[:, None, :]
    columns = torch.where((mirrored < flip)[:, None] & (columns < 1), 1 - columns, columns)
    x, y = torch.broadcast_tensors(columns[:, None, :], rows[:, :, None])
    grid = 2 * torch.stack([x, y], dim=-1) - 1
    pixels = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    row = (rows * height).long().clamp(0, height - 1)
    column = (columns * width).long().clamp(0, width - 1)
    index = (row[:, :, None] * width + column[:, None, :]).flatten(1)
    labels = masks.flatten(1).gather(1, index).view_as(inside).long()
    return pixels, torch.where(inside, labels, IGNORE), inside


def _shares(size: Tensor, place: Tensor, side: int) -> Tensor:
    """Where the middles of a crop's pixels lie in an image of this size, as shares of it: ``(b,) -> (b, side)``."""
    first = place * (size - side).clamp(min=0)
    middles = torch.arange(side, device=size.device) + 0.5
    return (first[:, None] + middles) / size[:, None]


def distorted(pixels: Tensor, uniform: Tensor) -> Tensor:
    """Colours as is usual for segmentation, each change for half the images.

    Brightness is moved by up to 32 of 255; contrast, before the other two or after them, and saturation are multiplied
    by 0.5 to 1.5; hue is turned by up to a tenth of the circle.

    ``(b, 3, h, w)`` from 0 to 255, ``(b, 9)`` from 0 to 1 ``-> (b, 3, h, w)`` from 0 to 255.
    """
    columns = uniform[:, :, None, None, None].unbind(1)
    brighter, brightness, first, harder, contrast, stronger, saturation, turned, turn = columns
    shift = torch.where(brighter < 0.5, _BRIGHTNESS * (2 * brightness - 1), 0.0)
    factor = torch.where(harder < 0.5, _between(contrast), 1.0)
    x = (pixels + shift).clamp(0, 255)
    x = (x * torch.where(first < 0.5, factor, 1.0)).clamp(0, 255)
    x = saturated(x, torch.where(stronger < 0.5, _between(saturation), 1.0))
    x = hue_turned(x, torch.where(turned < 0.5, _TURN * (2 * turn - 1), 0.0))
    return (x * torch.where(first < 0.5, 1.0, factor)).clamp(0, 255)


def _between(uniform: Tensor) -> Tensor:
    return _FACTOR[0] + (_FACTOR[1] - _FACTOR[0]) * uniform


def saturated(x: Tensor, factor: Tensor) -> Tensor:
    """``(b, 3, h, w)`` with the saturation of HSV times a factor, at most full; hue and value stay."""
    value, span = x.amax(1, keepdim=True), x.amax(1, keepdim=True) - x.amin(1, keepdim=True)
    most = value / span.clamp(min=1e-6)  # at which the least channel is 0
    return value - (value - x) * torch.minimum(factor, most)


def hue_turned(x: Tensor, turn: Tensor) -> Tensor:
    """``(b, 3, h, w)`` with the hue of HSV moved by a share of the circle; saturation and value stay."""
    value, span = x.amax(1), x.amax(1) - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = span.clamp(min=1e-6)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + 6 * turn[:, 0]
    channels = []
    for place in (5, 3, 1):  # of red, green and blue
        at = (place + hue) % 6
        channels.append(value - span * torch.minimum(at, 4 - at).clamp(0, 1))
    return torch.stack(channels, dim=1)


class Normalise:
    """``normalise(images)``: ``(..., 3, h, w)`` from 0 to 255, less the mean, over the spread."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        centre, spread = torch.tensor(mean, device=device), torch.tensor(std, device=device)
        self.scale = (1 / (255 * spread))[:, None, None]
        self.shift = -(centre / spread)[:, None, None]

    def __call__(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift
