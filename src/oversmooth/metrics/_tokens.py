"""What every metric does first: check tokens and mask, and bring them to a precision worth computing in."""

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError


def prepare(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Tokens in float32 or better with hidden tokens set to zero, and the mask broadcast to ``(..., n)``.

    Hidden tokens are replaced, not multiplied: a NaN in the padding stays in the padding.
    """
    x = torch.as_tensor(x)
    if x.ndim < 2:
        raise InputError(f"tokens have shape {tuple(x.shape)}; a metric needs (..., n, d), tokens by features")
    if not x.is_floating_point():
        raise InputError(f"tokens have dtype {x.dtype}; convert them to a floating type first")
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if mask is None:
        return x, None
    mask = torch.as_tensor(mask, device=x.device)
    if mask.dtype != torch.bool:
        raise InputError(f"mask has dtype {mask.dtype}; give booleans, True for the tokens that count")
    try:
        mask = mask.expand(x.shape[:-1])
    except RuntimeError:
        raise InputError(
            f"mask has shape {tuple(mask.shape)} but tokens have shape {tuple(x.shape)}; "
            f"give one boolean a token, {tuple(x.shape[:-1])}"
        ) from None
    return torch.where(mask[..., None], x, 0.0), mask


def count(x: Tensor, mask: Tensor | None) -> Tensor:
    """How many tokens count: ``(...)`` in the dtype of x."""
    if mask is None:
        return torch.full(x.shape[:-2], x.shape[-2], dtype=x.dtype, device=x.device)
    return mask.sum(-1).to(x.dtype)


def largest(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The largest modulus along dim, kept as axes of size one, or 1 where all is zero. No gradient runs through it.

    Divided by it first, squares neither overflow nor underflow.
    """
    if 0 in [x.shape[d] for d in ((dim,) if isinstance(dim, int) else dim)]:
        return torch.ones((), dtype=x.dtype, device=x.device)
    size = x.detach().abs().amax(dim, keepdim=True)
    return torch.where(size == 0, 1.0, size)


def safe_sqrt(x: Tensor) -> Tensor:
    """The square root with gradient zero, not infinity, at zero."""
    positive = x > 0
    root = torch.sqrt(torch.where(positive, x, 1.0))
    return torch.where(positive, root, torch.where(x.isnan(), x, 0.0))
