"""Three ViTs of one's own class in one's own loop, on Fashion-MNIST: plain, NeuTRENO and Spectral, and a film of all.

    python examples/watch_loop.py [--steps 200] [--every 20] [-o film.html]

Trains on the 512 images that come with the package, so that it needs no download; the numbers show how smoothing moves
while a model learns, and nothing about accuracy.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import oversmooth
from oversmooth.demo.vits import images
from oversmooth.steering import NeuTRENO, Spectral, steer


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, d // self.num_heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MyViT(nn.Module):
    """Nothing of it is known to the package but the names of its weights."""

    def __init__(self, depth: int = 8, width: int = 64, heads: int = 4, patch: int = 7) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (28 // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).mT + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


METHODS = {"plain": None, "NeuTRENO 0.6": NeuTRENO(0.6), "Spectral, sharpening": Spectral("sharpen")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, default=Path("film.html"))
    options = parser.parse_args()
    data = images()
    pictures, labels = data.images[:, :1].float() / 127.5 - 1, data.labels

    monitors = []
    for name, method in METHODS.items():
        torch.manual_seed(0)
        model = MyViT()
        if method is not None:
            steer(model, method)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        # The three lines: make it, call it after each step, look at the history.
        monitor = oversmooth.Monitor(model, probe=pictures[:16], every=options.every, spectra=1, name=name)
        order = torch.Generator().manual_seed(0)
        for _ in range(options.steps):
            some = torch.randint(16, len(pictures), (64,), generator=order)
            loss = nn.functional.cross_entropy(model(pictures[some]), labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step()
        assert not monitor.failures, monitor.failures
        first, last = monitor.history.rows[0], monitor.history.rows[-1]
        print(
            f"{name}: loss {loss.item():.3f}; after the last block HFC/LFC {first['hfc_lfc'][-1]:.2f} → "
            f"{last['hfc_lfc'][-1]:.2f}, mean cos {first['cos'][-1]:.2f} → {last['cos'][-1]:.2f}, effective rank "
            f"{first['effective_rank'][-1]:.1f} → {last['effective_rank'][-1]:.1f}"
        )
        monitors.append(monitor)
    monitors[0].to_html(options.output, *(monitor.history for monitor in monitors[1:]))
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
