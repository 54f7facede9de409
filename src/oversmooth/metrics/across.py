"""Vectors of different inputs: how alike they are, which feature makes them so, and whether two depths agree on them.

`angle` and `rank` compare the tokens of one input; here every vector, or every few tokens, come from another input.
"""

import math

import torch
from torch import Tensor

from oversmooth.metrics._tokens import as_tokens, prepare
from oversmooth.metrics.angle import over_pairs
from oversmooth.metrics.rank import singular_values
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

FEWEST_PER_FEATURE = 4
"""Inputs per feature below which the effective rank of their vectors says more of their number than of the model."""


def anisotropy(x: Tensor, *, centred: bool = False) -> Tensor:
    """Mean cosine over pairs of vectors of different inputs (Ethayarajh, 2019).

    A vector of length zero has no direction, and is counted with a cosine of zero.

    Args:
        x: ``(..., N, s, d)``: s vectors of each of N inputs.
        centred: True to remove the mean of all vectors first. Their mean cosine is then near zero whatever they are:
            it shows that the mean made them alike.

    Returns:
        ``(...)``, 1 at most; NaN with fewer than two inputs.

    >>> x = torch.tensor([[[3.0, 0.0]], [[1.0, 1.0]]])
    >>> anisotropy(x), anisotropy(x, centred=True)
    (tensor(0.7071), tensor(-1.))
    """
    by_input = _directions(x, centred).mean(-2)
    inputs = torch.tensor(float(by_input.shape[-2]), device=by_input.device)
    total = by_input.sum(-2).square().sum(-1) - by_input.square().sum((-2, -1))
    return over_pairs(total, inputs, -1.0)


def anisotropy_by_feature(x: Tensor) -> Tensor:
    """What each feature adds to the mean cosine between inputs (Timkey and van Schijndel, 2021).

    Args:
        x: ``(..., N, s, d)``: s vectors of each of N inputs.

    Returns:
        ``(..., d)``, which sum to `anisotropy`.

    >>> anisotropy_by_feature(torch.tensor([[[3.0, 0.0]], [[1.0, 1.0]]]))
    tensor([0.7071, 0.0000])
    """
    by_input = _directions(x, False).mean(-2)
    inputs = by_input.shape[-2]
    return (by_input.sum(-2).square() - by_input.square().sum(-2)) / (inputs * (inputs - 1))


def _directions(x: Tensor, centred: bool) -> Tensor:
    x = arguments.tensor(x, "x", "(..., N, s, d), s vectors of each of N inputs", least=3)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x - x.mean((-3, -2), keepdim=True) if arguments.flag(centred, "centred") else x
    return torch.nn.functional.normalize(x, dim=-1)


def token_entropy(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Von Neumann entropy of ``X Xᵀ / tr(X Xᵀ)`` over ``log n``: how evenly tokens fill directions.

    The prompt entropy of Skean et al. (2025), over its largest value with at least n features.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)`` in float64, between 0 (all on one line) and 1; NaN with fewer than two tokens, or for zeros.

    >>> token_entropy(torch.eye(4)), token_entropy(torch.ones(4, 4))
    (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    squares = singular_values(x, mask=mask).square()
    share = squares / squares.sum(-1, keepdim=True)
    tokens = x.shape[-2] if mask is None else mask.sum(-1)
    tokens = torch.as_tensor(tokens, dtype=share.dtype, device=share.device)
    return torch.where(tokens > 1, -torch.xlogy(share, share).sum(-1) / tokens.log(), torch.nan) + 0.0


def curvature(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean angle between successive differences of tokens, in degrees (Hosseini and Fedorenko, 2023).

    Only for tokens in an order, as those of a text. Triples with two equal neighbours have no angle.

    Args:
        x: ``(..., n, d)``, tokens by features, in order.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, between 0 (a straight line) and 180; NaN where no three successive tokens are valid.

    >>> curvature(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    tensor(90.)
    """
    x, mask = prepare(x, mask)
    if x.shape[-2] < 3:
        return torch.full(x.shape[:-2], torch.nan, dtype=x.dtype, device=x.device)
    step = torch.nn.functional.normalize(x[..., 1:, :] - x[..., :-1, :], dim=-1)
    there = (step != 0).any(-1)
    if mask is not None:
        there = there & mask[..., 1:] & mask[..., :-1]
    # Of unit vectors; unlike the arccosine, exact for small angles.
    one, other = step[..., 1:, :], step[..., :-1, :]
    half = torch.atan2(torch.linalg.vector_norm(one - other, dim=-1), torch.linalg.vector_norm(one + other, dim=-1))
    both = there[..., 1:] & there[..., :-1]
    return torch.where(both, 2 * half * (180 / math.pi), 0.0).sum(-1) / both.sum(-1)


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Debiased linear CKA: how far two sets of vectors of the same inputs agree, up to rotation and scale.

    Kornblith et al. (2019), with the unbiased HSIC of Song et al. (2012), so that vectors of few inputs and many
    features are not alike by chance. In products of features, ``O(N d²)``.

    Args:
        x: ``(N, d)``: one vector per input.
        y: ``(N, d')``: of the same inputs in the same order.

    Returns:
        ``()`` in float64, 1 at most, about 0 for independent vectors; NaN with fewer than 4 inputs.

    >>> x = torch.randn(20, 3)
    >>> linear_cka(x, 2 * x.flip(-1)).round(decimals=6)
    tensor(1., dtype=torch.float64)
    """
    x, y = as_tokens(x).double(), as_tokens(y).double()
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise InputError(f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; give (N, d) and (N, d')")
    x, y = x - x.mean(0), y - y.mean(0)
    both, first, second = _hsic(x, y), _hsic(x, x), _hsic(y, y)
    return (both / (first * second).sqrt()).clamp(max=1.0)


def _hsic(x: Tensor, y: Tensor) -> Tensor:
    """The unbiased HSIC of centred vectors, with the diagonals of both kernels set to zero."""
    inputs = len(x)
    if inputs < 4:
        return x.new_tensor(torch.nan)
    own_x, own_y = x.square().sum(-1), y.square().sum(-1)
    products = (x.mT @ y).square().sum() - own_x @ own_y
    # Rows of a centred kernel sum to zero; those without its diagonal, to minus that.
    sums, rows = own_x.sum() * own_y.sum(), own_x @ own_y
    return (products + sums / ((inputs - 1) * (inputs - 2)) - 2 * rows / (inputs - 2)) / (inputs * (inputs - 3))
