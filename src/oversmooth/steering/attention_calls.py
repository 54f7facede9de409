"""The calls by which one attention module mixes tokens: which pairs get weight, and how far values are only weighted.

`AttentionCalls` records calls of scaled_dot_product_attention and of softmax while attention runs. Nothing here refuses
anything; `mask_guard` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from oversmooth.steering.methods.arrays import repeat_heads

_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_FUSED, _DROPOUT = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), ("input", "p", "training")
"""Names of torch's arguments, in order."""
# A score this far below the largest of its row gets no weight, as with masks of −100: e⁻⁵⁰ is nothing beside 1 in
# float32. `trace.valid` has a wider bound, since it reads what a mask means and not what a softmax makes of scores.
_NO_WEIGHT = 50.0
_SHARE = 0.9  # of the tokens that must agree


class AttentionCalls(TorchFunctionMode):
    """Records what attention calls while it runs, in one thread, for a guard.

    Args:
        owner: the guard.
        masked: whether it was passed what may be a mask, from `may_be_masked`.
    """

    def __init__(self, owner: object, masked: bool) -> None:
        super().__init__()
        self.owner, self.masked = owner, masked
        self.calls: list[AttentionCall] = []
        self.dropped = False  # whether dropout removed weights
        self.V: Tensor | None = None  # (..., n, kv_heads, k): the values, as methods leave them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            given = dict(zip(_FUSED, args, strict=False)) | kwargs
            shape = torch.Size([*given["query"].shape[:-1], given["key"].shape[-2]])
            mask, causal = given.get("attn_mask"), given.get("is_causal", False)
            self.calls.append(AttentionCall(shape, mask, causal, value=given["value"].detach(), out=out.detach()))
        elif func in _SOFTMAX and isinstance(out, Tensor) and out.ndim > 2 and out.shape[-1] == out.shape[-2]:
            self.calls.append(AttentionCall(out.shape, args[0] if args else kwargs["input"], A=out.detach()))
        elif func is F.dropout:
            given = dict(zip(_DROPOUT, args, strict=False)) | kwargs
            self.dropped |= given.get("training", True) and given.get("p", 0.5) > 0
        return out


@dataclass
class AttentionCall:
    """One call that mixes tokens: a softmax, with the weights A, or fused attention, with values and their means."""

    shape: torch.Size
    """Of its scores, ``(..., queries, keys)``."""
    mask: Tensor | None
    """True where a query sees a key, or scores, or what is added to them."""
    causal: bool = False
    A: Tensor | None = None
    value: Tensor | None = None
    out: Tensor | None = None

    def pairs(self, batch: int, device: torch.device) -> Tensor | None:
        """``(batch or 1, n, n)``: who sees whom in any head; None: it ran on other inputs."""
        if self.causal:
            return torch.ones(1, *self.shape[-2:], dtype=torch.bool, device=device).tril()
        mask = self.mask
        assert mask is not None
        pairs = mask if mask.dtype == torch.bool else ~(mask < mask.amax(-1, keepdim=True) - _NO_WEIGHT)
        pairs = pairs.reshape((1,) * (len(self.shape) - pairs.ndim) + pairs.shape)
        if pairs.ndim == 3:  # heads are among the inputs
            pairs = pairs[:, None] if len(pairs) % batch else pairs.unflatten(0, (batch, -1))
        pairs = pairs.flatten(1, -3).any(1).to(device)
        return pairs if len(pairs) in (1, batch) else None

    def distance(self, V: Tensor, U: Tensor) -> float | None:
        """How far U ``(b, n, heads, k)`` is from the weighted mean of V ``(b, n, kv_heads, k)``; None: unknown."""
        b, n, heads, _ = U.shape
        if self.A is not None:
            if self.A.numel() != b * heads * n**2:
                return None
            A = self.A.reshape(b, heads, n, n).to(V.dtype)
            return _relative_distance((A @ repeat_heads(V, heads).transpose(1, 2)).transpose(1, 2), U)
        value, out = (None if x is None else _by_token(x, U) for x in (self.value, self.out))
        if value is None or out is None or value.shape[2] % V.shape[2] or out.shape != U.shape:
            return None
        of_values = _relative_distance(value, repeat_heads(V, value.shape[2]))
        return max(of_values or 0.0, _relative_distance(out, U) or 0.0)


def _by_token(x: Tensor, U: Tensor) -> Tensor | None:
    """``(b, n, heads, k)`` of ``(..., n, k)``; None where it is of other tokens or features."""
    b, n, _, k = U.shape
    return x.reshape(b, -1, n, k).transpose(1, 2) if x.shape[-2:] == (n, k) and x.numel() % (b * n * k) == 0 else None


def _relative_distance(a: Tensor, b: Tensor) -> float | None:
    """That of most tokens ``(b, n, heads, k)``; None where none has finite numbers."""
    a, b = (x.flatten(2).double() for x in (a, b))
    distance = (a - b).norm(dim=-1) / b.norm(dim=-1)
    distance = distance[distance.isfinite()]
    return float(distance.quantile(_SHARE)) if len(distance) else None


def may_be_masked(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module is called with something that may hide tokens: another array than its tokens, an object, or a
    switch that is on.
    """
    passed = [*args, *kwargs.values(), getattr(module, "is_causal", None), getattr(module, "causal", None)]
    arrays = [value for value in passed if isinstance(value, Tensor) and value.ndim > 1]
    x = next((value for value in arrays if value.is_floating_point()), None)
    plain = (bool, int, float, str, Tensor, type(None))
    return any(value is not x for value in arrays) or any(v is True or not isinstance(v, plain) for v in passed)


def values_unreadable() -> bool:
    """Whether tensors have no numbers to read: compiled, traced, mapped over, or captured in a CUDA graph."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
