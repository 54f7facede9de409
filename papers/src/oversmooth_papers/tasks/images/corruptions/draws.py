"""Random numbers that belong to an image by its number, whatever the batch, the device or the machine.

torch's generators are streams: image 7 would change with the batch size, and differ between CPU and GPU. Here each
number is a hash of (label, image, position), by SplitMix64 (Steele, Lea & Flood 2014): whole-number arithmetic alone,
so the bits are equal on every device, and a batch is one tensor operation. Not for cryptography.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_STEP, _FIRST, _SECOND = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class CorruptionDraws:
    """The random numbers of images ``start`` to ``start + count - 1`` under one label; each call gives fresh ones."""

    def __init__(self, label: str, start: int, count: int, device: torch.device) -> None:
        origin = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little", signed=True)
        self._keys = mixed_bits(torch.arange(start, start + count, device=device) * _STEP + origin)
        self._used = 0

    def uniform(self, *shape: int) -> Tensor:
        """(n, *shape), float64, strictly between 0 and 1: the middles of 2³² equal cells."""
        count = math.prod(shape)
        high, low = self._halves((count + 1) // 2)
        return torch.cat((high, low), dim=1)[:, :count].reshape(-1, *shape)

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        return self.uniform(*shape) * (high - low) + low

    def below(self, bound: int, *shape: int) -> Tensor:
        """(n, *shape), int64, 0 to ``bound - 1``; even to 2⁻³²."""
        return (self.uniform(*shape) * bound).long()

    def normal(self, *shape: int) -> Tensor:
        """(n, *shape), float64, mean 0 and variance 1, by Box and Muller's pairs; none lies beyond 6.7."""
        count = math.prod(shape)
        high, low = self._halves((count + 1) // 2)
        radius, turn = high.log_().mul_(-2).sqrt_(), low.mul_(2 * math.pi)
        pairs = torch.cat((radius * turn.cos(), radius * turn.sin()), dim=1)
        return pairs[:, :count].reshape(-1, *shape)

    def _halves(self, count: int) -> tuple[Tensor, Tensor]:
        """The upper and the lower 32 bits of ``count`` words per image, as numbers between 0 and 1."""
        places = torch.arange(self._used + 1, self._used + count + 1, device=self._keys.device)
        self._used += count
        words = mixed_bits(self._keys[:, None] + places * _STEP)
        high, low = _shifted(words, 32).double(), (words & 0xFFFFFFFF).double()
        return high.add_(0.5).mul_(2.0**-32), low.add_(0.5).mul_(2.0**-32)


def mixed_bits(words: Tensor) -> Tensor:
    """SplitMix64's finisher on int64, which wraps as unsigned 64-bit numbers do."""
    words = (words ^ _shifted(words, 30)).mul_(_FIRST)
    words = (words ^ _shifted(words, 27)).mul_(_SECOND)
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, places: int) -> Tensor:
    """Right shift that brings in zeros; torch's own repeats the sign."""
    return (words >> places).bitwise_and_((1 << (64 - places)) - 1)
