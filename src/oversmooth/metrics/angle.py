"""Angle convergence: how parallel tokens are (THEORY §2, notion 2)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oversmooth.metrics._tokens import largest, prepare, safe_sqrt
from oversmooth.safety import arguments

# Entries of one block of pairwise cosines: 4 MiB in float32 stay in the cache of a CPU; elsewhere launches cost more.
_BLOCK, _LARGE_BLOCK = {"cpu": 1 << 20}, 1 << 26


def cosine(x: Tensor, absolute: bool = False, *, mask: Tensor | None = None) -> Tensor:
    """Mean cosine, or mean absolute cosine, over all pairs of different tokens.

    The two differ when tokens lie on one line but point both ways, as under a sharpening eigenvector of mixed signs.
    A token of length zero has no direction and is in no pair.

    The signed mean needs no array of pairs; the absolute one is summed in blocks of rows, recomputed in the backward
    pass, so memory grows linearly with n for both.

    Args:
        x: ``(..., n, d)``, tokens by features.
        absolute: True for the mean of absolute cosines.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

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
    if absolute:
        total = sums_over_tokens(unit, unit, torch.ones_like(unit[..., :1]).mT, Tensor.abs_).sum((-2, -1))
    else:
        total = unit.sum(-2).square().sum(-1)
    return over_pairs(total - with_itself, tokens, 0.0 if absolute else -1.0)


def over_pairs(summed: Tensor, tokens: Tensor, least: float) -> Tensor:
    """The mean of a sum of cosines over the pairs of so many tokens; NaN where there is no pair."""
    pairs = tokens * (tokens - 1)
    # A mean of cosines is one too, but its sums round: parallel tokens in float32 come to as much as 1.0000005.
    return torch.where(pairs > 0, (summed / pairs.clamp(min=1)).clamp(least, 1.0), torch.nan)


def sums_over_tokens(x: Tensor, others: Tensor, weights: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """``Σ_i w_i f(x_i · y_j)``, in blocks of rows that are computed anew in the backward pass.

    Args:
        x: ``(..., n, d)``.
        others: ``(..., m, d)``: y.
        weights: ``(..., w, n)``.
        of: f, which may write into its argument.

    Returns:
        ``(..., w, m)``
    """
    n, m = x.shape[-2], others.shape[-2]
    leading, block = x.shape[:-2], _BLOCK.get(x.device.type, _LARGE_BLOCK)
    rows, arrays = max(1, min(n, block // max(1, m))), max(1, block // max(1, n * m))
    again = torch.is_grad_enabled() and x.requires_grad and rows < n

    def part(x: Tensor, weights: Tensor, columns: Tensor) -> Tensor:
        products = of(x @ columns)
        return (weights.to(products.dtype) @ products).to(weights.dtype)

    sums = []
    flat = [array.reshape(leading.numel(), *array.shape[-2:]).split(arrays) for array in (x, weights, others)]
    for some, their_weights, some_others in zip(*flat, strict=True):
        total = their_weights.new_zeros(*their_weights.shape[:-1], m)
        # Laid out so, products on a CPU are a fifth faster; a GPU takes longer to turn the array than to multiply it.
        columns = some_others.mT if x.is_cuda else some_others.mT.contiguous()
        for rows_of in zip(some.split(rows, 1), their_weights.split(rows, 2), strict=True):
            given = (*rows_of, columns)
            total = total + (
                checkpoint(part, *given, use_reentrant=False, preserve_rng_state=False) if again else part(*given)
            )
        sums.append(total)
    return torch.cat(sums).reshape(*leading, *weights.shape[-2:-1], m)
