"""Corruptions by noise, where each value gets its own, and by blur (with motion's streak, which snow uses too)."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.pixels import (
    blurred,
    correlated,
    edge,
    magnified,
    rounded,
    separable,
    taken,
    truncated,
    zoom_map,
)


def gaussian_noise(images: Tensor, draw: CorruptionDraws, sigma: float) -> Tensor:
    return truncated(draw.normal(*images.shape[1:]).mul_(255 * sigma).add_(images))


def speckle_noise(images: Tensor, draw: CorruptionDraws, sigma: float) -> Tensor:
    return truncated(draw.normal(*images.shape[1:]).mul_(sigma).add_(1).mul_(images))


def impulse_noise(images: Tensor, draw: CorruptionDraws, share: float) -> Tensor:
    chance = draw.uniform(*images.shape[1:])
    peppered = images.masked_fill(chance < share / 2, 0)
    return peppered.masked_fill_(chance >= 1 - share / 2, 255)


def shot_noise(images: Tensor, draw: CorruptionDraws, photons: int) -> Tensor:
    """Poisson counts by inverting their distribution: 256 grey levels, hence 256 distributions, laid end to end.

    A sampler that rejects would use a varying number of draws, and image i would no longer have its own.
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


def gaussian_blur(images: Tensor, _draw: CorruptionDraws, sigma: float) -> Tensor:
    return truncated(blurred(images.double(), sigma))


def defocus_blur(images: Tensor, _draw: CorruptionDraws, radius: float, softness: float) -> Tensor:
    return truncated(correlated(images.double(), disk(radius, softness)))


def disk(radius: float, softness: float) -> Tensor:
    """(k, k): the pixels within ``radius`` of the middle, evenly, softened by a Gaussian of three taps."""
    reach = int(radius) + 1
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).double()
    soft = torch.exp(-0.5 * (torch.arange(-1, 2, dtype=torch.float64) / softness) ** 2)
    soft = soft / soft.sum()
    kernel = correlated(inside / inside.sum(), soft[:, None] * soft, edge)
    return kernel.where(kernel > 1e-12, 0)


def glass_blur(images: Tensor, draw: CorruptionDraws, sigma: float, _reach: int, rounds: int) -> Tensor:
    """Blurred, its pixels moved about, blurred again.

    The published loop goes from the last pixel to the third and, meaning to swap a pixel with one that is up to 1 away
    (the published reach), copies it instead: its two sides are views of one array. The offsets are -1 or 0, so what it
    reads it has not yet written, and the whole loop is one fetch.
    """
    height, width = images.shape[-2:]
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    moves = (rows[:, None] > 1) & (columns > 1)
    out = truncated(blurred(images.double(), sigma))
    for _ in range(int(rounds)):
        step = draw.below(4, height, width) * moves
        up, left = step // 2, step % 2
        out = taken(out, (rows[:, None] - up) * width + columns - left)
    return truncated(blurred(out.double(), sigma))


def motion_blur(images: Tensor, draw: CorruptionDraws, radius: float, sigma: float) -> Tensor:
    return streaked(images, radius, sigma, draw.between(-45, 45))


def streaked(images: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """(n, c, h, w) blurred along ``degrees`` (n,), to one side, as ImageMagick's motion blur.

    2 radius + 1 taps of half a Gaussian, one pixel apart along the line, each at the nearest pixel.
    """
    height, width = images.shape[-2:]
    taps = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * math.ceil(radius) + 1)]
    rows = torch.arange(height, device=images.device)[:, None]
    columns = torch.arange(width, device=images.device)
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
