"""Repeating a real block: predictions against the block itself, and the theorem's bounds against random layers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.theory.depth import growth_bounds, log_time, mixing_norm, mlp_lipschitz

seeds = st.integers(0, 2**32 - 1)


def ratio(x: Tensor) -> Tensor:
    mean = x.mean(-2, keepdim=True)
    return ((x - mean).norm(dim=(-2, -1)) / mean.expand_as(x).norm(dim=(-2, -1))).log()


class Counted:
    def __init__(self, block):
        self.block, self.times = block, 0

    def __call__(self, x):
        self.times += 1
        return self.block(x)


def turned_towards(target: Tensor):
    """A branch of size one that pulls every token's direction towards a target's."""
    return lambda x: x + (x / x.norm(dim=-1, keepdim=True) + target) / 2


class TestLogTime:
    @pytest.mark.parametrize(("to", "times"), [(1, 2), (8, 9), (48, 15), (1000, 23)])
    def test_few_evaluations(self, to, times):
        block = Counted(turned_towards(torch.ones(4)))
        found = log_time(block, torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)), to, begin=8)
        assert block.times == found.evaluations == times
        assert found.depth[-1] == to
        assert found.log_hfc_lfc.shape == (len(found.depth), 3)

    @given(seed=seeds, begin=st.sampled_from([8, 16]))
    @settings(max_examples=20)
    def test_is_near_the_block_itself(self, seed, begin):
        g = torch.Generator().manual_seed(seed)
        x, target = torch.randn(2, 6, 5, generator=g).double(), torch.randn(5, generator=g).double()
        block = turned_towards(target)
        found, real = log_time(block, x, 300, begin=begin), x
        for _ in range(300):
            real = block(real)
        assert found.way == "log time"
        wrong = (found.log_hfc_lfc[-1] - ratio(real)).abs()
        assert (wrong <= found.error + 0.01).all()
        assert (wrong <= 0.3).all()

    def test_depths_that_were_run_are_the_block_itself(self):
        x = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)).double()
        block = turned_towards(torch.ones(5).double())
        found = log_time(block, x, 100, begin=9)
        assert found.run == 9
        for depth in range(10):
            torch.testing.assert_close(found.log_hfc_lfc[depth], ratio(x))
            x = block(x)

    @given(seed=seeds)
    @settings(max_examples=20)
    def test_tokens_that_do_not_grow_continue_geometrically(self, seed):
        """x ← mean + 0.8 (x − mean), whose ratio falls by log 0.8 a repeat exactly."""
        x = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(seed)).double()

        def block(x: Tensor) -> Tensor:
            return x.mean(-2, keepdim=True) + 0.8 * (x - x.mean(-2, keepdim=True))

        found = log_time(block, x, 1000, begin=40)
        assert found.way == "geometric"
        torch.testing.assert_close(found.log_hfc_lfc[-1], ratio(x) + 1000 * math.log(0.8), rtol=1e-6, atol=1e-6)
        assert found.conclusive.all()
        assert (found.growth.abs() < 0.1 * x.norm()).all()

    def test_a_rate_that_changes_is_inconclusive(self):
        """The fall slows down: 0.5 at first, 0.95 later."""
        x, times = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double(), [0]

        def block(x: Tensor) -> Tensor:
            times[0] += 1
            return x.mean(-2, keepdim=True) + (0.95 - 0.45 / times[0]) * (x - x.mean(-2, keepdim=True))

        assert not log_time(block, x, 1000, begin=16).conclusive.any()

    def test_far_from_a_constant_state_a_rate_says_nothing(self):
        """Tokens turn, and their HFC/LFC with them, at nearly one rate for a while."""
        x = torch.tensor([[3.0, 1.0], [1.0, 3.0]]).double()
        turn = torch.tensor([[math.cos(0.02), -math.sin(0.02)], [math.sin(0.02), math.cos(0.02)]]).double()

        def block(x: Tensor) -> Tensor:
            return torch.stack([x[0] @ turn, x[1] @ turn.T])

        found = log_time(block, x, 200, begin=16)
        assert found.way == "geometric"
        assert not found.conclusive.any()

    @given(seed=seeds, size=st.floats(0.01, 0.3))
    @settings(max_examples=20)
    def test_tokens_of_a_linear_block_grow_and_change_at_a_rate(self, seed, size):
        """Without a norm tokens grow exponentially, and steps that double would be wrong."""
        g = torch.Generator().manual_seed(seed)
        A = torch.rand(6, 6, generator=g).double() + 0.2
        A = A / A.sum(-1, keepdim=True)
        x = torch.randn(6, 5, generator=g).double() + 1

        def block(x: Tensor) -> Tensor:
            return x + size * A @ x

        found, real = log_time(block, x, 400), x
        for _ in range(400):
            real = block(real) / (1 + size)
        assert found.way == "geometric"
        if found.conclusive:
            expected = ratio(real)
            assert abs(found.log_hfc_lfc[-1] - expected) <= 0.3 * abs(expected - found.log_hfc_lfc[0]) or expected < -30

    def test_equal_tokens_give_no_rate_of_noise(self):
        """In float32 a fall by e³ a repeat ends at the rounding after five; the prediction goes on."""
        x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)) + 1

        def block(x: Tensor) -> Tensor:
            return x.mean(-2, keepdim=True) + math.exp(-3) * (x - x.mean(-2, keepdim=True))

        found = log_time(block, x, 100, begin=16)
        assert float(found.log_hfc_lfc[-1]) == pytest.approx(float(ratio(x)) - 300, abs=2)

    def test_padding_is_not_measured(self):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(2, 6, 5, generator=g).double()
        mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
        block = turned_towards(torch.ones(5).double())
        both = log_time(block, x, 40, mask=mask)
        alone = log_time(block, x[:1, :4], 40)
        torch.testing.assert_close(both.log_hfc_lfc[:, 0], alone.log_hfc_lfc[:, 0])
        torch.testing.assert_close(both.growth[0], alone.growth[0])

    def test_a_block_that_writes_to_its_input(self):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double()
        kept, usual = x.clone(), turned_towards(torch.ones(5).double())
        found = log_time(lambda x: x.copy_(usual(x)), x, 100)
        assert (found.log_hfc_lfc == log_time(usual, x, 100).log_hfc_lfc).all()
        assert (x == kept).all()

    @pytest.mark.parametrize("bad", [dict(to=0), dict(to=2.5), dict(to=4, begin=7)])
    def test_refuses(self, bad):
        with pytest.raises(InputError):
            log_time(lambda x: x, torch.zeros(2, 3), **bad)


def farthest(x: Tensor) -> float:
    """The largest distance between two tokens, from a plain double loop."""
    return max(float((a - b).norm()) for a in x for b in x)


class Layer:
    """A random pre-norm layer: recomputed attention, causal or not, LayerNorm or RMSNorm, an MLP or a gated one."""

    def __init__(self, g: torch.Generator, d: int) -> None:
        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g).double()

        size = 10 ** float(draw(1).clamp(-2, 1))
        self.W_V, self.W_O = size * draw(3, d, 2), draw(3, 2, d) / d
        self.B = draw(3, d, d)
        self.gains, self.shifts = draw(2, d), draw(2, d)
        self.W_in, self.W_out = size * draw(d, 7), draw(7, d) / d
        self.gate = draw(d, 7) if draw(1) > 0 else None
        self.causal, self.centred = bool(draw(1) > 0), bool(draw(1) > 0)
        self.eps = 10 ** float(draw(1) - 4)

    def sigma(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return (x.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def norm(self, x: Tensor, which: int) -> Tensor:
        centred = x - x.mean(-1, keepdim=True) if self.centred else x
        shift = 0 if self.gate is not None else self.shifts[which]
        return centred / self.sigma(x) * self.gains[which] + shift

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(after attention, after the MLP)."""
        y = self.norm(x, 0)
        scores = y @ self.B @ y.mT
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        x = x + (scores.softmax(-1) @ y @ self.W_V @ self.W_O).sum(0)
        y = self.norm(x, 1)
        inner = (
            nn.functional.gelu(y @ self.W_in)
            if self.gate is None
            else nn.functional.silu(y @ self.gate) * (y @ self.W_in)
        )
        return x, x + inner @ self.W_out

    def constants(self, x: Tensor, middle: Tensor) -> list[float]:
        d = x.shape[-1]
        activation = "gelu" if self.gate is None else "silu"
        ball = float(self.gains[1].abs().max()) * d**0.5
        return [
            float(mixing_norm(self.W_V, self.W_O)),
            mlp_lipschitz(self.W_in, self.W_out, activation, self.gate, ball),
            *(float(g.abs().max() / self.sigma(at).min()) for g, at in zip(self.gains, (x, middle), strict=True)),
        ]


class TestGrowthBounds:
    @given(seed=seeds, depth=st.integers(1, 6), grown=st.floats(-1, 4))
    @settings(max_examples=100)
    def test_no_stack_of_layers_violates_them(self, seed, depth, grown):
        g = torch.Generator().manual_seed(seed)
        x = 10**grown * torch.randn(4, 5, generator=g).double()
        constants, distances = [], [farthest(x)]
        for _ in range(depth):
            layer = Layer(g, 5)
            middle, after = layer(x)
            constants.append(layer.constants(x, middle))
            x = after
            distances.append(farthest(x))
        bounds = growth_bounds(*torch.tensor(constants, dtype=torch.float64).T)
        change = (torch.tensor(distances[1:], dtype=torch.float64) / distances[0]).log()
        assert (bounds.log_lower <= change + 1e-9).all()
        assert (change <= bounds.log_upper + 1e-9).all()

    @pytest.mark.parametrize(("sign", "mlp"), [(1, 0.5), (-1, 0.25)])
    def test_are_attained(self, sign, mlp):
        """Attention and MLP that both push two tokens apart, or both together, along their distance."""
        x = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()  # σ = 1 in both
        y = x + sign * 0.5 * x  # attention is the identity
        sigma = float(y.square().mean(-1).sqrt().min())
        z = y + sign * mlp * y / sigma
        constants = torch.tensor([[0.5], [mlp], [1.0], [1 / sigma]], dtype=torch.float64)
        bounds = growth_bounds(*constants)
        attained = bounds.log_upper if sign > 0 else bounds.log_lower
        assert float(attained[0].exp()) == pytest.approx(farthest(z) / farthest(x), rel=1e-9)

    def test_no_lower_bound_once_a_factor_is_not_positive(self):
        bounds = growth_bounds(torch.tensor([0.1, 2.0, 0.1]), torch.zeros(3), torch.ones(3), torch.ones(3))
        assert bounds.log_lower.tolist() == [pytest.approx(math.log(0.9)), -math.inf, -math.inf]
        assert bounds.log_upper[-1] == pytest.approx(2 * math.log(1.1) + math.log(3))

    @given(seed=seeds)
    @settings(max_examples=30)
    def test_constants(self, seed):
        g = torch.Generator().manual_seed(seed)
        W_V, W_O = torch.randn(3, 8, 2, generator=g), torch.randn(3, 2, 8, generator=g)
        expected = sum(float(torch.linalg.svdvals(v.double() @ o.double())[0]) for v, o in zip(W_V, W_O, strict=True))
        assert float(mixing_norm(W_V, W_O)) == pytest.approx(expected, rel=1e-9)
