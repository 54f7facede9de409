"""Attention as a linear operator on tokens: given as a matrix, or as queries and keys and never formed.

Both kinds have one interface, `AttentionOperator`. Shapes are ``(..., n, n)``; in the rest of the theory the last
leading axis is the head. A token that the mask hides takes no part: its row and its column are zero.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.tokens import broadcast_mask, check_product, check_rows, count_nonfinite

# Entries of scores held at once where no fused kernel does the work: 16 MiB in float32, and 32 times that on a GPU.
_BLOCK = 1 << 22
# What torch._fused_sdp_choice gives; the first forms all scores.
_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)


def _tensor(A: Tensor, *, floating: bool = False) -> Tensor:
    return arguments.tensor(A, "attention", "(..., n, n)", floating=floating)


def is_row_stochastic(A: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether every row of A is non-negative and sums to one.

    Args:
        A: ``(..., n, n)``, attention.
        tolerance: how far entries may be below zero, and sums from one.
    """
    A, tolerance = _tensor(A), arguments.number(tolerance, "tolerance", "give a number, 0 or more", least=0)
    return bool((-tolerance <= A).all() and ((A.sum(-1) - 1).abs() <= tolerance).all())


def is_causal(A: Tensor) -> bool:
    """Whether A is lower triangular, so that no token sees a later one.

    Args:
        A: ``(..., n, n)``, attention.
    """
    return not bool(torch.triu(_tensor(A), diagonal=1).any())


class AttentionOperator(ABC):
    """Row-stochastic attention over n tokens, ``(..., n, n)``."""

    causal: bool
    mask: Tensor | None
    """``(..., n)``, true for the valid tokens; None: all of them."""
    rounding: float
    """The unit in the last place of its entries, in the precision they were given in."""
    _arrays: ClassVar[tuple[str, ...]]
    """What it is made of, ``(..., n, c)`` each or None; ``...`` is `batch_shape`."""

    @abstractmethod
    def __matmul__(self, v: Tensor) -> Tensor:
        """The product ``A v``, ``(..., n, c) -> (..., n, c)``."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal, ``(..., n)``; where attention is causal, all eigenvalues."""

    @abstractmethod
    def dense(self) -> DenseAttention:
        """The same operator as a matrix."""

    def column(self, key: Tensor) -> Tensor:
        """What every query gives to one key, whose place is ``(...)``; ``(..., n)``."""
        pick = torch.zeros(*self.shape[:-1], 1, dtype=self.dtype, device=self.device)
        return (self @ pick.scatter(-2, key[..., None, None], 1.0))[..., 0]

    def check_finite(self) -> None:  # noqa: B027  (a matrix was checked when it was made)
        """Raise InputError where what it is made of is NaN or infinite, unless that was done when it was made."""

    def flatten(self, keep: int = 0) -> Self:
        """With all leading axes but the last `keep` in one: ``(items, n, n)``, or ``(items, heads, n, n)`` for 1."""
        return self._changed(lambda x, own: x.reshape(-1, *x.shape[x.ndim - keep - own :]))

    def to(self, dtype: torch.dtype) -> Self:
        """The same operator in this precision."""
        return self._changed(lambda x, own: x.to(dtype) if own == 2 else x)

    def select(self, index: Tensor) -> Self:
        """Some of the operators, by their index on the first axis."""
        return self._changed(lambda x, _: x[index])

    @property
    def kind(self) -> Hashable:
        """What is equal where two can be joined by `cat`."""
        arrays = (getattr(self, name, None) for name in (*self._arrays, "mask"))
        shapes = tuple(None if x is None else (x.shape[1:], x.dtype, x.device) for x in arrays)
        return type(self), shapes, self.causal, self.rounding, getattr(self, "scale", None)

    @classmethod
    def cat(cls, several: Sequence[Self]) -> Self:
        """The operators of all, side by side on the first axis."""
        other = copy.copy(several[0])
        for name in (*cls._arrays, "mask", "lse"):
            parts = [getattr(one, name, None) for one in several]
            setattr(other, name, None if any(x is None for x in parts) else torch.cat(parts))  # type: ignore[arg-type]
        return other

    def _changed(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """The same with every array and the mask changed, given how many of their last axes are one matrix's."""
        other = copy.copy(self)
        for name, own in (*((name, 2) for name in self._arrays), ("mask", 1), ("lse", 1)):
            if (x := getattr(self, name, None)) is not None:
                setattr(other, name, change(x, own))
        return other

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self, self._arrays[0]).dtype

    @property
    def device(self) -> torch.device:
        return getattr(self, self._arrays[0]).device

    @property
    def nbytes(self) -> int:
        """Of what it is made of."""
        return sum(x.nbytes for name in self._arrays if (x := getattr(self, name)) is not None)

    @property
    def tokens(self) -> int:
        """n, hidden tokens included."""
        return getattr(self, self._arrays[0]).shape[-2]

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes, heads included."""
        return getattr(self, self._arrays[0]).shape[:-2]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.batch_shape, self.tokens, self.tokens))

    @property
    def keep(self) -> Tensor:
        """``(..., n)``, true for the valid tokens."""
        if self.mask is None:
            return torch.ones(self.shape[:-1], dtype=torch.bool, device=self.device)
        return self.mask

    @property
    def token_mask(self) -> Tensor | None:
        """``(..., n)``: the mask of all heads, the last leading axis, where it is the same."""
        return None if self.mask is None else self.mask[..., 0, :]

    def valid_count(self) -> Tensor:
        """The number of valid tokens, ``(...)``."""
        return self.keep.sum(-1)


class DenseAttention(AttentionOperator):
    """Attention given as its matrix.

    Args:
        A: ``(..., n, n)``, after the softmax.
        mask: ``(..., n)``, true for the valid tokens, or, shared by all heads, without the head axis. Rows of the
            other tokens are ignored, but no counted token may attend to them.

    Raises:
        InputError: entries that are negative or not finite, or rows that do not sum to one.
    """

    _arrays = ("A",)

    def __init__(self, A: Tensor, *, mask: Tensor | None = None) -> None:
        A = _tensor(A, floating=True)
        if A.shape[-1] != A.shape[-2] or 0 in A.shape:
            raise InputError(f"attention has shape {tuple(A.shape)}; it must be (..., n, n), and not empty")
        half = A.dtype in (torch.float16, torch.bfloat16)
        self.rounding = torch.finfo(A.dtype).eps
        A = A.to(torch.promote_types(A.dtype, torch.float32))
        self.mask = broadcast_mask(mask, A.shape[:-1], A.device)
        if self.mask is not None:
            A = torch.where(self.mask[..., None], A, 0.0)
        check_rows(A, self.mask, tolerance=2e-2 if half else 1e-4)
        if half:  # a softmax kept in 8 or 11 bits misses one by 1e-3; the theory needs A 1 = 1
            A = torch.where(A.sum(-1, keepdim=True) > 0, A / A.sum(-1, keepdim=True), A)
        self.A, self.causal = A, is_causal(A)

    @classmethod
    def trusted(cls, A: Tensor, mask: Tensor | None, causal: bool, rounding: float | None = None) -> DenseAttention:
        """From a matrix that is known to be valid: nothing is checked."""
        self = cls.__new__(cls)
        self.rounding = torch.finfo(A.dtype).eps if rounding is None else rounding
        self.A, self.mask, self.causal = A, mask, causal
        return self

    def __matmul__(self, v: Tensor) -> Tensor:
        check_product(self.tokens, v)
        return self.A @ v

    def diagonal(self) -> Tensor:
        return self.A.diagonal(dim1=-2, dim2=-1)

    def dense(self) -> DenseAttention:
        return self


class SoftmaxAttention(AttentionOperator):
    """``softmax(scale · q kᵀ + bias)``, applied through scaled-dot-product attention and never formed.

    Memory is linear in n, but for the bias.

    Args:
        q: ``(..., heads, n, k)``, queries.
        k: ``(..., heads, n, k)``, keys, or with fewer heads that divide q's (grouped queries).
        scale: ``1/√k`` if None.
        mask: ``(..., n)``, true for the valid tokens, or, shared by all heads, without the head axis.
        bias: ``(..., n, n)``, added to the scores (relative positions; ``-inf`` hides a pair).
        causal: whether no token sees a later one.

    Raises:
        InputError: shapes that do not fit, entries that are not finite, or a query from which every key is hidden.
    """

    _arrays = ("q", "k", "bias")

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        *,
        scale: float | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> None:
        q, k = (arguments.tensor(x, name, "(..., heads, n, k)") for name, x in (("queries", q), ("keys", k)))
        if k.ndim != q.ndim or q.shape[-2:] != k.shape[-2:] or 0 in (*q.shape, *k.shape):
            raise InputError(
                f"queries have shape {tuple(q.shape)} and keys {tuple(k.shape)}; "
                "both must be (..., heads, n, k) with the same n and k"
            )
        if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
            if q.shape[-3] % k.shape[-3]:
                raise InputError(
                    f"{q.shape[-3]} query heads cannot share {k.shape[-3]} key heads evenly; give a multiple"
                )
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
        if k.shape != q.shape:
            raise InputError(f"queries have shape {tuple(q.shape)} and keys {tuple(k.shape)}: the batches differ")
        scale = None if scale is None else float(arguments.number(scale, "scale"))
        mask = broadcast_mask(mask, q.shape[:-1], q.device)
        if bias is not None:
            shape = (*q.shape[:-1], q.shape[-2])
            remedy = f"give an array for the scores, {shape}"
            bias = arguments.numbers(bias, "bias", remedy, dtype=_precision(q, k), device=q.device)
            try:
                bias = bias.expand(shape)
            except RuntimeError:
                raise InputError(f"bias has shape {tuple(bias.shape)}; the scores need {shape}") from None
            if bias.isnan().any() or bias.eq(torch.inf).any():
                raise InputError("bias has NaN or +inf; give finite numbers, and -inf where a pair is hidden")
        self._set(q, k, scale, mask, bias, arguments.flag(causal, "causal"), None)
        self.check_finite()
        self._check_visible()

    def _set(
        self, q: Tensor, k: Tensor, scale: float | None, mask: Tensor | None, bias: Tensor | None, causal: bool,
        lse: Tensor | None,
    ) -> None:  # fmt: skip
        dtype = _precision(q, k)
        self.q, self.k, self.mask, self.bias, self.causal, self.lse = q.to(dtype), k.to(dtype), mask, bias, causal, lse
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        self.rounding = torch.finfo(dtype).eps

    @classmethod
    def trusted(
        cls, q: Tensor, k: Tensor, scale: float | None, mask: Tensor | None, bias: Tensor | None, causal: bool,
        lse: Tensor | None,
    ) -> SoftmaxAttention:  # fmt: skip
        """From what a model computed: nothing is checked, so that nobody waits for the device; see `check_finite`.

        q ``(batch, heads, n, k)``, k perhaps with fewer heads, mask ``(batch, n)``, bias broadcastable; lse ``(batch,
        heads, n)``, the log-sum-exp of each row of scores, if a kernel returned it: else it is computed where needed.
        """
        self = cls.__new__(cls)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1) if k.shape[1] != q.shape[1] else k
        mask = None if mask is None else mask[:, None].expand(q.shape[:-1])
        bias = None if bias is None else bias.to(_precision(q, k)).expand(*q.shape[:-1], q.shape[-2])
        self._set(q, k, scale, mask, bias, causal, lse)
        return self

    def check_finite(self) -> None:
        for name, x in (("queries", self.q), ("keys", self.k)):
            if not x.isfinite().all():
                raise InputError(f"{name} have {count_nonfinite(x)} that are NaN or infinite; fix them first")

    def _check_visible(self) -> None:
        if self.bias is None:
            return  # every counted token sees itself
        added = (self._bias_block(start, stop) for start, stop in self._blocks())
        hidden = self.keep & torch.cat([block.eq(-torch.inf).all(-1) for block in added if block is not None], dim=-1)
        if hidden.any():
            *array, query = hidden.nonzero()[0].tolist()
            raise InputError(
                f"the mask hides every token from query {query}{f' (at {tuple(array)})' if array else ''}; "
                "let each query see at least itself, or mask it out as a token"
            )

    def to(self, dtype: torch.dtype) -> Self:
        other = super().to(dtype)
        if dtype != self.dtype:
            other.lse = None  # as exact as what it was computed from
        return other

    def _blocks(self) -> list[tuple[int, int]]:
        n, items = self.tokens, self.batch_shape.numel()
        most = 32 * _BLOCK if self.device.type == "cuda" else _BLOCK
        rows = max(1, min(n, most // max(1, items * n)))
        return [(start, min(start + rows, n)) for start in range(0, n, rows)]

    def _bias_block(self, start: int, stop: int) -> Tensor | None:
        """What is added to the scores of queries start to stop, broadcastable to ``(..., rows, n)``; None: nothing."""
        bias = None if self.bias is None else self.bias[..., start:stop, :]
        visible = None
        if self.causal:
            row = torch.arange(start, stop, device=self.device)[:, None]
            visible = row >= torch.arange(self.tokens, device=self.device)
        if self.mask is not None:
            # A hidden query may see everything, so that its row, which is set to zero afterwards, is not NaN.
            free = self.mask[..., None, :] | ~self.mask[..., start:stop, None]
            visible = free if visible is None else (visible & free) | ~self.mask[..., start:stop, None]
        if visible is None:
            return bias
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.where(visible, zero if bias is None else bias, -torch.inf)

    def __matmul__(self, v: Tensor) -> Tensor:
        check_product(self.tokens, v)
        lead = arguments.broadcast(self.batch_shape, v.shape[:-2])
        c = v.shape[-1]
        # Fused kernels want queries, keys and values of one width: zeros change neither scores nor results.
        width = max(c, self.q.shape[-1])
        q, k, v = (pad(x, (0, width - x.shape[-1])) for x in (self.q, self.k, v.to(self.dtype)))
        q, k, v = (_at_least_4d(x.expand(*lead, *x.shape[-2:])) for x in (q, k, v))
        if self.mask is None and self.bias is None and _has_fused_kernel(q, k, v, self.causal):
            out = scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        else:
            parts = []
            for start, stop in self._blocks():
                bias = self._bias_block(start, stop)
                if bias is not None and bias.ndim > 2:
                    bias = _at_least_4d(bias.expand(*lead, *bias.shape[-2:]))
                rows = q[..., start:stop, :]
                parts.append(scaled_dot_product_attention(rows, k, v, attn_mask=bias, scale=self.scale))
            out = torch.cat(parts, dim=-2)
        out = out[..., :c].reshape(*lead, self.tokens, c)
        return out if self.mask is None else torch.where(self.mask[..., None], out, 0.0)

    def diagonal(self) -> Tensor:
        """``exp(scale · q_i·k_i + bias_ii − lse_i)``, the log-sum-exp from a fused kernel or over blocks of queries."""
        if (lse := self._log_sum_exp()) is not None:
            own = (self.q * self.k).sum(-1) * self.scale
            own = own if self.bias is None else own + self.bias.diagonal(dim1=-2, dim2=-1)
            out = (own - lse).exp().clamp(max=1.0)
        else:
            parts, q = [], self.q * self.scale
            for start, stop in self._blocks():
                seen = stop if self.causal else self.tokens  # causal: later keys are not needed
                scores = q[..., start:stop, :] @ self.k[..., :seen, :].mT
                if (bias := self._bias_block(start, stop)) is not None:
                    scores += bias[..., :seen]
                own = scores[..., start:stop].diagonal(dim1=-2, dim2=-1).clone()
                parts.append((own - torch.logsumexp(scores, dim=-1)).exp())
            out = torch.cat(parts, dim=-1)
        return out if self.mask is None else torch.where(self.mask, out, 0.0)

    def column(self, key: Tensor) -> Tensor:
        """In O(n) where the log-sum-exp of scores is known."""
        if (lse := self._log_sum_exp()) is None:
            return super().column(key)
        at, n = key[..., None, None], self.tokens
        scores = (self.q @ self.k.gather(-2, at.expand(*key.shape, 1, self.k.shape[-1])).mT)[..., 0] * self.scale
        if self.bias is not None:
            scores = scores + self.bias.gather(-1, at.expand(*key.shape, n, 1))[..., 0]
        shown = self.keep
        if self.causal:
            shown = shown & (torch.arange(n, device=self.device) >= key[..., None])
        return torch.where(shown, (scores - lse).exp().clamp(max=1.0), 0.0)

    def _log_sum_exp(self) -> Tensor | None:
        """``(..., n)``, as given or from a fused kernel; None where blocks are faster, or no kernel returns it."""
        if self.lse is not None or self.mask is not None or self.bias is not None or self.device.type != "cuda":
            return self.lse
        q, k = (_at_least_4d(pad(x, (0, -x.shape[-1] % 8))) for x in (self.q, self.k))
        attended = attend_with_lse(q, k, k[..., :8].contiguous(), causal=self.causal, scale=self.scale)
        return None if attended is None else attended[1].reshape(self.q.shape[:-1])

    def dense(self) -> DenseAttention:
        parts = []
        for start, stop in self._blocks():
            scores = (self.q[..., start:stop, :] @ self.k.mT) * self.scale
            bias = self._bias_block(start, stop)
            rows = torch.softmax(scores if bias is None else scores + bias, dim=-1)
            parts.append(rows if self.mask is None else torch.where(self.mask[..., start:stop, None], rows, 0.0))
        A = torch.cat(parts, dim=-2)
        return DenseAttention.trusted(A, self.mask, self.causal, self.rounding)


def attend_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """What scaled_dot_product_attention returns, bit for bit, with the log-sum-exp of each row of scores.

    torch is asked which kernel it would use, and that kernel is called. On an H200 (torch 2.11) the outputs were equal
    in 12 of 12 cases, and on a CPU (torch 2.13) in all that the tests try; any other kernel differs by up to 4e-3.

    Arguments are those of that function; q is ``(batch, heads, n, k)``.

    Returns:
        ``(batch, heads, n, k)`` and ``(batch, heads, n)``; None where torch's kernel does not return the latter.
    """
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if recorded or q.ndim != 4 or torch.is_autocast_enabled(q.device.type):
        return None
    aten = torch.ops.aten
    try:
        choice = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)
        if q.device.type == "cpu" and choice == _FLASH:
            found = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        elif q.device.type != "cuda" or (mask is not None and mask.shape[-1] % 16):  # torch would pad this mask
            return None
        elif choice == _FLASH and q.shape[-1] % 8 == 0:
            found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        elif choice in (_EFFICIENT, _CUDNN):
            bias = None if mask is None else mask.expand(*q.shape[:-1], k.shape[-2])
            if choice == _EFFICIENT:
                found = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)
            else:
                found = aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True, 0.0, causal, False, scale=scale)
        else:
            return None
        return found[0], found[1].reshape(*q.shape[:2], -1)[..., : q.shape[-2]]  # some kernels pad the rows
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):  # another version of torch
        return None


def as_operator(A: Tensor | AttentionOperator) -> AttentionOperator:
    """A matrix as an operator, checked; an operator as it is."""
    return A if isinstance(A, AttentionOperator) else DenseAttention(A)


def centred_matrix(A: AttentionOperator) -> Tensor:
    """A in an orthonormal basis of the centred vectors, ``(..., n − 1, n − 1)``, by a Householder reflection."""
    v, M = reflector(A), A.dense().A
    M = M - (M @ v) @ v.mT
    M = M - v @ (v.mT @ M)
    return M[..., 1:, 1:]


def reflector(A: AttentionOperator) -> Tensor:
    """v with ``I − v vᵀ`` mapping the constant vector to the first axis, ``(..., n, 1)``."""
    keep = A.keep.to(A.dtype)
    v = keep / torch.linalg.vector_norm(keep, dim=-1, keepdim=True)
    v[..., 0] += 1
    return (v * math.sqrt(2) / torch.linalg.vector_norm(v, dim=-1, keepdim=True))[..., None]


def _precision(q: Tensor, k: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)


def _at_least_4d(x: Tensor) -> Tensor:
    """SDPA's fused kernels take exactly (batch, heads, n, k)."""
    return x.reshape(-1, x.shape[-3] if x.ndim > 2 else 1, *x.shape[-2:])


def _has_fused_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    return torch._fused_sdp_choice(q, k, v, None, 0.0, causal) != _MATH
