"""A small ViT with timm's names, a CLS token and named intermediates, as in the demo and in Dovonon et al.

``model(images)`` returns logits; ``model(images, intermediates=True)`` returns all intermediates by name:

* ``embedding``: the tokens that enter the first block;
* ``blocks.0.norm1``, ``blocks.0.attn``: input of attention, and what it adds to the tokens;
* ``blocks.0.middle``: the tokens after that;
* ``blocks.0.norm2``, ``blocks.0.mlp``: input of the MLP, and what it adds;
* ``blocks.0``: the tokens that leave the block; and so on for every block;
* ``norm``: the tokens after the last norm; ``head``: the logits.

All but the last are ``(b, n, d)``, the CLS token first. The attention matrix is never formed; `oversmooth.diagnose`
measures it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Keep = Callable[[str, Tensor], Tensor]  # receives an intermediate by name, and returns it


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(b, n, d) -> (b, n, d)``."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Pre-LN."""

    def __init__(self, width: int, heads: int, hidden: int, qkv_bias: bool, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, qkv_bias)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: Tensor, *, keep: Keep | None = None) -> Tensor:
        if keep is None:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = keep("middle", x + keep("attn", self.attn(keep("norm1", self.norm1(x)))))
        return x + keep("mlp", self.mlp(keep("norm2", self.norm2(x))))


class ViT(nn.Module):
    """``(b, channels, image, image) -> (b, classes)``, or with ``intermediates`` a dict of all intermediates."""

    def __init__(
        self,
        *,
        image: int,
        patch: int,
        channels: int,
        classes: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.num_classes = classes
        self.patch_embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, hidden, qkv_bias, eps) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.head = nn.Linear(width, classes)
        start_weights(self)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, images: Tensor, *, intermediates: bool = False) -> Tensor | dict[str, Tensor]:
        patches = self.patch_embed(images).flatten(2).mT
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        if intermediates:
            return self._named(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])

    def _named(self, x: Tensor) -> dict[str, Tensor]:
        values = {"embedding": x}

        def keep(name: str, value: Tensor) -> Tensor:
            values[name] = value
            return value

        for number, block in enumerate(self.blocks):
            prefix = f"blocks.{number}"
            x = keep(prefix, block(x, keep=lambda name, value, prefix=prefix: keep(f"{prefix}.{name}", value)))
        return values | {"norm": (x := self.norm(x)), "head": self.head(x[:, 0])}


def start_weights(model: nn.Module) -> None:
    """The usual initialisation of ViTs: linear layers with truncated normal weights (0.02) and zero biases."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
