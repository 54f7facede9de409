"""torch.nn.MultiheadAttention opened: values and mixed values pass through modules, which hooks can reach.

torch computes it in one function that calls neither a value projection nor its own output projection as a module. This
is the same computation, step by step, for attention of tokens over themselves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.trace.attention import added_to_scores

PROJECTED = "oversmooth_projected"


class Projected(nn.Module):
    """Queries, keys and values pass through it; a hook also receives the tokens they were computed from."""

    def forward(self, _tokens: Tensor, packed: Tensor) -> Tensor:
        return packed


class OpenedAttention(nn.MultiheadAttention):
    """The class of a MultiheadAttention while a method acts inside it; its weights stay where they are."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not (query is key is value) and not (torch.equal(query, key) and torch.equal(key, value)):
            raise InputError(
                "a steered MultiheadAttention received other keys or values than queries; steer self-attention only"
            )
        batched = query.ndim == 3
        x = query if batched else query[:, None]
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        # In memory as torch's own, (n, batch, ·): so the same bits come out, and dropout draws in the same order.
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        packed = getattr(self, PROJECTED)(x.transpose(0, 1), packed.transpose(0, 1)).transpose(0, 1)
        q, k, v = packed.unflatten(-1, (3, -1)).movedim(-2, 0).contiguous()
        q, k, v = (p.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3) for p in (q, k, v))
        bias = self._bias(q, key_padding_mask, attn_mask)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.mT
            weights = F.dropout((scores if bias is None else scores + bias).softmax(-1), dropout)
            mixed = weights @ v
        elif bias is None and is_causal:
            mixed = F.scaled_dot_product_attention(q, k, v, None, dropout, True)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, bias, dropout)
        out = self.out_proj(mixed.transpose(1, 2).flatten(2).contiguous()).transpose(0, 1).contiguous()
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out[:, 0], None if weights is None else weights[0]
        return (out.transpose(0, 1) if self.batch_first else out), weights

    def _bias(self, q: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """Both masks, True or −inf where a pair is masked, as one that is added to the scores."""
        bias = None
        if attn_mask is not None:
            bias = added_to_scores(attn_mask).to(q.dtype)
            if bias.ndim == 3:
                bias = bias.unflatten(0, (-1, self.num_heads))
        if key_padding_mask is not None:
            columns = added_to_scores(key_padding_mask).to(q.dtype).reshape(-1, 1, 1, key_padding_mask.shape[-1])
            bias = columns if bias is None else bias + columns
        return bias


def open_attention(attention: nn.Module) -> None:
    """Open a MultiheadAttention in place: the same weights, outputs equal up to rounding.

    Raises:
        InputError: it is a subclass, or has parts that steering does not know.
    """
    if type(attention) is not nn.MultiheadAttention:
        raise InputError(
            f"{type(attention).__name__} has a forward pass of its own, which cannot be opened; "
            "use torch.nn.MultiheadAttention itself"
        )
    if attention.bias_k is not None or attention.add_zero_attn or not attention._qkv_same_embed_dim:
        raise InputError(
            "this MultiheadAttention has bias_k, add_zero_attn or separate projections, which steering does not know"
        )
    attention.add_module(PROJECTED, Projected())
    attention.__class__ = OpenedAttention


def close_attention(attention: nn.Module) -> None:
    """Undo `open_attention`."""
    del attention._modules[PROJECTED]
    attention.__class__ = nn.MultiheadAttention
