"""Blocks as people write them, which no library names."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from support.blocks import Block
from support.families import WIDTH, HandBlock, ToyAttention
from torch import Tensor, nn


class Own(Block):
    """Takes notes of its stream in plain attributes, which no module reads."""

    def __init__(self) -> None:
        super().__init__(WIDTH, ToyAttention(), 48)
        self.notes: dict[str, Tensor] = {}
        self.setup()

    def setup(self) -> None: ...

    def note(self, part: str, x: Tensor) -> Tensor:
        self.notes[part] = x.detach().clone()
        return x


class Halved(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + 0.5 * self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class OneGate(Own):
    def setup(self) -> None:
        self.zeta = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + self.zeta.tanh() * self.attn(self.norm1(x)))
        return x + self.zeta.tanh() * self.mlp(self.norm2(x))


class ChannelGate(Own):
    def setup(self) -> None:
        self.zeta = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + self.zeta * self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class TokenGate(Own):
    def setup(self) -> None:
        self.opens = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = self.note("attention", x + self.opens(h).sigmoid() * self.attn(h))
        return x + self.mlp(self.norm2(x))


class Deep(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.note("attention", 2.2 * x + self.attn(x)))
        return self.norm2(2.2 * x + self.mlp(x))


class NoResidual(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class MlpFirst(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.note("mlp", x + self.mlp(self.norm2(x)))
        return x + self.attn(self.norm1(x))


class Beside(Own):
    def forward(self, x: Tensor) -> Tensor:
        attended = 0.6 * self.attn(self.norm1(x))
        self.note("attention", x + attended)
        return x + attended + 0.4 * self.mlp(self.norm2(x))


class Functional(Own):
    """No module reads the sum: the MLP's norm is a function."""

    def setup(self) -> None:
        del self.norm2

    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + 0.7 * self.attn(self.norm1(x)))
        return x + self.mlp(F.layer_norm(x, (WIDTH,)))


class HalvedHand(HandBlock):
    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + 0.5 * self.attn(h, h, h, need_weights=False)[0]
        self.notes["attention"] = x.detach().clone()
        return x + self.mlp(self.norm2(x))


class SeeingStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, ToyAttention(), 48) for _ in range(2))

    def forward(self, tokens: Tensor, lit: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            tokens = block(tokens, lit)
        return tokens


class Prefixed(nn.Module):
    """A model behind tokens that are learned, as people tune prompts: its stream is longer than its mask."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert, self.config = bert, bert.config
        self.prefix = nn.Parameter(torch.randn(3, WIDTH))

    def set_attn_implementation(self, name: str) -> None:
        self.bert.set_attn_implementation(name)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        embedded = self.bert.embeddings.word_embeddings(input_ids)
        embedded = torch.cat([self.prefix.expand(len(input_ids), -1, -1).to(embedded), embedded], 1)
        if attention_mask is not None:
            attention_mask = torch.cat([attention_mask.new_ones(len(attention_mask), 3), attention_mask], 1)
        return self.bert(inputs_embeds=embedded, attention_mask=attention_mask, **more)
