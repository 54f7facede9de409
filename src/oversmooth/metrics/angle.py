"""Angle convergence: how parallel tokens are (THEORY §2, notion 2)."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oversmooth.metrics._tokens import largest, prepare, safe_sqrt
from oversmooth.safety import arguments

# Entries of one block of pairwise cosines: 16 MiB in float32.
_BLOCK = 1 << 22


def cosine(x: Tensor, absolute: bool = False, *, mask: Tensor | None = None) -> Tensor:
    """Mean cosine, or mean absolute cosine, over all pairs of different tokens.

    The two differ when tokens lie on one line but point both ways, as under a sharpening eigenvector of mixed signs.
    A token of length zero has no direction and is in no pair.

    The signed mean needs no array of pairs; the absolute one is summed in blocks of rows, recomputed in the backward
    pass, so memory grows linearly with n for both.

    Args:
        x: ``(..., n, d)``, tokens by features.
        absolute: True for the mean of absolute cosines.
        mask: ``(..., n)``, true for the tokens that count; None: all of them.

    Returns:
        ``(...)``, 1 at most; NaN with fewer than two tokens that have a direction, or with NaN in x.

    >>> x = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]])
    >>> cosine(x), cosine(x, absolute=True)
    (tensor(-0.3333), tensor(0.3333))
    """
    x, _ = prepare(x, mask)
    absolute = arguments.flag(absolute, "absolute")
    x = x / largest(x, -1)
    length = safe_sqrt(x.square().sum(-1, keepdim=True))
    has_direction = length != 0
    unit = x / torch.where(has_direction, length, 1.0)
    tokens = has_direction.sum((-2, -1)).to(x.dtype)
    with_itself = unit.square().sum((-2, -1))
    total = _sum_of_absolute_cosines(unit) if absolute else unit.sum(-2).square().sum(-1)
    pairs = tokens * (tokens - 1)
    # A mean of cosines is one too, but its sums round: parallel tokens in float32 come to as much as 1.0000005.
    mean = ((total - with_itself) / pairs.clamp(min=1)).clamp(0.0 if absolute else -1.0, 1.0)
    return torch.where(pairs > 0, mean, torch.nan)


def _sum_of_absolute_cosines(unit: Tensor) -> Tensor:
    n = unit.shape[-2]
    arrays = unit.shape[:-2].numel()
    rows = max(1, min(n, _BLOCK // max(1, arrays * n)))

    def block(part: Tensor, unit: Tensor) -> Tensor:
        return (part @ unit.mT).abs().sum((-2, -1))

    total = unit.new_zeros(unit.shape[:-2])
    for part in unit.split(rows, dim=-2) if n else ():
        if torch.is_grad_enabled() and unit.requires_grad and rows < n:
            total = total + checkpoint(block, part, unit, use_reentrant=False, preserve_rng_state=False)
        else:
            total = total + block(part, unit)
    return total
