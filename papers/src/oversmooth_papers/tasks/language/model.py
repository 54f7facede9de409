"""A transformer for text, causal or masked, Post-LN as published or Pre-LN.

``model(input_ids)`` gives logits, ``model(input_ids, targets)`` the mean cross-entropy, so that both can be compiled as
one. Embedding and output share their weight; the output has a bias.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode
from oversmooth_papers.tasks.language.recipe import Shape

IGNORED = -100  # a target that does not count
_MASKED, _OTHER = 0.8, 0.1  # of the tokens that a masked model must find; the rest stand as they are


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.causal = shape.heads, shape.causal
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(b, n, d) -> (b, n, d)``. mask: who sees whom."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        causal = self.causal and mask is None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.hidden)
        self.fc2 = nn.Linear(shape.hidden, shape.width)
        self.activation = F.relu if shape.activation == "relu" else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_first = shape.norm == "pre"  # by this name anatomy knows it, as in torch's own layers
        self.norm1 = nn.LayerNorm(shape.width, eps=shape.eps)
        self.attn = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width, eps=shape.eps)
        self.mlp = Mlp(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.norm_first:
            x = x + self.dropout(self.attn(self.norm1(x), mask))
            return x + self.dropout(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.attn(x, mask)))
        return self.norm2(x + self.dropout(self.mlp(x)))


class LanguageModel(nn.Module):
    """``(b, n) int64 -> (b, n, vocabulary)``.

    It begins with normal weights of 0.02 and zero biases, as is customary; beside sinusoids the embedding begins as
    large as they are.
    """

    positions: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if shape.vocabulary < 1:
            raise InputError(f"vocabulary is {shape.vocabulary}; fit the recipe to its text with recipe.fitted(data)")
        shape.check_fits()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        if shape.positions == "learned":
            self.positions = nn.Parameter(torch.zeros(shape.length, shape.width))
        else:
            self.register_buffer("positions", sinusoids(shape.length, shape.width), persistent=False)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, eps=shape.eps) if shape.norm == "pre" else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if shape.positions == "learned":
            nn.init.normal_(self.positions, std=0.02)
        else:
            nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)

    def forward(
        self,
        input_ids: Tensor,
        targets: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        last: int | None = None,
        seen: Tensor | None = None,
        features: bool = False,
    ) -> Tensor:
        """attention_mask ``(b, n)``: 0 where there is padding. last: logits of so many last tokens alone.

        seen: a mask as the method of this name makes it, in place of attention_mask; its values are not looked at,
        which a CUDA graph cannot do. features: give ``(b, n, d)``, what the output reads.
        """
        if seen is None and attention_mask is not None and not attention_mask.all():
            seen = self.seen(attention_mask)
        x = self.embedding(input_ids)
        if self.shape.positions == "sinusoidal":
            x = x * math.sqrt(self.shape.width)  # as large as the waves that are added
        x = self.dropout(x + self.positions[: input_ids.shape[1]])
        for block in self.blocks:
            x = block(x, seen)
        x = self.norm(x)
        if features:
            return x
        logits = F.linear(x if last is None else x[:, -last:], self.embedding.weight, self.bias)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    def seen(self, attention_mask: Tensor) -> Tensor:
        """``(b, 1, n, n)``: tokens see those that are no padding, and where it is causal none after them."""
        seen = attention_mask.bool()[:, None, None, :].expand(-1, 1, attention_mask.shape[1], -1)
        return seen.tril() if self.shape.causal else seen

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int, *, temperature: float = 1.0, seed: int = 0) -> Tensor:
        """``(b, n) -> (b, n + count)``: so many tokens more, drawn one by one; temperature 0 takes the likeliest."""
        if not self.shape.causal:
            raise InputError("a masked model does not generate; give one that was trained with --causal")
        if ids.shape[1] + count > self.shape.length:
            asked = f"{ids.shape[1]} tokens and {count} more"
            raise InputError(f"{asked} are over the {self.shape.length} of a window; give fewer")
        generator = torch.Generator(ids.device).manual_seed(seed)
        with in_eval_mode(self):
            for _ in range(count):
                logits = self(ids, last=1)[:, 0].float()
                if temperature:
                    drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
                else:
                    drawn = logits.argmax(-1, keepdim=True)
                ids = torch.cat([ids, drawn], dim=1)
        return ids


def sinusoids(length: int, width: int) -> Tensor:
    """``(length, width)``: sines in even columns, cosines in odd ones, wavelengths from 2π to 20,000π."""
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def hide(
    ids: Tensor, kinds: Tensor, fillers: Tensor, share: float, mask: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a masked model by BERT's rule, a pure function of the random numbers.

    ids, kinds and fillers are ``(b, n)``, the last two uniform in [0, 1). Where kinds is below ``share``, a token is to
    be found: of those, 8 in 10 become the token ``mask``, one in 10 another token, by fillers, and one in 10 stands.
    """
    wanted, masked, other = kinds < share, kinds < share * _MASKED, kinds < share * (_MASKED + _OTHER)
    filler = (fillers * vocabulary).to(ids.dtype).clamp(max=vocabulary - 1)
    seen = torch.where(masked, mask, torch.where(other, filler, ids))
    return seen, torch.where(wanted, ids, IGNORED)
