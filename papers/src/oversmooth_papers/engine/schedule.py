"""The learning rate of every step: warm-up and half a cosine, by step or by epoch, or a power of what is left."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def learning_rates(lr: float, warmup: int, cosine: int) -> Tensor:
    """``(warmup + cosine,)`` float64, numbers of steps in. Step 0 of a warm-up does nothing: it is from 0.

    >>> learning_rates(1.0, 2, 4)
    tensor([0.0000, 0.5000, 1.0000, 0.8536, 0.5000, 0.1464], dtype=torch.float64)
    """
    rising = torch.arange(warmup, dtype=torch.float64) / max(1, warmup)
    falling = (1 + torch.cos(torch.arange(cosine, dtype=torch.float64) * (math.pi / max(1, cosine)))) / 2
    return lr * torch.cat([rising, falling])


def by_epoch(lr: float, epochs: int, warmup: int, *, first: float, last: float) -> Tensor:
    """``(epochs,)`` float64: a warm-up from ``first`` as the first of them, and a cosine of all down to ``last``.

    So the cosine begins where the warm-up ends, a little below its height.

    >>> by_epoch(1.0, 4, 2, first=0.0, last=0.0)
    tensor([0.0000, 0.5000, 0.5000, 0.1464], dtype=torch.float64)
    """
    epoch = torch.arange(epochs, dtype=torch.float64)
    falling = last + (lr - last) * (1 + torch.cos(epoch * (math.pi / epochs))) / 2
    return torch.where(epoch < warmup, first + epoch * ((lr - first) / max(1, warmup)), falling)


def polynomial(lr: float, steps: int, power: float) -> Tensor:
    """``(steps,)`` float64: the share of steps that are left, to this power, times lr.

    >>> polynomial(1.0, 4, 1.0)
    tensor([1.0000, 0.7500, 0.5000, 0.2500], dtype=torch.float64)
    """
    return lr * (1 - torch.arange(steps, dtype=torch.float64) / max(1, steps)) ** power
