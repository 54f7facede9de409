"""Snow, frost, fog, the brightness of the day, and spatter: drops of water or specks of mud on the lens.

Frost's photographs and their licences stay with their owners: where the user has none (official.py), five textures are
made, with the colours, contrast and roughness of frosted panes seen small. Their means and deviations per channel are
those measured on the five photographs that the published script picks from (at its fifth of their size), so that frost
weighs on a picture as much as the official one does; the ice is made here.

The relief of spatter's water is drawn as published by a chain of OpenCV's steps (edges, distance to them, equalisation,
an embossing filter); each is written here for a whole batch, in the same whole-number arithmetic.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.noise_blur import streaked
from oversmooth_papers.tasks.images.corruptions.official import FrostPictures
from oversmooth_papers.tasks.images.corruptions.pixels import (
    blurred,
    correlated,
    edge,
    magnified,
    mirror,
    separable,
    truncated,
    zoom_map,
)

_SIDE = 128

# Mean and deviation of red, green and blue, 0 to 255. The script's second and third photographs are alike.
_PANES = (
    ((77.5, 149.0, 165.7), (26.8, 16.4, 15.3)),
    ((200.8, 205.4, 214.5), (21.4, 22.1, 22.6)),
    ((200.8, 205.4, 214.5), (21.4, 22.1, 22.6)),
    ((138.0, 153.2, 165.6), (29.0, 29.0, 30.2)),
    ((112.3, 123.3, 134.7), (44.3, 43.2, 41.6)),
)

_WATER, _MUD = (175, 238, 238), (63, 42, 20)
_EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_BOX = torch.ones(3, 3, dtype=torch.int64)
_FURTHEST = 20  # the published truncation, in pixels
_ONE, _SLANTED, _KNIGHT = 65536, 91750, 143976  # 1, 1.4 and 2.1969 in units of 2⁻¹⁶


def snow(images: Tensor, draw: CorruptionDraws, *settings: float) -> Tensor:
    """A whitened picture under flakes that fall in a streak, and the same flakes turned upside down."""
    mean, sigma, zoom, threshold, radius, streak, kept = settings
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


@lru_cache(maxsize=1)
def frost_textures() -> Tensor:
    """(5, 3, side, side), uint8, on the CPU; each continues at its other side."""
    ice = _ice(CorruptionDraws("frost textures", 0, len(_PANES), torch.device("cpu")))
    colours = torch.tensor(_PANES, dtype=torch.float64)[..., None, None]
    return (colours[:, 0] + colours[:, 1] * ice[:, None]).round_().clamp_(0, 255).to(torch.uint8)


def _ice(draw: CorruptionDraws) -> Tensor:
    """(n, side, side), mean 0 and deviation 1: needles in several directions, in patches, over soft clouds."""
    down, right = torch.fft.fftfreq(_SIDE, dtype=torch.float64)[:, None], torch.fft.rfftfreq(_SIDE, dtype=torch.float64)
    needles = []
    for turn in torch.arange(5, dtype=torch.float64) * torch.pi / 5 + 0.3:
        along, across = right * turn.cos() + down * turn.sin(), down * turn.cos() - right * turn.sin()
        field = _filtered(draw, torch.exp(-((along * 25) ** 2) - (across * 3.5) ** 2))
        needles.append(torch.exp(-4 * field.abs()))  # bright where the field changes sign: thin lines that branch
    lines = _standard(torch.stack(needles).amax(dim=0))
    radius = torch.hypot(down, right)
    patches, clouds = (_filtered(draw, torch.exp(-((radius * 60) ** 2))) for _ in range(2))
    fine = lines + 0.5 * _filtered(draw, 1 / (radius + 0.05))
    return _standard(_standard(fine * (1.5 + patches).clamp(0.4, 3)) + 0.5 * clouds)


def _filtered(draw: CorruptionDraws, gains: Tensor) -> Tensor:
    return _standard(torch.fft.irfft2(torch.fft.rfft2(draw.normal(_SIDE, _SIDE)) * gains, s=(_SIDE, _SIDE)))


def _standard(field: Tensor) -> Tensor:
    centred = field - field.mean(dim=(-2, -1), keepdim=True)
    return centred / centred.std(dim=(-2, -1), keepdim=True)


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


def spatter(images: Tensor, draw: CorruptionDraws, *settings: float) -> Tensor:
    """Water adds its colour where its relief is high; mud covers."""
    mean, sigma, smooth, threshold, amount, mud = settings
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
