"""Factors between attention and the stream are in the extrapolation too: against dense matrices, step by step."""

import math

import pytest
import torch
from support.blocks import SelfAttention, Stack
from support.oracles import dense_radii
from torch import nn

from oversmooth import diagnose
from oversmooth.theory.reasons import Reason
from oversmooth.trace import plan

D, HEADS, N = 16, 2, 6


class _Attention(SelfAttention):
    def __init__(self):
        super().__init__(D, HEADS)

    def mix(self, q, k, v):
        self.A = (q @ k.mT / math.sqrt(D // HEADS)).softmax(-1)
        return self.A @ v


class _Block(nn.Module):
    def __init__(self, keep, factor):
        super().__init__()
        self.attn, self.keep, self.factor = _Attention(), keep, factor

    def forward(self, x):
        return self.keep * x + self.factor * self.attn(x)


@pytest.mark.parametrize(("keep", "factor"), [(1.0, 1.0), (1.0, 0.5), (1.7, 1.0), (0.0, 1.0), (1.0, -0.4)])
def test_radii_and_repeats_of_the_last_block(keep, factor):
    torch.manual_seed(3)
    model = Stack(_Block(keep, factor), _Block(keep, factor)).double().eval()
    x = torch.randn(1, N, D, dtype=torch.float64)
    with torch.no_grad():
        repeated = [model(x)]
        for _ in range(2):
            repeated.append(model.blocks[-1](repeated[-1]))
    found = diagnose(model, x, depth=2)
    last = model.blocks[-1].attn
    A, weights = last.A[0].detach(), last.qkv.weight.detach()[2 * D :]
    W_V = weights.T.unflatten(1, (HEADS, -1)).transpose(0, 1)
    W_O = factor * last.proj.weight.detach().T.unflatten(0, (HEADS, -1))
    # keep·X + f(X) is keep times X + f(X)/keep; without X the identity is taken off again.
    if keep:
        smooth, rough = (abs(keep) * r for r in dense_radii(A, W_V, W_O / keep))
    else:
        smooth, rough = _radii_without_residual(A, W_V, W_O)
    entry, layer = found.extrapolation[0], found.layers[-1]
    assert (entry.rho_smooth, entry.rho_rough) == pytest.approx((float(smooth), float(rough)), rel=1e-4)
    assert layer.dominance.joined_rho_rough == pytest.approx([float(rough)], rel=1e-4)
    assert layer.spectrum.rho_smooth == pytest.approx(float(smooth), rel=1e-4)
    with torch.no_grad():
        ratios = [torch.log((X - X.mean(1, keepdim=True)).norm() / (N**0.5 * X.mean(1).norm())) for X in repeated]
    for ours, ratio in zip(entry.real.log_hfc_lfc, ratios, strict=True):
        if ratio > -25:  # below tells rounding from rounding
            assert ours == pytest.approx(float(ratio), abs=1e-5)


class _MlpFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.attn = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, D), nn.GELU()), _Attention()

    def forward(self, x):
        x = x + self.mlp(self.norm(x))
        return x + 0.5 * self.attn(x)


def test_factors_are_constant_where_attention_adds_to_what_an_mlp_left():
    """They are compared between inputs only where attention adds to what entered the block."""
    torch.manual_seed(3)
    model = Stack(_MlpFirst(), _MlpFirst()).eval()
    found = diagnose(model, [torch.randn(2, N, D) for _ in range(3)], depth=0)
    for layer in found.layers[1:]:
        assert layer.dominance.rho_rough > 0  # None, were the factors taken for the input's own


def _radii_without_residual(A, W_V, W_O):
    H = (W_V @ W_O).sum(0)
    T = sum(torch.kron(A[h], (W_V[h] @ W_O[h]).T.contiguous()) for h in range(HEADS))
    P = torch.kron(torch.eye(N, dtype=torch.float64) - 1 / N, torch.eye(D, dtype=torch.float64))
    return torch.linalg.eigvals(H).abs().max(), torch.linalg.eigvals(P @ T @ P).abs().max()


class _Gated(nn.Module):
    """A block whose attention is multiplied by a number of each input's own."""

    def __init__(self):
        super().__init__()
        self.attn, self.norm, self.mlp = _Attention(), nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x):
        x = x + x.abs().amax((1, 2), keepdim=True).round() / 4 * self.attn(x)
        return x + self.mlp(self.norm(x))


def test_a_gate_that_depends_on_the_input_is_no_factor():
    torch.manual_seed(0)
    net = Stack(_Gated(), _Gated())
    x = torch.randn(3, N, D) * torch.tensor([1.0, 1.0, 3.0])[:, None, None]
    x[1] = x[0]
    one = diagnose(net.eval(), x[:2], depth=0)
    assert one.layers[1].dominance.undecided_share == 0  # one number for both
    found = diagnose(net, x, depth=0)
    assert all(word == "undecided" for row in found.layers[1].dominance.verdict_heads for word in row)
    assert found.layers[1].dominance.undecided_reasons[0] == Reason("input_dependent")
    assert found.layers[1].spectrum.rho_smooth is None
    assert any(note.reason == Reason("input_dependent") for note in found.notes)
    assert found.layers[1].change("attention") is not None


class _NormedBlock(nn.Module):
    """``x + norm(attn(x))``; its norm, or a scale in its place."""

    def __init__(self, norm):
        super().__init__()
        self.attn, self.after = _Attention(), norm

    def forward(self, x):
        return x + self.after(self.attn(x))


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(0.5 + torch.rand(D))

    def forward(self, x):
        return x * self.gamma


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [True, False])
def test_a_norm_on_the_branch_is_no_scale_even_where_all_tokens_have_one_size(dtype, normed):
    """Each token attends to itself, and what is mixed is rotated: the first input's tokens are all divided by one σ."""
    torch.manual_seed(0)
    model = Stack(_NormedBlock(nn.RMSNorm(D) if normed else _Scale()))
    attention = model.blocks[0].attn
    with torch.no_grad():
        rotation = torch.linalg.qr(torch.randn(D, D)).Q
        attention.qkv.weight.copy_(torch.cat([20 * torch.eye(D), 20 * torch.eye(D), rotation]))
        attention.proj.weight.copy_(rotation)
        attention.proj.bias.zero_()
    even = nn.functional.normalize(torch.randn(1, N, D), dim=-1)
    uneven = even * torch.tensor([1, 1.7, 0.6, 2, 1, 0.5])[:, None]
    found = diagnose(model.to(dtype).eval(), [even.to(dtype), uneven.to(dtype)], depth=0)
    (layer,) = found.layers[1:]
    assert (layer.spectrum.rho_smooth is None) == normed
    assert (layer.dominance.rho_smooth_heads[0] is None) == normed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-3, -1.0])
def test_a_scale_of_any_size_is_no_norm(dtype, size):
    torch.manual_seed(0)
    model = Stack(_NormedBlock(_Scale()))
    model.blocks[0].after.gamma.data *= size
    found = diagnose(model.to(dtype).eval(), torch.randn(2, N, D).to(dtype), depth=0)
    assert Reason("norm_after_attention") not in [note.reason for note in found.notes]
    if dtype == torch.float32:
        assert found.layers[1].spectrum.rho_smooth is not None
        assert size or found.layers[1].spectrum.rho_smooth == 1


def test_a_branch_that_is_shut_has_the_factor_0():
    """ReZero before training: with X as it is on both sides, neither wins."""
    torch.manual_seed(3)
    model = Stack(_Block(1.0, 0.0), _Block(1.0, 0.5)).eval()
    x = torch.randn(2, N, D)
    factors = [block.layer.factor for block in plan(model, x).blocks]
    assert [float(f) for f in factors] == [0.0, pytest.approx(0.5)]
    found = diagnose(model, x, depth=0).layers[1]
    assert (found.dominance.undecided_share, found.dominance.joined_rho_rough) == (0, [1.0])
