"""How far off a radius may be: the one error model of every route to it.

An eigenvalue moves by its condition number times what its matrix may be off by (`moved`): the residual of the Ritz
pair, and the rounding of attention (`rounding`) times the size of H. Those of the weights move by their rounding
(`eigenvalues_and_errors`). A margin counts where it is several times both (`SAFETY`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.small_matrices import eigenvalues_and_conditions

SAFETY = 4.0
"""An estimated error must be this many times smaller than the margin: first-order estimates are not bounds."""
SUSPICIOUS = 1e3
"""From this condition number on, an eigenvalue of A is not believed."""
DEFECTIVE = 0.05
"""Weights whose eigenvalues are known no better than this, relative to the radius, leave the verdict undecided."""
ROUNDINGS = 4.0
"""The error of a softmax in units in the last place: of its exponentials, their sum and the quotient."""


def rounding(A: AttentionOperator) -> Tensor:
    """A bound on the norm of each A's rounding error, ``(items,)``."""
    unit = ROUNDINGS * A.rounding
    if isinstance(A, DenseAttention):
        return unit * torch.linalg.matrix_norm(A.A)
    return torch.full(A.batch_shape, unit * math.sqrt(A.tokens), dtype=A.dtype, device=A.device)


def moved(condition: Tensor, change: Tensor, size: Tensor, dimension: int) -> Tensor:
    """How far an eigenvalue moves when its matrix, of norm `size` and `dimension`, changes by `change`.

    To first order, but no further than Elsner's bound allows, which holds for defective eigenvalues too.
    """
    power = 1 / max(1, dimension)
    return torch.minimum(condition * change, 2 * torch.maximum(size, change) ** (1 - power) * change**power)


def error_of_pairs(A: AttentionOperator, blur: Tensor, slope: Tensor, condition: Tensor, residual: Tensor) -> Tensor:
    """How far ``|base + λ (t − s)|`` may be off, ``(items,)``, for a t of this condition.

    slope: |λ|; blur: A's `rounding`; residual: of the Ritz pair, times |λ|.
    """
    size = slope * blur / (ROUNDINGS * A.rounding)  # |λ| ‖A‖
    return moved(condition, residual + slope * blur, size, A.tokens - 1)


def eigenvalues_and_errors(M: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """All eigenvalues of each matrix, ``(..., m)``, and estimates of how far rounding to ε of M's norm moves each.

    Estimated for all, since an ill-conditioned eigenvalue that seems not to matter may in truth be the largest.
    """
    values, lengths = eigenvalues_and_conditions(M)
    lengths = torch.where(lengths.isfinite(), lengths, 1 / eps)
    return values, torch.linalg.matrix_norm(M)[..., None] * (eps * lengths).clamp(max=eps ** (1 / M.shape[-1]))
