"""Rates near a constant state, against dense Jacobians in float64 and against the block itself, repeated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oversmooth.safety.errors import InputError
from oversmooth.theory.constant_state import constant_state

N, D, HEADS = 5, 8, 2


def ratio(x: Tensor) -> float:
    mean = x.mean(-2, keepdim=True)
    return float(((x - mean).norm() / mean.expand_as(x).norm()).log())


class Block(nn.Module):
    """A transformer block without positions, in float64; a large norm in front of the MLP makes differences grow."""

    def __init__(self, seed: int, *, post: bool, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.post = post
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.double().requires_grad_(False)
        for parameter in self.mlp.parameters():
            parameter.mul_(size)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, D // HEADS)).movedim(-3, 0).transpose(-2, -3)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def on_centred_arrays(function, at: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the derivative on centred arrays and, as columns, their arrays, from the whole Jacobian."""
    n, d = at.shape
    J = torch.autograd.functional.jacobian(function, at).reshape(n * d, n * d)
    basis = torch.linalg.qr(torch.cat([torch.ones(n, 1), torch.eye(n)[:, 1:]], 1).double()).Q[:, 1:]
    centred = torch.kron(basis.contiguous(), torch.eye(d).double())
    values, vectors = torch.linalg.eig(centred.T @ J @ centred)
    return values, centred @ vectors.real


def direction(block: Block, seed: int) -> Tensor:
    """Where equal tokens grow to: ẏ = b(y) − y in small steps."""
    y = tokens(seed).mean(0, keepdim=True).expand(N, D)
    for _ in range(300):
        y = y + 0.1 * (block(1000 * y) - 1000 * y - y)
    return y


def tokens(seed: int) -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(seed)).double() + 1


@pytest.mark.parametrize("seed", range(4))
def test_pre_norm_against_the_dense_jacobian(seed):
    block = Block(seed, post=False, size=2.0)
    found = constant_state(block, tokens(seed), "log time")
    values, _ = on_centred_arrays(lambda y: block(1000 * y) - 1000 * y, direction(block, seed))
    expected = values.real.max() - 1
    assert found.rate == pytest.approx(float(expected), abs=0.01)
    assert found.rate >= -1.01  # the derivative of a norm vanishes along the token
    assert found.why is None


@pytest.mark.parametrize("seed", range(4))
def test_post_norm_against_the_dense_jacobian(seed):
    block = Block(seed, post=True)
    found = constant_state(block, tokens(seed), "geometric")
    m = tokens(seed).mean(0, keepdim=True).expand(N, D)
    for _ in range(300):
        m = block(m)
    assert found.rate == pytest.approx(float(on_centred_arrays(block, m)[0].abs().max().log()), abs=0.01)


@pytest.mark.parametrize(("seed", "size"), [(0, 1.0), (2, 3.0)])
def test_a_pre_norm_block_goes_as_that_power_of_depth(seed, size):
    """From the state itself, 1,000 blocks deep, and the slowest differences: others take long to die out."""
    block, logs = Block(seed, post=False, size=size), []
    y = direction(block, seed)
    values, arrays = on_centred_arrays(lambda y: block(1000 * y) - 1000 * y, y)
    x = 1000 * y + 1e-3 * arrays[:, values.real.argmax()].view(N, D)
    for _ in range(1000):
        logs.append(ratio(x))
        x = block(x)
    assert constant_state(block, y, "log time").rate == pytest.approx((ratio(x) - logs[0]) / math.log(2), abs=0.01)


def test_a_post_norm_block_shrinks_at_that_rate():
    block, x, logs = Block(1, post=True), tokens(1).mean(0) + 1e-3 * tokens(101), []
    found = constant_state(block, x, "geometric")
    for _ in range(60):
        x = block(x)
        logs.append(ratio(x))
    slopes = [(logs[end] - logs[end - 15]) / 15 for end in (30, 45)]
    assert found.rate == pytest.approx(slopes[0], abs=0.02)
    assert slopes[0] == pytest.approx(slopes[1], abs=0.02)


def test_padding_and_batches():
    block, x = Block(0, post=False, size=2.0), tokens(0)
    padded = torch.cat([x, 9 * torch.ones(2, D).double()])[None]
    mask = torch.tensor([[True] * N + [False] * 2])

    def masked(x: Tensor) -> Tensor:
        return torch.cat([block(x[:, :N]), x[:, N:]], 1)

    alone = constant_state(block, x, "log time")
    assert constant_state(masked, padded, "log time", mask=mask).rate == pytest.approx(alone.rate, abs=1e-3)
    assert constant_state(block, torch.stack([x, x]), "log time").rate == pytest.approx(alone.rate, abs=1e-3)


def test_what_is_undecided_says_why():
    x, turn = tokens(0), torch.linalg.qr(tokens(1)[:, :N]).Q
    places = torch.arange(N).double()[:, None] + 1
    for block, way, why in (
        (lambda x: x * places, "geometric", "equal_tokens_part"),
        (lambda x: x[:, :N] @ turn, "geometric", "no_fixed_point"),
        (lambda x: x, "geometric", None),
    ):
        found = constant_state(block, x[:, :N], way)
        assert (found.why and found.why.kind) == why
        assert math.isnan(found.rate) == bool(why)
    assert constant_state(lambda x: x, x.bfloat16(), "geometric").why.kind == "half_precision"
    with pytest.raises(InputError):
        constant_state(lambda x: x, x, "linear")
