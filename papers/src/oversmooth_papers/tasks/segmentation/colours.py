"""Colours distorted as is usual for segmentation: brightness, contrast, saturation and hue, each for half the images.

Brightness is moved by up to 32 of 255; contrast, before the other two or after them, and saturation are multiplied by
0.5 to 1.5; hue is turned by up to a tenth of the circle. A pure function of its random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIFORMS = 9
"""Random numbers per image."""
_BRIGHTNESS, _FACTOR, _TURN = 32.0, (0.5, 1.5), 0.1


def distorted(pixels: Tensor, uniform: Tensor) -> Tensor:
    """``(b, 3, h, w)`` from 0 to 255, ``(b, 9)`` from 0 to 1 ``-> (b, 3, h, w)`` from 0 to 255."""
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
