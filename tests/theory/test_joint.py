"""All heads jointly under causal attention: tokens that compete, values that heads share, and a budget of products."""

import pytest
import torch
from support.oracles import attention, weights
from torch.nn.functional import pad

from oversmooth.theory import dominance, shared_weights
from oversmooth.theory.krylov import Arnoldi, extremal
from oversmooth.theory.operators import DenseAttention
from oversmooth.theory.systems import CausalBlocks

HEADS, TOKENS, WIDTH, SIZE = 6, 40, 24, 4


def grouped(seed, value_heads=2, scale=0.5):
    W_V, _ = weights(value_heads, WIDTH, SIZE, scale=scale, seed=seed)
    _, W_O = weights(HEADS, WIDTH, SIZE, scale=scale, seed=seed + 100)
    A = attention(HEADS, TOKENS, TOKENS, causal=True, seed=seed)
    return A, W_V.repeat_interleave(HEADS // value_heads, 0), W_O


def by_token(A, W_V, W_O):
    """The radius of every token's block, the first one's included, from matrices formed in full."""
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    blocks = torch.einsum("hi,hdk,hke->ide", diagonal, W_V, W_O)
    return torch.linalg.eigvals(torch.eye(W_V.shape[1], dtype=A.dtype) + blocks).abs().amax(-1)


@pytest.fixture
def by_arnoldi(monkeypatch):
    monkeypatch.setattr(shared_weights, "_DENSE_BLOCK", 0)
    monkeypatch.setattr(shared_weights, "_DENSE_WEIGHTS", 0)


@pytest.mark.usefixtures("by_arnoldi")
@pytest.mark.parametrize("value_heads", [1, 2, 6])
def test_tokens_that_compete_against_blocks_formed_in_full(value_heads):
    """Fewer value features than the stream has leave an eigenvalue 1 in every block."""
    for seed in range(8):
        A, W_V, W_O = grouped(seed, value_heads)
        expected = by_token(A, W_V, W_O)
        found = dominance(A, W_V, W_O)
        assert found.rho_smooth.item() == pytest.approx(expected[0].item(), abs=1e-8)
        assert found.rho_rough.item() == pytest.approx(expected[1:].max().item(), abs=1e-8)


@pytest.mark.usefixtures("by_arnoldi")
@pytest.mark.parametrize("steps", [1, 3, 6, 12, 24])
def test_a_budget_has_no_wrong_verdict(steps, monkeypatch):
    """However few products: what is not undecided is right, and the radius is within its stated error."""
    monkeypatch.setattr(shared_weights, "_RESTARTS", 0)
    decided = 0
    for seed in range(12):
        A, W_V, W_O = grouped(seed, scale=0.3 + 0.05 * seed)
        expected = by_token(A, W_V, W_O)
        found = dominance(A, W_V, W_O, steps=steps, limit=False)
        assert abs(found.rho_rough.item() - expected[1:].max().item()) <= 4 * found.error.item() + 1e-9
        if found.verdict != "undecided":
            decided += 1
            assert found.verdict == ("smooth" if expected[0] > expected[1:].max() else "rough")
        assert found.certainty == "estimated"
        assert f"{steps} products" in found.rule
    assert decided or steps < 24


@pytest.mark.usefixtures("by_arnoldi")
def test_the_best_tokens_are_refined_whatever_the_budget():
    A, W_V, W_O = grouped(3)
    expected = by_token(A, W_V, W_O)[1:].max().item()
    assert dominance(A, W_V, W_O, steps=10).rho_rough.item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.usefixtures("by_arnoldi")
@pytest.mark.parametrize(("steps", "together", "formed"), [(None, 1, 2**29), (6, 8, 2**29), (None, 1, 0), (6, 8, 0)])
def test_every_input_has_its_best_tokens_refined(steps, together, formed, monkeypatch):
    """Blocks of 40 dimensions, of which six products show little; every token of the first has the larger radius."""
    monkeypatch.setattr(shared_weights, "_STEPS", 6)
    monkeypatch.setattr(shared_weights, "_TOGETHER", together)
    monkeypatch.setattr(shared_weights, "_FORMED", {"cpu": formed})
    W_V, W_O = weights(2, 48, 20, scale=2.0, seed=1)
    first = attention(2, TOKENS, TOKENS, causal=True, seed=2) / 2 + torch.eye(TOKENS, dtype=torch.float64) / 2
    inputs = [first, first / 2 + torch.eye(TOKENS, dtype=torch.float64)[0] / 2]
    found = dominance(torch.stack(inputs), W_V, W_O, steps=steps)
    for i, A in enumerate(inputs):
        assert found.rho_rough[i].item() == pytest.approx(by_token(A, W_V, W_O)[1:].max().item(), rel=1e-6)


def test_what_breaks_off_is_replaced_afterwards_as_at_once():
    """On a GPU, which need not wait at every step, all steps are repeated where a subspace was invariant."""
    blocks = CausalBlocks(torch.ones(3, 2, dtype=torch.float64), *(W / 4 for W in weights(2, 12, 2)))
    at_once, afterwards = Arnoldi(blocks, 0), Arnoldi(blocks, 0)
    at_once.extend(9)
    afterwards.V, afterwards.H = pad(afterwards.V, (0, 0, 0, 9)), pad(afterwards.H, (0, 9, 0, 9))
    assert torch.stack(afterwards._steps_to(9, replace=False)).any()
    afterwards._steps_to(9, replace=True)
    assert torch.equal(afterwards.V, at_once.V)
    assert torch.equal(afterwards.H, at_once.H)


@pytest.mark.usefixtures("by_arnoldi")
def test_tokens_in_parts_give_the_same(monkeypatch):
    A, W_V, W_O = grouped(1)
    whole = dominance(A, W_V, W_O)
    monkeypatch.setattr(shared_weights, "MOST_ENTRIES", 5 * shared_weights._STEPS * WIDTH)
    torch.testing.assert_close(dominance(A, W_V, W_O).rho_rough, whole.rho_rough)


@pytest.mark.usefixtures("by_arnoldi")
def test_inputs_compete_among_their_own_tokens():
    first, W_V, W_O = grouped(0)
    second = attention(HEADS, TOKENS, TOKENS, causal=True, seed=50)
    both = dominance(torch.stack([first, second]), W_V, W_O)
    for i, A in enumerate((first, second)):
        assert both.rho_rough[i].item() == pytest.approx(by_token(A, W_V, W_O)[1:].max().item(), abs=1e-8)


def test_a_budget_with_restarts_bounds_the_products(monkeypatch):
    """Bidirectional heads: `steps` counts every product, those after a restart too."""
    calls = []
    apply = shared_weights.JoinedHeads.apply
    monkeypatch.setattr(shared_weights.JoinedHeads, "apply", lambda self, v: calls.append(len(v)) or apply(self, v))
    A, (W_V, W_O) = attention(2, 90, 90, sharpness=3.0), weights(2, 12, 6, scale=2.0)
    for steps in (20, 64, 100):
        calls.clear()
        found = dominance(A, W_V, W_O, steps=steps, tolerance=1e-14, limit=False)
        assert 0 < len(calls) <= steps
        exact = dominance(A, W_V, W_O, limit=False)
        assert abs(found.rho_rough - exact.rho_rough) <= 4 * (found.error + exact.error)


def test_blocks_on_values_have_the_eigenvalues_of_the_blocks():
    A, W_V, W_O = grouped(2)
    blocks = CausalBlocks(A.diagonal(dim1=-2, dim2=-1).mT, W_V, W_O)
    small = blocks.on_values()
    assert (blocks.size, small.size) == (WIDTH, 2 * SIZE)
    eye = torch.eye(small.size, dtype=A.dtype)
    matrices = torch.stack([small.apply(row.expand(TOKENS, -1)) for row in eye], dim=1)
    got, full = torch.linalg.eigvals(matrices).abs(), torch.linalg.eigvals(blocks.matrices()).abs()
    torch.testing.assert_close(got.sort(-1).values, full.sort(-1).values[:, -small.size :])


def test_only_the_highest_of_a_group_is_followed():
    A, W_V, W_O = grouped(4)
    blocks = CausalBlocks(DenseAttention(A).diagonal().mT[1:], W_V, W_O)
    group = torch.arange(blocks.items) % 3 * 7
    how = dict(tolerance=1e-10, first=4, most=WIDTH)
    alone = extremal(blocks, lambda theta, reach, _: (1 + theta).abs() + reach, **how)
    found = extremal(blocks, lambda theta, reach, _: (1 + theta).abs() + reach, group=group, **how)
    assert found.beaten.any()
    assert found.settled.all()
    for one in group.unique():
        of = group == one
        assert found.score[of].max().item() == pytest.approx(alone.score[of].max().item(), abs=1e-9)
