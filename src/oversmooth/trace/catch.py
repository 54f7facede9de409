"""Attention caught where it is computed, as an operator: q, k and mask of a fused call, or the weights of a softmax.

Fused attention stays fused: its arguments are read, and the call goes on as it would have. Which tokens count is read
off the mask that is used there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from oversmooth.safety.errors import InputError
from oversmooth.theory.operators import AttentionOperator, DenseAttention, SoftmaxAttention
from oversmooth.trace.tokens import counted, may_see

_SOFTMAX: tuple[Callable[..., Any], ...] = (F.softmax, torch.softmax, Tensor.softmax)


@dataclass
class Caught:
    """Attention of one call."""

    A: AttentionOperator | None
    """None where only tokens were requested."""
    allowed: Tensor | None
    """``(b, h, n, n)`` or broadcastable: who may see whom; None: all see all, or all that came before."""
    tokens: Tensor | None
    """``(b, n)``: the tokens that count; None: all."""
    values_in: Tensor | None = None
    """``(b, n, d)``: what values were computed from, where that is done in the same call."""
    row_sums: Tensor | None = None
    """``(b, h, n)``: what tokens get of each row, where a sink takes a share; None: all of it."""


class CatchAttention(TorchFunctionMode):
    """While active, remembers the attention of every call that mixes tokens.

    Args:
        heads: how many the layer has.
        named: ``(batch, n)``: tokens that are not padding, from an argument of the model; decides what rows leave open.
        operators: False to learn only which tokens count.
    """

    def __init__(self, heads: int, named: Tensor | None, *, operators: bool = True) -> None:
        super().__init__()
        self.heads, self.named, self.operators = heads, named, operators
        self.caught: list[Caught] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._fused(*args, **kwargs)
        elif func is F.multi_head_attention_forward:
            self._multi_head(*args, **kwargs)
        elif func in _SOFTMAX and isinstance(out, Tensor) and isinstance(args[0], Tensor):
            self._weights(args[0], out)
        return out

    # torch's own signatures: callers may name any argument.
    @torch.no_grad()
    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,  # noqa: ARG002
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: ARG002
    ) -> None:
        if query.shape[-2] != key.shape[-2]:
            return  # reads another sequence: cross-attention, or a cache
        query, key = (x if x.ndim == 4 else x.unflatten(0, (-1, self.heads)) for x in (query, key))
        self._softmax(query, key, attn_mask, is_causal, scale)

    @torch.no_grad()
    def _multi_head(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim_to_check: int,  # noqa: ARG002
        num_heads: int,
        in_proj_weight: Tensor | None,
        in_proj_bias: Tensor | None,
        bias_k: Tensor | None,
        bias_v: Tensor | None,  # noqa: ARG002
        add_zero_attn: bool,
        *_: Any,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        **others: Any,
    ) -> None:
        """torch's own attention is a single function: q and k are projected once more, with its own weights."""
        if bias_k is not None or add_zero_attn:
            raise InputError(
                "this attention adds a token of its own (bias_k or add_zero_attn), which has no place in A"
            )
        if key is not query and not torch.equal(query, key):
            return
        if others.get("use_separate_proj_weight"):
            W_q, W_k = others["q_proj_weight"], others["k_proj_weight"]
        else:
            assert in_proj_weight is not None
            W_q, W_k, _W_v = in_proj_weight.chunk(3)
        b_q, b_k = (None, None) if in_proj_bias is None else in_proj_bias.chunk(3)[:2]

        def heads(x: Tensor) -> Tensor:  # (n, batch, d) -> (batch, heads, n, k)
            x = x if x.ndim == 3 else x[:, None]
            return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)

        q, k = heads(F.linear(query, W_q, b_q)), heads(F.linear(key, W_k, b_k))
        visible = None
        if attn_mask is not None:
            visible = attn_mask.logical_not() if attn_mask.dtype == torch.bool else attn_mask  # True hides, here
            visible = visible.unflatten(0, (-1, num_heads)) if visible.ndim == 3 else visible
        if key_padding_mask is not None:
            padding = key_padding_mask.reshape(q.shape[0], 1, 1, -1)
            if is_causal and attn_mask is None:
                visible = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
            visible = _both(visible, padding.logical_not() if padding.dtype == torch.bool else padding)
            is_causal = False
        self._softmax(q, k, visible, is_causal and attn_mask is None, None)
        self.caught[-1].values_in = value.transpose(0, 1) if value.ndim == 3 else value[None]

    @torch.no_grad()
    def _weights(self, scores: Tensor, A: Tensor) -> None:
        if A.ndim == 3 and A.shape[0] % self.heads == 0:
            A, scores = (x.unflatten(0, (-1, self.heads)) for x in (A, scores))
        if A.ndim != 4 or A.shape[1] != self.heads or A.shape[-1] - A.shape[-2] not in (0, 1):
            return
        sink = A.shape[-1] > A.shape[-2]  # a column for a share that no token gets
        A, scores = (x[..., : A.shape[-2]].detach() for x in (A, scores))
        visible = may_see(scores)
        allowed = None if bool(visible.all()) else visible
        tokens = None if allowed is None else self._tokens(allowed, A)
        sums = A.sum(-1) if sink else None
        if sink:
            A = A / A.sum(-1, keepdim=True).clamp(min=torch.finfo(A.dtype).tiny)
        operator = DenseAttention(A, mask=tokens) if self.operators else None
        self.caught.append(Caught(operator, allowed, tokens, row_sums=sums))

    def _tokens(self, allowed: Tensor, like: Tensor) -> Tensor | None:
        tokens = counted(allowed, self.named).expand(like.shape[0], like.shape[-2])
        if not bool(tokens.any(-1).all()):
            return None  # nobody sees anybody: no mask that can be read
        return None if bool(tokens.all()) else tokens.to(like.device)

    def _softmax(self, q: Tensor, k: Tensor, visible: Tensor | None, causal: bool, scale: float | None) -> None:
        mask = bias = seen = None
        if visible is not None:
            n = q.shape[-2]
            visible = visible.reshape((1,) * (4 - visible.ndim) + tuple(visible.shape))
            allowed = visible if visible.dtype == torch.bool else may_see(visible)
            seen = allowed.expand(*allowed.shape[:-2], n, n)
            mask = self._tokens(seen.to(q.device), q)
            tokens = mask if mask is not None else torch.ones(q.shape[0], n, dtype=torch.bool, device=q.device)
            queries = tokens[:, None, :, None]
            extra = None if visible.dtype == torch.bool else torch.where(allowed & queries, visible, 0.0)
            extra = None if extra is None or not bool(extra.any()) else extra
            plain = _explains(allowed, tokens, causal=False)
            if extra is None and (plain or _explains(allowed, tokens, causal=True)):
                causal, mask = not plain, None if bool(tokens.all()) else tokens
            else:
                zero = torch.zeros((), device=q.device)
                bias = torch.where(allowed, zero if extra is None else extra.float(), -torch.inf)
                bias = bias.masked_fill(~queries, 0.0)  # a hidden query may look anywhere
                bias = bias.expand(q.shape[0], q.shape[1], n, n)
                mask = None if bool(tokens.all()) else tokens
                causal = causal or not bool(torch.triu(seen & queries, diagonal=1).any())
        A = None
        if self.operators:
            A = SoftmaxAttention(q.detach(), k.detach(), scale=scale, mask=mask, bias=bias, causal=causal)
        self.caught.append(Caught(A, seen, mask))


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    """Two masks at once: True shows, or numbers are added."""
    if one is None:
        return other
    if one.dtype == other.dtype == torch.bool:
        return one & other
    added = [torch.where(m, 0.0, -torch.inf) if m.dtype == torch.bool else m for m in (one, other)]
    return added[0] + added[1]


def _explains(allowed: Tensor, tokens: Tensor, causal: bool) -> bool:
    """Whether hiding these tokens (and, causally, later ones) is all that a mask does to tokens that count."""
    n = tokens.shape[-1]
    expected = tokens[:, None, None, :].expand(-1, 1, n, n)
    if causal:
        expected = expected & torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
    return not bool(((allowed != expected) & tokens[:, None, :, None]).any())
