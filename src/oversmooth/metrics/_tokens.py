"""What every metric does first: check tokens and mask, and convert them to a precision worth computing in."""

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


def as_tokens(x: Tensor) -> Tensor:
    """The tokens, checked, as a tensor ``(..., n, d)``, in its own precision."""
    return arguments.tensor(x, "tokens", "(..., n, d), tokens by features")


def prepare(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Tokens in float32 or better with hidden tokens set to zero, and the mask broadcast to ``(..., n)``.

    Hidden tokens are replaced, not multiplied: a NaN in the padding stays in the padding.
    """
    x, mask = checked(x, mask)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return (x, None) if mask is None else (torch.where(mask[..., None], x, 0.0), mask)


def checked(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Tokens as they are, and the mask broadcast to ``(..., n)``."""
    x = as_tokens(x)
    if mask is None:
        return x, None
    mask = arguments.mask(mask, x.device)
    try:
        return x, mask.expand(x.shape[:-1])
    except RuntimeError:
        raise InputError(
            f"mask {arguments.described(mask)} but tokens have shape {tuple(x.shape)}; "
            f"give one boolean per token, {tuple(x.shape[:-1])}"
        ) from None


def count(x: Tensor, mask: Tensor | None) -> Tensor:
    """The number of valid tokens, ``(...)`` in the dtype of x."""
    if mask is None:
        return torch.full(x.shape[:-2], x.shape[-2], dtype=x.dtype, device=x.device)
    return mask.sum(-1).to(x.dtype)


def largest(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The largest modulus along dim, kept as axes of size one, or 1 where all is zero; no gradient flows through it.

    After division by it, squares neither overflow nor underflow.
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
