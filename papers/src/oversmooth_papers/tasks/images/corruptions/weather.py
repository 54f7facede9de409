"""Snow, frost and fog, and the brightness of the day.

Frost's photographs and their licences stay with their owners: where the user has none (frost_pictures.py), textures are
made (textures.py), and frosted pictures are like the official ones in brightness, colour and roughness alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.blur import streaked
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.frost_pictures import FrostPictures
from oversmooth_papers.tasks.images.corruptions.pixels import magnified, separable, truncated, zoom_map
from oversmooth_papers.tasks.images.corruptions.textures import frost_textures


def snow(
    images: Tensor,
    draw: CorruptionDraws,
    mean: float,
    sigma: float,
    zoom: float,
    threshold: float,
    radius: float,
    streak: float,
    kept: float,
) -> Tensor:
    """A whitened picture under flakes that fall in a streak, and the same flakes turned upside down."""
    height, width = images.shape[-2:]
    flakes = draw.normal(height, width).mul_(sigma).add_(mean)
    maps = (zoom_map(side, *magnified(side, zoom)) for side in (height, width))
    flakes = separable(flakes, *maps)
    flakes = truncated(flakes.where(flakes >= threshold, 0) * 255)
    flakes = streaked(flakes[:, None], radius, streak, draw.between(-135, -45)).double()
    x = images.double()
    white = torch.maximum(x, luminance(x) * 1.5 + 127.5)
    return truncated(kept * x + (1 - kept) * white + flakes + flakes.flip(-2, -1))


def luminance(images: Tensor) -> Tensor:
    """(n, 3, h, w) -> (n, 1, h, w)."""
    return 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]


def frost(
    images: Tensor, draw: CorruptionDraws, kept: float, strength: float, pictures: FrostPictures | None = None
) -> Tensor:
    """The picture under a random window of one of five: of the photographs, or of textures that continue at their other
    side.
    """
    height, width = images.shape[-2:]
    if pictures is not None:
        which = draw.below(len(pictures.pictures))
        window = pictures.windows(which, draw.uniform(), draw.uniform(), height, width)
        return truncated(kept * images.double() + strength * window.double())
    textures = frost_textures().to(images.device)
    kinds, _, side, _ = textures.shape
    which, top, left = draw.below(kinds), draw.below(side), draw.below(side)
    rows = (top[:, None] + torch.arange(height, device=images.device)) % side
    columns = (left[:, None] + torch.arange(width, device=images.device)) % side
    window = textures[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    return truncated(kept * images.double() + strength * window)


def fog(images: Tensor, draw: CorruptionDraws, thickness: float, decay: float) -> Tensor:
    height, width = images.shape[-2:]
    side = 1 << (max(height, width) - 1).bit_length()
    mist = plasma(draw, side, decay)[:, None, :height, :width]
    x = images.double()
    peak, most = x.amax(dim=(1, 2, 3), keepdim=True), 255 * thickness
    return truncated((x + most * mist) * peak / (peak + most))


def plasma(draw: CorruptionDraws, side: int, decay: float) -> Tensor:
    """(n, side, side), 0 to 1: fractal clouds by the diamond-square rule on a torus; ``side`` a power of two.

    Each halving of the step divides the wobble by ``decay``, and what is added goes with its square, as published.
    """
    wobble = 100.0

    def fill(rows: slice, columns: slice, four: Tensor) -> None:
        heights[:, rows, columns] = four / 4 + wobble * draw.between(-wobble, wobble, *four.shape[1:])

    first = draw.uniform(1, 1)
    heights = torch.zeros(len(first), side, side, dtype=first.dtype, device=first.device)
    step = side
    while step >= 2:
        grid, between = slice(0, None, step), slice(step // 2, None, step)
        corner = heights[:, grid, grid]
        across = corner + corner.roll(-1, 2)
        down = corner + corner.roll(-1, 1)
        fill(between, between, across + across.roll(-1, 1))
        centre = heights[:, between, between]
        fill(grid, between, centre + centre.roll(1, 1) + across)
        fill(between, grid, centre + centre.roll(1, 2) + down)
        step, wobble = step // 2, wobble / decay
    heights -= heights.amin(dim=(1, 2), keepdim=True)
    return heights / heights.amax(dim=(1, 2), keepdim=True)


def brightness(images: Tensor, _draw: CorruptionDraws, added: float) -> Tensor:
    """HSV's value raised, hue and saturation kept: with those fixed, colours go in proportion to the value."""
    x = images.double()
    value = x.amax(dim=1, keepdim=True)
    raised = (value + 255 * added).clamp_(max=255)
    return truncated(torch.where(value > 0, x * (raised / value.clamp(min=1)), raised))
