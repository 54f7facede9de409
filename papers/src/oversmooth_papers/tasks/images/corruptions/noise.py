"""The four corruptions by noise: each value gets its own, independently of its neighbours and channels."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.pixels import truncated


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
