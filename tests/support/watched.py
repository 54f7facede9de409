"""Small models and a training loop for the tests that watch one: losses, weights, and all that must not move."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention by hand, as no library names its weights."""

    def __init__(self, width=16, dropout=0.1):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Parameter(0.3 * torch.randn(3, width, width))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = torch.einsum("bnd,hde->hbne", self.norm(x), self.mix)
        x = x + self.drop((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return x + self.drop(self.mlp(self.last(x)))


class Own(nn.Module):
    """Blocks whose attention is not known, a BatchNorm before them, and a head."""

    def __init__(self, depth=3, width=16, checkpointing=None):
        super().__init__()
        self.bn = nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)
        self.checkpointing = checkpointing

    def forward(self, x):
        x = self.bn(x.mT).mT
        for layer in self.layers:
            if self.checkpointing is not None and self.training:
                x = checkpoint(layer, x, use_reentrant=self.checkpointing)
            else:
                x = layer(x)
        return self.head(x.mean(1))


class Known(nn.Module):
    """torch's own blocks, whose attention is known."""

    def __init__(self, depth=2, width=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def seed():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the generator that old code shares is what a look must leave)


def probe(batch=4, tokens=5, width=16):
    return torch.randn(batch, tokens, width, generator=torch.Generator().manual_seed(7))


def trained(
    make=Own, watch=None, *, steps=5, wrap=None, autocast=None, scaler=False, accumulate=1, prepare=None, width=16
):
    """(losses, the model, the monitor): every random number in it is drawn from the generators that a look must leave.

    watch: makes the monitor of the model, before it is wrapped. wrap: compile, DDP. prepare: freezes, moves.
    """
    seed()
    model = make()
    if prepare is not None:
        model = prepare(model)
    monitor = None if watch is None else watch(model)
    run = model if wrap is None else wrap(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scale = torch.amp.GradScaler("cpu", enabled=scaler)
    losses = []
    for _ in range(steps):
        for _ in range(accumulate):
            x = torch.randn(6, 5, width) * (1 + random.random()) + float(np.random.rand())  # noqa: NPY002
            y = torch.randint(4, (6,))
            if random.random() < 0.5:
                x = x.flip(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
                loss = nn.functional.cross_entropy(run(x).float(), y)
                if autocast == "look inside" and monitor is not None:
                    monitor.snapshot(monitor.steps)
                    loss = loss + 0 * nn.functional.cross_entropy(run(x).float(), y)
                elif autocast == "look inside":
                    loss = loss + 0 * nn.functional.cross_entropy(run(x).float(), y)
            scale.scale(loss).backward()
            losses.append(loss.item())
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    # What is drawn next, too.
    losses.append((float(torch.rand(())), random.random(), float(np.random.rand())))  # noqa: NPY002
    return losses, model, monitor


def same(a, b):
    """Whether two models have the same bits in every weight and buffer."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
