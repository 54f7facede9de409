"""The corruptions, one function each: images (n, 3, h, w) uint8, their draws and the settings -> the same shape.

Frost's photographs and their licences stay with their owners: where the user has none (official.py), five textures are
made, with the colours, contrast and roughness of frosted panes seen small. Their means and deviations per channel are
those measured on the five photographs that the published script picks from (at its fifth of their size), so that frost
weighs on a picture as much as the official one does; the ice is made here.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.corruptions import jpeg
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.official import FrostPictures
from oversmooth_papers.tasks.images.corruptions.pixels import (
    blurred,
    correlated,
    edge,
    grid,
    magnified,
    mirror,
    reflect,
    rounded,
    sampled,
    separable,
    taken,
    truncated,
    zoom_map,
)

_SIDE = 128  # of a texture of frost
# Mean and deviation of red, green and blue, 0 to 255. The script's second and third photographs are alike.
_PANES = (
    ((77.5, 149.0, 165.7), (26.8, 16.4, 15.3)),
    ((200.8, 205.4, 214.5), (21.4, 22.1, 22.6)),
    ((200.8, 205.4, 214.5), (21.4, 22.1, 22.6)),
    ((138.0, 153.2, 165.6), (29.0, 29.0, 30.2)),
    ((112.3, 123.3, 134.7), (44.3, 43.2, 41.6)),
)


# --- Noise: each value gets its own -----------------------------------------------------------------------------------


def gaussian_noise(images: Tensor, draw: CorruptionDraws, sigma: float) -> Tensor:
    """sigma: as a share of the range."""
    return truncated(draw.normal(*images.shape[1:]).mul_(255 * sigma).add_(images))


def impulse_noise(images: Tensor, draw: CorruptionDraws, share: float) -> Tensor:
    """share: of values that turn black or white."""
    chance = draw.uniform(*images.shape[1:])
    peppered = images.masked_fill(chance < share / 2, 0)
    return peppered.masked_fill_(chance >= 1 - share / 2, 255)


def shot_noise(images: Tensor, draw: CorruptionDraws, photons: int) -> Tensor:
    """Poisson counts by inverting their distribution: 256 grey levels, hence 256 distributions, laid end to end.

    A sampler that rejects would use a varying number of draws, and image i would no longer have its own. photons: that
    white stands for.
    """
    ends, counts = _poisson_ends(int(photons))
    chance = draw.uniform(*images.shape[1:]).add_(images)  # level + chance: exact, and sorted as the ends are
    bin = torch.searchsorted(ends.to(images.device), chance)
    return counts.to(images.device)[bin]


@lru_cache(maxsize=8)
def _poisson_ends(photons: int) -> tuple[Tensor, Tensor]:
    """level + P(count <= k) for all levels and k, ascending (256 k,), and the grey level of each count, as long."""
    most = photons + 9 * math.isqrt(photons) + 20  # the draws have 32 bits: nothing lies beyond seven deviations
    levels = torch.arange(256, dtype=torch.float64)[:, None]
    counts = torch.arange(most, dtype=torch.float64)
    below = torch.special.gammaincc(counts + 1, levels * photons / 255)
    below[:, -1] = 1
    return (levels + below).flatten(), truncated(counts * 255 / photons).repeat(256)


# --- Blur -------------------------------------------------------------------------------------------------------------


def defocus_blur(images: Tensor, _draw: CorruptionDraws, radius: float, softness: float) -> Tensor:
    """Averaged over the pixels within ``radius``, evenly but for an edge softened by a Gaussian of three taps."""
    reach = int(radius) + 1
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).double()
    soft = torch.exp(-0.5 * (torch.arange(-1, 2, dtype=torch.float64) / softness) ** 2)
    soft = soft / soft.sum()
    disk = correlated(inside / inside.sum(), soft[:, None] * soft, edge)
    return truncated(correlated(images.double(), disk.where(disk > 1e-12, 0)))


def glass_blur(images: Tensor, draw: CorruptionDraws, sigma: float, _reach: int, rounds: int) -> Tensor:
    """Blurred, its pixels moved about, blurred again.

    The published loop goes from the last pixel to the third and, meaning to swap a pixel with one that is up to 1 away
    (the published reach), copies it instead: its two sides are views of one array. The offsets are -1 or 0, so what it
    reads it has not yet written, and the whole loop is one fetch.
    """
    height, width = images.shape[-2:]
    rows, columns = grid(images)
    moves = (rows > 1) & (columns > 1)
    out = truncated(blurred(images.double(), sigma))
    for _ in range(int(rounds)):
        step = draw.below(4, height, width) * moves
        up, left = step // 2, step % 2
        out = taken(out, (rows - up) * width + columns - left)
    return truncated(blurred(out.double(), sigma))


def motion_blur(images: Tensor, draw: CorruptionDraws, radius: float, sigma: float) -> Tensor:
    return _streaked(images, radius, sigma, draw.between(-45, 45))


def _streaked(images: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """(n, c, h, w) blurred along ``degrees`` (n,), to one side, as ImageMagick's motion blur.

    2 radius + 1 taps of half a Gaussian, one pixel apart along the line, each at the nearest pixel.
    """
    height, width = images.shape[-2:]
    taps = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * math.ceil(radius) + 1)]
    rows, columns = grid(images)
    turn = torch.deg2rad(degrees)[:, None, None]
    right, down = turn.cos(), turn.sin()
    out = torch.zeros(images.shape, dtype=torch.float64, device=images.device)
    for i, tap in enumerate(taps):
        share = tap / sum(taps)
        if share < 1e-10:  # beneath a byte's last bit however many there are
            break
        row = edge(rows + (i * down - 0.5).ceil().long(), height)
        column = edge(columns + (i * right - 0.5).ceil().long(), width)
        out.add_(taken(images, row * width + column), alpha=share)
    return rounded(out)


def zoom_blur(images: Tensor, _draw: CorruptionDraws, end: float) -> Tensor:
    """The mean of the picture and of its magnifications by 1, 1.01, ... as numpy.arange counts them up to ``end``."""
    height, width = images.shape[-2:]
    factors = np.arange(1, end, 0.01).tolist()
    # Several factors crop and grow a small picture alike: at 32 pixels 26 of them make 14 maps.
    alike = Counter((magnified(height, factor), magnified(width, factor)) for factor in factors)
    x = images.double()
    out = x.clone()
    for (rows, columns), times in alike.items():
        out.add_(separable(x, zoom_map(height, *rows), zoom_map(width, *columns)), alpha=times)
    return truncated(out.div_(len(factors) + 1))


# --- Weather ----------------------------------------------------------------------------------------------------------


def snow(images: Tensor, draw: CorruptionDraws, *settings: float) -> Tensor:
    """A whitened picture under flakes that fall in a streak, and the same flakes turned upside down.

    settings: mean, deviation, zoom and threshold of the flakes, radius and sigma of their streak, share of the picture.
    """
    mean, sigma, zoom, threshold, radius, streak, share = settings
    height, width = images.shape[-2:]
    flakes = draw.normal(height, width).mul_(sigma).add_(mean)
    flakes = separable(flakes, *(zoom_map(side, *magnified(side, zoom)) for side in (height, width)))
    flakes = truncated(flakes.where(flakes >= threshold, 0) * 255)
    flakes = _streaked(flakes[:, None], radius, streak, draw.between(-135, -45)).double()
    x = images.double()
    luminance = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    white = torch.maximum(x, luminance * 1.5 + 127.5)
    return truncated(share * x + (1 - share) * white + flakes + flakes.flip(-2, -1))


def frost(
    images: Tensor, draw: CorruptionDraws, share: float, strength: float, pictures: FrostPictures | None = None
) -> Tensor:
    """``share`` of the image and ``strength`` of a random window of one of five pictures: photographs, or textures.

    As published, the last place at each end of a photograph is left out.
    """
    size, precision = torch.tensor(images.shape[-2:]), torch.float64
    if pictures is None:  # textures go on at their other side
        rows, columns = (torch.arange(_SIDE + side) % _SIDE for side in images.shape[-2:])
        pictures = FrostPictures(frost_textures()[..., rows, :][..., columns], (_SIDE + size).expand(len(_PANES), 2))
        precision = torch.float32  # in which published figures have them
    places = pictures.sizes - size
    if int(places.min()) < 1:
        height, width = pictures.sizes[places.amin(dim=1).argmin()].tolist()
        what = f"images of {size[0]} by {size[1]} pixels do not fit into frost of {height} by {width}"
        raise InputError(f"{what}; give smaller images, or use the textures made here")
    which, down, right = draw.below(len(places)), draw.uniform(), draw.uniform()
    below, to_the_right = places.to(images.device)[which].unbind(dim=1)
    rows, columns = grid(images)
    rows = (down * below).long()[:, None, None] + rows
    columns = (right * to_the_right).long()[:, None, None] + columns
    window = pictures.pictures.to(images.device)[which[:, None, None], :, rows, columns].movedim(-1, 1)
    return truncated(share * images.double() + strength * window.to(precision))


@lru_cache(maxsize=1)
def frost_textures() -> Tensor:
    """(5, 3, side, side), uint8, on the CPU: needles in several directions, in patches, over soft clouds."""
    draw = CorruptionDraws("frost textures", 0, len(_PANES), torch.device("cpu"))
    down, right = torch.fft.fftfreq(_SIDE, dtype=torch.float64)[:, None], torch.fft.rfftfreq(_SIDE, dtype=torch.float64)

    def standard(field: Tensor) -> Tensor:
        centred = field - field.mean(dim=(-2, -1), keepdim=True)
        return centred / centred.std(dim=(-2, -1), keepdim=True)

    def filtered(gains: Tensor) -> Tensor:
        return standard(torch.fft.irfft2(torch.fft.rfft2(draw.normal(_SIDE, _SIDE)) * gains, s=(_SIDE, _SIDE)))

    needles = []
    for turn in torch.arange(5, dtype=torch.float64) * torch.pi / 5 + 0.3:
        along, across = right * turn.cos() + down * turn.sin(), down * turn.cos() - right * turn.sin()
        field = filtered(torch.exp(-((along * 25) ** 2) - (across * 3.5) ** 2))
        needles.append(torch.exp(-4 * field.abs()))  # bright where the field changes sign: thin lines that branch
    lines = standard(torch.stack(needles).amax(dim=0))
    radius = torch.hypot(down, right)
    patches, clouds = (filtered(torch.exp(-((radius * 60) ** 2))) for _ in range(2))
    fine = lines + 0.5 * filtered(1 / (radius + 0.05))
    ice = standard(standard(fine * (1.5 + patches).clamp(0.4, 3)) + 0.5 * clouds)
    colours = torch.tensor(_PANES, dtype=torch.float64)[..., None, None]
    return (colours[:, 0] + colours[:, 1] * ice[:, None]).round_().clamp_(0, 255).to(torch.uint8)


def fog(images: Tensor, draw: CorruptionDraws, thickness: float, decay: float) -> Tensor:
    """decay: how fast the fractal's detail fades."""
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


# --- Colours and shapes -----------------------------------------------------------------------------------------------


def brightness(images: Tensor, _draw: CorruptionDraws, added: float) -> Tensor:
    """HSV's value raised, hue and saturation kept: with those fixed, colours go in proportion to the value."""
    x = images.double()
    value = x.amax(dim=1, keepdim=True)
    raised = (value + 255 * added).clamp_(max=255)
    return truncated(torch.where(value > 0, x * (raised / value.clamp(min=1)), raised))


def contrast(images: Tensor, _draw: CorruptionDraws, share: float) -> Tensor:
    """kept: of the distance from each channel's mean."""
    x = images.double()
    mean = x.mean(dim=(2, 3), keepdim=True)
    return truncated((x - mean) * share + mean)


def elastic_transform(images: Tensor, draw: CorruptionDraws, length: float, smoothness: float, affine: float) -> Tensor:
    """A random affine map of the whole, then each pixel displaced by a smooth random field; in shares of the side.

    The map moves three corners of the middle, P0, P1 and P2 at a right angle, by up to ``affine``. With their images Q,
    the pixel Q1 + a (Q0 - Q1) + b (Q2 - Q1) shows what stood at P1 + a (P0 - P1) + b (P2 - P1).
    """
    height, width = images.shape[-2:]
    side, half = min(height, width), min(height, width) // 3
    rows, columns = grid(images)
    right, above = width // 2 + half, height // 2 - half  # P1; P0 is beneath it, P2 to its left
    moved = draw.between(-affine * side, affine * side, 3, 2)[..., None, None]
    x, y = columns - (right + moved[:, 1, 0]), rows - (above + moved[:, 1, 1])
    x0, y0 = moved[:, 0, 0] - moved[:, 1, 0], moved[:, 0, 1] - moved[:, 1, 1] + 2 * half
    x2, y2 = moved[:, 2, 0] - moved[:, 1, 0] - 2 * half, moved[:, 2, 1] - moved[:, 1, 1]
    area = x0 * y2 - x2 * y0
    a, b = (x * y2 - x2 * y) / area, (x0 * y - x * y0) / area
    out = sampled(images.double(), above + 2 * half * a, right - 2 * half * b, mirror)
    if length:
        fields = draw.between(-1, 1, 2, height, width)
        across, down = (length * side * blurred(fields, smoothness * side, reach=3, border=reflect)).unbind(dim=1)
        out = sampled(out, rows + down, columns + across, reflect)
    return truncated(out)


def pixelate(images: Tensor, _draw: CorruptionDraws, share: float) -> Tensor:
    """Made smaller and larger again by PIL's box filter, which rounds to bytes after each direction, columns first."""
    height, width = images.shape[-2:]
    across, columns = (part.to(images.device) for part in _boxes(width, int(width * share)))
    down, rows = (part.to(images.device) for part in _boxes(height, int(height * share)))
    narrow = rounded(images.double() @ across.mT)
    small = rounded(down @ narrow.double())
    return small[..., rows, :][..., columns]


def _boxes(size: int, small: int) -> tuple[Tensor, Tensor]:
    """(small, size): the mean of the pixels whose middles fall in each box; and (size,): the box each is shown from."""
    scale = size / small
    places = torch.arange(size, dtype=torch.float64) + 0.5
    middles = (torch.arange(small, dtype=torch.float64)[:, None] + 0.5) * scale
    within = (places - middles) / scale
    inside = ((within > -0.5) & (within <= 0.5)).double()
    return inside / inside.sum(dim=1, keepdim=True), (places / scale).long().clamp_(max=small - 1)


def jpeg_compression(images: Tensor, _draw: CorruptionDraws, quality: int) -> Tensor:
    return jpeg.recoded(images, quality)
