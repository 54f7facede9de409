"""Rank collapse: how near tokens are to a rank-one array (THEORY §2, notion 3).

All four numbers come from the singular values, taken from the smaller of the two Gram matrices in float64: in
float32 a Gram matrix cannot see σ₂/σ₁ below 7e-4. In float64 the limit is `RESOLUTION`; what lies below it counts as
zero.
"""

import torch
from torch import Tensor

from oversmooth.metrics._tokens import largest, prepare, safe_sqrt

RESOLUTION = 1e-7
"""Singular values below this share of the largest cannot be told from zero through a float64 Gram matrix."""


def singular_values(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Singular values in float64, descending; NaN for an array with NaN. ``(..., n, d) -> (..., min(n, d))``.

    >>> singular_values(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    tensor([4., 3.], dtype=torch.float64)
    """
    x, mask = prepare(x, mask)
    if 0 in x.shape[-2:]:  # nothing there: as good as an array of zeros
        return torch.zeros(*x.shape[:-2], 1, dtype=torch.float64, device=x.device)
    x = x.double()
    finite = x.isfinite().all(-1).all(-1)
    x = torch.where(finite[..., None, None], x, 0.0)
    scale = largest(x, (-2, -1))
    x = x / scale
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    squares = torch.linalg.eigvalsh(gram).flip(-1)
    squares = torch.where(squares > RESOLUTION**2 * squares[..., :1], squares, 0.0)
    return torch.where(finite[..., None], safe_sqrt(squares) * scale[..., 0], torch.nan)


def sigma_ratio(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``σ₂/σ₁``: 0 for rank one (one token included), 1 at most; NaN for zeros. ``(..., n, d) -> (...)``.

    >>> sigma_ratio(torch.diag(torch.tensor([4.0, 3.0, 1.0])))
    tensor(0.7500)
    """
    return _as_input(ranks_of(singular_values(x, mask))["sigma_ratio"], x)


def rank_one_distance(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``‖X − X₁‖_F / ‖X‖_F`` with X₁ the best rank-one array. 0 for rank one; NaN for zeros. ``(..., n, d) -> (...)``.

    >>> rank_one_distance(torch.diag(torch.tensor([4.0, 3.0])))
    tensor(0.6000)
    """
    return _as_input(ranks_of(singular_values(x, mask))["rank_one_distance"], x)


def stable_rank(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``‖X‖_F² / ‖X‖₂²``: between 1 and the rank; NaN for zeros. ``(..., n, d) -> (...)``.

    >>> stable_rank(torch.diag(torch.tensor([4.0, 3.0])))
    tensor(1.5625)
    """
    return _as_input(ranks_of(singular_values(x, mask))["stable_rank"], x)


def effective_rank(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``exp`` of the entropy of ``σ/Σσ`` (Roy and Vetterli): 1 to the rank; NaN for zeros. ``(..., n, d) -> (...)``.

    >>> effective_rank(torch.eye(4)), effective_rank(torch.ones(4, 4))
    (tensor(4.), tensor(1.))
    """
    return _as_input(ranks_of(singular_values(x, mask))["effective_rank"], x)


def ranks_of(s: Tensor) -> dict[str, Tensor]:
    """All four numbers from singular values that are there already, ``(..., m) -> (...)`` each."""
    largest, share = s[..., :1], s / s.sum(-1, keepdim=True)
    squares = (s / largest).square()
    log_share = torch.log(torch.where(share == 0, 1.0, share))
    second = s[..., 1] if s.shape[-1] > 1 else torch.zeros_like(s[..., 0])
    return {
        "effective_rank": torch.exp(-(share * log_share).sum(-1)),
        "stable_rank": squares.sum(-1),
        "sigma_ratio": second / s[..., 0],
        "rank_one_distance": safe_sqrt(squares[..., 1:].sum(-1) / squares.sum(-1)),
    }


def _as_input(value: Tensor, x: Tensor) -> Tensor:
    return value.to(torch.promote_types(x.dtype, torch.float32))
