"""Attention captured where it is computed: queries, keys and mask of a fused call, or the weights of a softmax.

Fused attention stays fused, and without a mask no n by n array is made. Where torch's kernel returns the log-sum-exp of
the scores, that kernel is called in its place: the output is the same bit for bit, and any a_ij follows from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from oversmooth.safety.errors import InputError
from oversmooth.theory.operators import AttentionOperator, DenseAttention, SoftmaxAttention, attend_with_lse
from oversmooth.trace.valid import MasksRead, Pairs, allowed_pairs, read_once, read_pairs

_SOFTMAX: tuple[Callable[..., Any], ...] = (F.softmax, torch.softmax, Tensor.softmax)
_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


@dataclass
class CapturedAttention:
    """Attention of one call."""

    pairs: Pairs  # what the mask does
    q: Tensor | None = None  # (b, h, n, k); None where a softmax computed A
    k: Tensor | None = None  # likewise, perhaps with fewer heads
    scale: float | None = None  # None: 1/√k
    lse: Tensor | None = None
    """``(b, h, n)``: the log-sum-exp of each row of scores; None where the kernel did not return it."""
    weights: Tensor | None = None  # (b, h, n, n): A itself, where a softmax computed it
    values_in: Tensor | None = None  # (b, n, d): what values were computed from, where that is done in the same call
    row_sums: Tensor | None = None
    """``(b, h, n)``: what tokens get of each row, where a sink takes a share; None: all of it."""

    @cached_property
    def A(self) -> AttentionOperator:
        """As an operator."""
        mask, bias, causal = self.pairs.valid, self.pairs.bias, self.pairs.causal
        if self.weights is not None:
            return DenseAttention(self.weights, mask=mask)
        assert self.q is not None
        assert self.k is not None
        return SoftmaxAttention.trusted(self.q, self.k, self.scale, mask, bias, causal, self.lse)


class CaptureAttention(TorchFunctionMode):
    """While active, captures the attention of every call that mixes tokens.

    argument_mask: ``(batch, n)``: tokens that are not padding, from an argument of the model, which decides what rows
    leave open. known: masks of other layers.
    """

    def __init__(self, heads: int, argument_mask: Tensor | None, known: MasksRead | None = None) -> None:
        super().__init__()
        self.heads, self.argument_mask = heads, argument_mask
        self.known = {} if known is None else known
        self.captured: list[CapturedAttention] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._fused(args, kwargs)
        out = func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with torch.no_grad():
                self._multi_head(_MULTI_HEAD.bind(*args, **kwargs).arguments)
        elif func in _SOFTMAX and isinstance(out, Tensor) and isinstance(args[0], Tensor):
            with torch.no_grad():
                self._weights(args[0], out)
        return out

    def _fused(self, args: Any, kwargs: Any) -> Any:
        call = {**dict(zip(_FUSED, args, strict=False)), **kwargs}
        q, k, v = (call[name] for name in _FUSED[:3])
        if q.shape[-2] != k.shape[-2]:  # reads another sequence: cross-attention, or a cache
            return F.scaled_dot_product_attention(*args, **kwargs)
        mask, causal, scale = call.get("attn_mask"), call.get("is_causal", False), call.get("scale")
        q4, k4 = (x.detach() if x.ndim == 4 else x.detach().unflatten(0, (-1, self.heads)) for x in (q, k))
        captured = self._capture(q4, k4, mask, causal, scale)
        # Steering may listen for this very call, in a mode of its own, which a kernel's name would pass by.
        if not call.get("dropout_p") and not _get_current_function_mode_stack():
            grouped = call.get("enable_gqa", False)
            attended = attend_with_lse(q, k, v, mask, causal=causal, scale=scale, grouped=grouped)
            if attended is not None:
                half = q.dtype in (torch.float16, torch.bfloat16) and q.device.type == "cpu"  # a_ii is 5e-5 off there
                captured.lse = None if half else attended[1]
                return attended[0]
        return F.scaled_dot_product_attention(*args, **kwargs)

    @torch.no_grad()
    def _capture(
        self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None = None
    ) -> CapturedAttention:
        read = None if mask is None else read_once(mask.to(q.device), len(q), self.argument_mask, self.known)
        self.captured.append(CapturedAttention(read or Pairs(causal=causal), q, k, scale))
        return self.captured[-1]

    def _multi_head(self, call: dict[str, Any]) -> None:
        """torch's own attention is a single function: q and k are projected once more, with its own weights."""
        if call["bias_k"] is not None or call["add_zero_attn"]:
            raise InputError(
                "this attention adds a token of its own (bias_k or add_zero_attn), which has no place in A"
            )
        query, key, value, number = (call[name] for name in ("query", "key", "value", "num_heads"))
        if key is not query and not torch.equal(query, key):
            return
        W_q, W_k = call.get("q_proj_weight"), call.get("k_proj_weight")
        if W_q is None or W_k is None:
            W_q, W_k, _ = call["in_proj_weight"].chunk(3)
        b_q, b_k = (None, None) if call["in_proj_bias"] is None else call["in_proj_bias"].chunk(3)[:2]

        def heads(x: Tensor) -> Tensor:  # (n, batch, d) -> (batch, heads, n, k)
            x = x if x.ndim == 3 else x[:, None]
            return x.unflatten(-1, (number, -1)).permute(1, 2, 0, 3)

        q, k = heads(F.linear(query, W_q, b_q)), heads(F.linear(key, W_k, b_k))
        pairs, padding = call.get("attn_mask"), call.get("key_padding_mask")
        causal, n = call.get("is_causal", False) and pairs is None, q.shape[-2]
        if causal and padding is not None:
            pairs, causal = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), False
        if pairs is not None and pairs.ndim == 3:
            pairs = pairs.unflatten(0, (-1, number))
        mask = None if pairs is None else added_to_scores(pairs)
        if padding is not None:
            padding = added_to_scores(padding.reshape(len(q), 1, 1, n))
            mask = padding if mask is None else mask + padding
        captured = self._capture(q, k, mask, causal)
        captured.values_in = value.transpose(0, 1) if value.ndim == 3 else value[None]

    def _weights(self, scores: Tensor, A: Tensor) -> None:
        if A.ndim == 3 and A.shape[0] % self.heads == 0:
            A, scores = (x.unflatten(0, (-1, self.heads)) for x in (A, scores))
        if A.ndim != 4 or A.shape[1] != self.heads or A.shape[-1] - A.shape[-2] not in (0, 1):
            return
        sink = A.shape[-1] > A.shape[-2]  # a column for a share of no token
        A, scores = (x[..., : A.shape[-2]].detach() for x in (A, scores))
        sums = A.sum(-1) if sink else None
        if sums is not None:
            A = A / sums[..., None].clamp(min=torch.finfo(A.dtype).tiny)
        pairs = read_pairs(allowed_pairs(scores), len(A), self.argument_mask)
        self.captured.append(CapturedAttention(pairs, weights=A, row_sums=sums))


def added_to_scores(mask: Tensor) -> Tensor:
    """A mask of torch's own attention, in which True masks, as what is added to scores."""
    return torch.where(mask, -torch.inf, 0.0) if mask.dtype == torch.bool else mask
