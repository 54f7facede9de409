"""Transformer blocks as people write them by hand: one catalogue for every test that needs a small model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Attention by `mix`, which is handed what comes with the tokens. together: one weight for q, k and v, or three."""

    def __init__(self, width: int, heads: int = 2, *, together: bool = True) -> None:
        super().__init__()
        self.num_heads, self.together = heads, together
        if together:
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        else:
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: whatever torch's fused call takes."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:
        parts = self.qkv(x).chunk(3, -1) if self.together else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        mixed = self.mix(q, k, v, *given, **named).transpose(1, 2).flatten(2)
        return self.proj(mixed) if self.together else self.out_proj(mixed)


class Block(nn.Module):
    """Pre-LN around any attention; torch's own is called as it wants to be."""

    def __init__(self, width: int, attn: nn.Module, hidden: int | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(width), nn.LayerNorm(width), attn
        hidden = hidden or 2 * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:
        h = self.norm1(x)
        if isinstance(self.attn, nn.MultiheadAttention):
            x = x + self.attn(h, h, h, **{"need_weights": False} | named)[0]
        else:
            x = x + self.attn(h, *given, **named)
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    """Blocks in a row; each is handed what comes with the tokens."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, *given: Any, **named: Any) -> Tensor:
        for block in self.blocks:
            x = block(x, *given, **named)
        return x


def torch_block(width: int, heads: int = 2, hidden: int | None = None, **settings: Any) -> Block:
    """A block around torch's attention."""
    return Block(width, nn.MultiheadAttention(width, heads, batch_first=True, **settings), hidden)


def own_block(width: int, heads: int = 2, hidden: int | None = None, *, together: bool = True) -> Block:
    return Block(width, SelfAttention(width, heads, together=together), hidden)


def moved(model: nn.Module, by: float = 0.1) -> nn.Module:
    """In eval mode, with every parameter a little away from where it started."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(by * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return model.eval()
