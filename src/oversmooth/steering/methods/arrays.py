"""What formulas are written with: means over tokens, and strengths that fit arrays."""

from __future__ import annotations

import torch
from torch import Tensor


def repeat_heads(values: Tensor, heads: int) -> Tensor:
    """One slice per query head, ``(..., kv_heads, k) -> (..., heads, k)``."""
    return values if values.shape[-2] == heads else values.repeat_interleave(heads // values.shape[-2], dim=-2)


def mean_over_tokens(x: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Mean over the valid tokens of ``(batch, n, ...)`` or ``(..., n, d)``; their dim is kept. mask: ``(batch, n)``."""
    if mask is None:
        return x.mean(dim, keepdim=True)
    weight = mask.to(x.dtype).reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
    return (x * weight).sum(dim, keepdim=True) / weight.sum(dim, keepdim=True).clamp(min=1)


def scaled(value: Tensor | float, x: Tensor, dims: int = 0) -> Tensor:
    """``value · x``: of a strength that is learned (see `broadcastable`), fixed, or changed by a ramp."""
    if isinstance(value, Tensor) and value.ndim == 0:
        # As torch multiplies by a number, which it does not round to half precision first.
        wide = torch.promote_types(x.dtype, torch.float32)
        return (value.to(wide) * x.to(wide)).to(x.dtype)
    return broadcastable(value, x, dims) * x


def broadcastable(value: Tensor | float, x: Tensor, dims: int = 0) -> Tensor | float:
    """A learned number in x's precision, followed by ``dims`` dimensions of 1; a fixed one as it is."""
    return value.to(x.dtype).reshape(-1, *[1] * dims) if isinstance(value, Tensor) else value
