"""The learning rate of every step: linear from 0 over the warm-up, then half a cosine to 0."""

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
