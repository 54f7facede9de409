"""What repeating a real block does, from a few evaluations of it, and how fast tokens can become alike at all.

Frozen spectra know neither norms nor MLP; the block itself knows both. A pre-norm block adds a branch whose size does
not depend on that of the tokens. These grow, each repeat changes them relatively less than the one before, by 1/l after
l repeats, and what happens is smooth in log l. `log_time` steps through log l: from 16 repeats, 5 more evaluations of
the block reach 48, and 13 reach 1,000. Behind a norm on the stream tokens do not grow; near a constant state HFC/LFC
then changes at a constant rate.

`growth_bounds` is a theorem (docs/theory.md, §3 (f)): what layers can do to the largest distance between two tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oversmooth import metrics
from oversmooth.safety import arguments

Block = Callable[[Tensor], Tensor]
"""Tokens ``(..., n, d)`` to tokens: a transformer block with its norms, MLP, positions and mask."""

LARGEST_ERROR = 0.3
"""Of log(HFC/LFC), above which a prediction is inconclusive."""
LEAST_GROWTH = 0.25
"""Of tokens per repeat, in norms of what the block adds. In trained pre-norm blocks it is 0.4 to 1 after 16 repeats, in
post-norm blocks at most 0.14 (gallery models, chosen between).
"""
LEAST_RUN = 8
"""Repeats after which pre-norm and post-norm blocks can be told apart by their growth."""
MOST_SCALED = 0.5
"""Of what a block adds, by which that may change when its tokens are doubled: nothing behind a norm before the
sublayers, all of it in a linear block, whose tokens grow exponentially.
"""
NEAR_CONSTANT = -2.0
"""Log(HFC/LFC) below which tokens are near a constant state."""
# Below so many roundings tokens are equal, and what is left of HFC is noise.
_ROUNDINGS = 100


@dataclass(frozen=True)
class DepthPrediction:
    """HFC/LFC while a block is repeated: measured as far as it was run, predicted beyond."""

    depth: Tensor
    """``(depths,)``, repeats of the block."""
    log_hfc_lfc: Tensor
    """``(depths, ...)``, float64."""
    run: int
    """Up to this depth the block itself was run."""
    way: Literal["log time", "geometric"]
    """How it goes on from there."""
    error: Tensor
    """``(...)``, estimated, of log(HFC/LFC) at the last depth."""
    growth: Tensor
    """``(...)``, of the root mean square of tokens per repeat, over the second half of what was run."""
    evaluations: int
    """How often the block was evaluated."""
    tokens: Tensor
    """``(..., n, d)``, at the last depth by log time; else at that which was run."""

    @property
    def conclusive(self) -> Tensor:
        """``(...)``, whether the estimated error is at most `LARGEST_ERROR`.

        A geometric rate lasts only where it is a property of the block: near a constant state, where token differences
        shrink linearly. There a tenth of the change is allowed too.
        """
        if self.way == "log time":
            return self.error <= LARGEST_ERROR
        begun, end = self.log_hfc_lfc[self.run], self.log_hfc_lfc[-1]
        near = (begun < NEAR_CONSTANT) & (end <= begun) | (self.depth[-1] == self.run)
        return near & (self.error <= ((begun - end) / 10).clamp(min=LARGEST_ERROR))


def log_time(block: Block, x: Tensor, to: int, *, begin: int = 16, mask: Tensor | None = None) -> DepthPrediction:
    """Predict HFC/LFC after a block was repeated ``to`` times.

    The block is run ``begin`` times. If its tokens grow by at least `LEAST_GROWTH` of what it adds, and that hardly
    depends on their length (`MOST_SCALED`), steps through log depth follow: from depth l one of length l, by the
    midpoint rule; the error adds up what Euler's rule would have changed in each. Else HFC/LFC continues at its last
    rate; the error is what that rate last changed by, times the depth.

    Args:
        block: tokens to tokens.
        x: ``(..., n, d)``, its input.
        to: how often it is repeated.
        begin: how often it is really run first, 8 at least: 16 is far more accurate where a block sharpens.
        mask: ``(..., n)``, True for the tokens that are measured.
    """
    arguments.whole(to, "to", least=1)
    arguments.whole(begin, "begin", least=LEAST_RUN)
    run, own = min(begin, to), x.dtype
    x = x.to(torch.promote_types(own, torch.float32))

    def once(x: Tensor) -> Tensor:
        return block(x.to(own, copy=True)).to(x.dtype)  # it may write to its input

    ratios, sizes, added = [_log_hfc_lfc(x, mask)], [_size(x, mask)], []
    for _ in range(run):
        before, x = x, once(x)
        ratios.append(_log_hfc_lfc(x, mask))
        sizes.append(_size(x, mask))
        added.append(_size(x - before, mask))
    half = run // 2
    growth = (sizes[run] - sizes[half]) / (run - half)
    scaled = _size(once(2 * before) - before - x, mask)  # b(2x) − b(x) of the branch b
    grows = bool(
        ((growth > LEAST_GROWTH * torch.stack(added[half:]).mean(0)) & (scaled < MOST_SCALED * added[-1])).all()
    )
    depths, evaluations, error = list(range(run + 1)), run + 1, torch.zeros_like(growth)
    if run < to and grows:
        while depths[-1] < to:
            step = min(depths[-1], to - depths[-1])
            branch = once(x) - x
            middle = x + step / 2 * branch
            euler, x = x + step * branch, x + step * (once(middle) - middle)
            depths.append(depths[-1] + step)
            ratios.append(_log_hfc_lfc(x, mask))
            error += (ratios[-1] - _log_hfc_lfc(euler, mask)).abs()
            evaluations += 2
    elif run < to:
        last, error = _continued(torch.stack(ratios), to, torch.finfo(own).eps)
        depths.append(to)
        ratios.append(last)
    way: Literal["log time", "geometric"] = "log time" if grows else "geometric"
    return DepthPrediction(torch.tensor(depths), torch.stack(ratios), run, way, error, growth, evaluations, x.to(own))


def _continued(ratios: Tensor, to: int, eps: float) -> tuple[Tensor, Tensor]:
    """(log(HFC/LFC) at a depth beyond, its error), from its rates over the last quarter and the one before it."""
    apart = ratios > math.log(_ROUNDINGS * eps)  # then tokens are equal within rounding
    last = (apart.int().cumprod(0).sum(0, keepdim=True) - 1).clamp(min=0)
    quarter = (last // 4).clamp(min=1)
    now, before, earlier = (ratios.gather(0, (last - back * quarter).clamp(min=0))[0] for back in (0, 1, 2))
    rate, rate_before = (now - before) / quarter[0], (before - earlier) / quarter[0]
    beyond = to - last[0]
    return now + rate * beyond, (rate - rate_before).abs() * beyond


def _log_hfc_lfc(x: Tensor, mask: Tensor | None) -> Tensor:
    return metrics.summary(x, mask=mask, cosines=False).log_hfc_lfc.double()


def _size(x: Tensor, mask: Tensor | None) -> Tensor:
    """``(...)``, the root mean square of tokens' norms."""
    squares = x.double().square().sum(-1)
    if mask is None:
        return squares.mean(-1).sqrt()
    return ((squares * mask).sum(-1) / mask.sum(-1)).sqrt()


@dataclass(frozen=True)
class GrowthBounds:
    """What layers can do to the largest distance between two tokens: logarithms of factors, summed over layers."""

    log_lower: Tensor
    """``(layers,)``, at least this after each layer; −∞ from the first layer that has no lower bound."""
    log_upper: Tensor
    """``(layers,)``, at most this."""


def growth_bounds(mixing: Tensor, mlp: Tensor, gain_1: Tensor, gain_2: Tensor) -> GrowthBounds:
    """Bounds on D(x) = max ‖x_i − x_j‖ through pre-norm layers ``x′ = x + a(N₁x)``, ``x⁺ = x′ + m(N₂x′)``.

    Attention a may be any with non-negative rows that sum to one; m acts on every token by itself. A layer changes D
    by a factor between ``(1 − w q₁)(1 − L q₂)``, if both are positive, and ``(1 + w q₁)(1 + L q₂)``.

    Args:
        mixing: ``(layers,)``, w: the sum over heads of ‖W_V W_O‖; see `mixing_norm`.
        mlp: ``(layers,)``, L: a Lipschitz constant of m; see `mlp_lipschitz`.
        gain_1: ``(layers,)``, q₁: the largest |γ| of the norm before attention, over the least σ of a token there.
        gain_2: ``(layers,)``, q₂: the same of the norm before the MLP.
    """
    moved = torch.stack([mixing * gain_1, mlp * gain_2]).double()
    lower = torch.where((moved < 1).all(0), torch.log1p(-moved.clamp(max=1)).sum(0), -torch.inf)
    return GrowthBounds(lower.cumsum(0), torch.log1p(moved).sum(0).cumsum(0))


def mixing_norm(W_V: Tensor, W_O: Tensor) -> Tensor:
    """``(...)``: Σ_h ‖W_V^h W_O^h‖, of ``(..., heads, d, k)`` and ``(..., heads, k, d)``."""
    # ‖W_V W_O‖ = ‖R_V R_Oᵀ‖ of the triangular factors of W_V and W_Oᵀ: k by k in place of d by d.
    R_V, R_O = torch.linalg.qr(W_V.double(), mode="r").R, torch.linalg.qr(W_O.double().mT, mode="r").R
    return torch.linalg.matrix_norm(R_V @ R_O.mT, 2).sum(-1)


SLOPES = {"relu": 1.0, "gelu": 1.13, "silu": 1.1}
"""The largest slope of an activation, rounded up; each also has |f(z)| ≤ |z|."""


def mlp_lipschitz(W_in: Tensor, W_out: Tensor, activation: str, gate: Tensor | None = None, ball: float = 0.0) -> float:
    """A Lipschitz constant of ``y ↦ f(y W_in) W_out``, or of ``y ↦ (f(y W_gate) ∘ y W_in) W_out`` on a ball.

    Args:
        W_in: ``(d, m)``.
        W_out: ``(m, d)``.
        activation: relu, gelu or silu.
        gate: ``(d, m)``, of a gated MLP without biases.
        ball: its radius: ‖γ‖_∞ √d + ‖β‖ behind a norm.
    """
    slope = SLOPES[arguments.choice(activation, "activation", tuple(SLOPES))]
    inner = slope * _norm(W_in)
    if gate is not None:
        # The derivative is diag(y W_in) f'(·) W_gate + diag(f(·)) W_in; the entries of y W are at most ball · ‖column‖.
        most_in, most_gate = (ball * float(W.double().norm(dim=0).max()) for W in (W_in, gate))
        inner = slope * most_in * _norm(gate) + most_gate * _norm(W_in)
    return inner * _norm(W_out)


def _norm(W: Tensor) -> float:
    return float(torch.linalg.matrix_norm(W.double(), 2))
