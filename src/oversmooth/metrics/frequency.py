"""Input convergence: how far tokens are from all being the same token (THEORY §2, notion 1)."""

from typing import Literal

import torch
from torch import Tensor

from oversmooth.metrics._tokens import count, largest, prepare
from oversmooth.metrics.rank import singular_values
from oversmooth.safety import arguments


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    return x.sum(-2, keepdim=True) / count(x, mask)[..., None, None]


def _spread(mean: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
    return mean.expand_as(x) if mask is None else torch.where(mask[..., None], mean, 0.0)


def _high(x: Tensor, mask: Tensor | None) -> Tensor:
    x = x - _spread(_mean(x, mask), x, mask)
    # Centring twice removes the rounding error of the mean itself: equal tokens give exactly zero.
    return x - _spread(_mean(x, mask), x, mask)


def lfc(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The constant part of X, ``LFC[X] = (1/n) 1 1ᵀ X``: every token replaced by the mean token.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(..., n, d)``, zero at masked tokens; all zero where every token is hidden.

    >>> lfc(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
    tensor([[2., 1.],
            [2., 1.]])
    """
    x, mask = prepare(x, mask)
    return _spread(_mean(x, mask), x, mask).clone()


def hfc(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """What distinguishes tokens, ``HFC[X] = X − LFC[X]``.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(..., n, d)``, zero at masked tokens.

    >>> hfc(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
    tensor([[-1., -1.],
            [ 1.,  1.]])
    """
    return _high(*prepare(x, mask))


def input_convergence(x: Tensor, norm: Literal["fro", "spectral"] = "fro", *, mask: Tensor | None = None) -> Tensor:
    """The ratio ``‖HFC[X]‖ / ‖LFC[X]‖``.

    Args:
        x: ``(..., n, d)``, tokens by features.
        norm: the Frobenius or the spectral norm of HFC; LFC has rank one, and the same norm in both.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, 0 when all tokens are equal, infinite when the mean token is zero and the tokens are not; NaN for an
        array of zeros, with every token hidden, or with NaN in x.

    >>> input_convergence(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
    tensor(0.6325)
    """
    x, mask = prepare(x, mask)
    arguments.choice(norm, "norm", ("fro", "spectral"))
    x = x / largest(x, (-2, -1))
    high = _high(x, mask)
    low = torch.linalg.vector_norm(_mean(x, mask), dim=(-2, -1)) * count(x, mask).sqrt()
    if norm == "fro":
        return torch.linalg.vector_norm(high, dim=(-2, -1)) / low
    return singular_values(high)[..., 0].to(x.dtype) / low
