"""Masks of tokens, means over the valid tokens, and checks of attention over them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


def real_and_imaginary(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A real linear map applied to a complex array."""
    return torch.complex(linear(x.real), linear(x.imag))


def token_mean(v: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the valid tokens, ``(..., n, c) -> (..., 1, c)``; mask ``(..., n)``."""
    if mask is None:
        return v.mean(-2, keepdim=True)
    keep = mask[..., None].to(v.dtype)
    return (v * keep).sum(-2, keepdim=True) / keep.sum(-2, keepdim=True)


def centre_tokens(v: Tensor, mask: Tensor | None) -> Tensor:
    """``P v``: v without that mean, and zero at the tokens that do not count."""
    centred = v - token_mean(v, mask)
    return centred if mask is None else centred * mask[..., None].to(v.dtype)


def broadcast_mask(mask: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor | None:
    """A mask of the valid tokens, checked and expanded to shape ``(..., n)``; the head axis may be left out."""
    if mask is None:
        return None
    mask = arguments.mask(mask, device)
    given = arguments.described(mask)
    if mask.ndim == len(shape) - 1 and mask.ndim > 0 and len(shape) > 1:
        mask = mask.unsqueeze(-2)  # one mask for all heads
    try:
        mask = mask.expand(shape)
    except RuntimeError:
        raise InputError(
            f"mask {given}; attention over {shape[-1]} tokens needs one boolean per token, "
            f"{tuple(shape)} or without the head axis"
        ) from None
    empty = ~mask.any(-1)
    if empty.any():
        where = f" of array {tuple(empty.nonzero()[0].tolist())}" if empty.ndim else ""
        raise InputError(f"the mask hides every token{where}; leave that array out")
    return mask


def check_rows(A: Tensor, mask: Tensor | None, tolerance: float) -> None:
    """Refuse attention that is not row-stochastic over the valid tokens."""
    if not A.isfinite().all():
        raise InputError(f"attention has {count_nonfinite(A)} that are NaN or infinite; fix the scores first")
    if A.min() < -tolerance:
        where = tuple((-tolerance > A).nonzero()[0].tolist())
        raise InputError(
            f"attention is {A[where].item():.4g} at {where}; weights are not negative: pass A after its softmax"
        )
    seen = A if mask is None else torch.where(mask[..., None, :], A, 0.0)
    wrong = (seen.sum(-1) - 1).abs() > tolerance
    if mask is not None:
        wrong &= mask
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        onto = "" if mask is None else " over the valid tokens"
        matrix = f" of matrix {where[:-1]}" if where[:-1] else ""
        raise InputError(
            f"attention row {where[-1]}{matrix} sums to {seen[where].sum().item():.6g}{onto}, not 1; "
            "pass A after its softmax, with the mask that its softmax used"
        )


def check_product(n: int, v: Tensor) -> None:
    """Refuse arrays that attention over n tokens cannot be applied to."""
    if v.ndim < 2 or v.shape[-2] != n:
        raise InputError(f"attention over {n} tokens cannot take what {arguments.described(v)}; give (..., {n}, c)")


def count_nonfinite(x: Tensor) -> str:
    """How many entries are NaN or infinite, in words."""
    return f"{int((~x.isfinite()).sum()):,} of {x.numel():,} entries"
