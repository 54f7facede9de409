"""Dominance along shifts of attention, against every pair of eigenvalues in numpy, and against `dominance` itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.nightly import nightly
from support.oracles import attention, weights

from oversmooth import InputError
from oversmooth.theory import AttentionChange, DenseAttention, dominance
from oversmooth.theory.shifted import shifted_dominance

SHIFTS = [i / 20 for i in range(25)]


def radii(A, W_V, W_O, shift, base=1.0):
    """(ρ_smooth, ρ_rough) of one head over all pairs, the d − k zeros of H left out; A may have hidden tokens."""
    H = W_O.double().numpy() @ W_V.double().numpy()
    lam = np.linalg.eigvals(H)
    n = A.shape[-1]
    basis = np.linalg.svd(np.ones((n, 1)))[0][:, 1:]
    t = np.linalg.eigvals(basis.T @ A.double().numpy() @ basis)
    smooth = max(abs(base + (1 - shift) * one) for one in lam)
    rough = max(abs(base + (z - shift) * one) for z in t for one in lam)
    return smooth, rough


def compared(A, W_V, W_O, base=1.0, residual=True):
    answer = shifted_dominance(A[None], W_V, W_O, SHIFTS, residual=residual)
    clear = 0
    for h in range(len(W_V)):
        for j, shift in enumerate(SHIFTS):
            smooth, rough = radii(A[h], W_V[h], W_O[h], shift, base)
            assert float(answer.rho_smooth[0, h, j]) == pytest.approx(smooth, rel=1e-6)
            assert float(answer.rho_rough[0, h, j]) == pytest.approx(rough, rel=1e-4)
            margin = smooth - max(rough, 1.0 if shift else 0.0)
            if abs(margin) > 1e-3 * max(smooth, rough):
                clear += 1
                assert bool(answer.smoothing[0, h, j]) == (margin > 0), (h, shift, margin)
                assert not answer.undecided[0, h, j]
    return answer, clear


@given(seed=st.integers(0, 10**6), causal=st.booleans(), scale=st.sampled_from([0.2, 0.5, 1.2]))
def test_every_pair_of_eigenvalues(seed, causal, scale):
    A = attention(3, 7, 7, causal=causal, seed=seed)
    W_V, W_O = weights(3, 8, 3, scale=scale, seed=seed)
    _, clear = compared(A, W_V, W_O)
    assert clear > 60


@pytest.mark.parametrize("keep", [0.5, -2.0, 0.0])
def test_other_residual_connections(keep):
    A = attention(2, 6, 6, seed=3)
    W_V, W_O = weights(2, 8, 3, seed=3)
    compared(A, W_V, W_O, base=keep, residual=keep)


def test_a_larger_array_where_only_extremal_values_are_searched_otherwise():
    A = attention(2, 90, 90, seed=5, dtype=torch.float32)
    W_V, W_O = weights(2, 12, 4, seed=5)
    W_O = W_V.mT  # symmetric and positive: it smooths without a shift
    answer, _ = compared(A, W_V, W_O)
    assert answer.smoothing[..., 0].all()
    assert not answer.smoothing[..., -1].any()


@nightly
def test_the_least_shift_is_where_the_verdict_turns():
    A = attention(3, 8, 8, seed=11)
    W_V, _ = weights(3, 10, 4, scale=0.4, seed=11)
    W_O = W_V.mT.clone()
    W_O[2] = -0.5 * W_O[2]  # rough as it is
    answer = shifted_dominance(A[None], W_V, W_O, SHIFTS)
    fine = np.linspace(0, SHIFTS[-1], 4801)
    for h in range(3):
        smooths = []
        for shift in fine:
            smooth, rough = radii(A[h], W_V[h], W_O[h], shift)
            smooths.append(smooth > max(rough, 1.0 if shift else 0.0))
        last = np.nonzero(smooths)[0]
        wanted = 0.0 if not len(last) else fine[last[-1] + 1]
        assert float(answer.least[0, h]) == pytest.approx(wanted, abs=5e-4)
    assert answer.least[0, 2] == 0
    assert (answer.least[0, :2] > 0.1).all()


def test_what_smooths_in_the_whole_range_has_no_least_shift():
    A = attention(1, 6, 6, seed=2)
    W_V, _ = weights(1, 8, 3, seed=2)
    answer = shifted_dominance(A[None], W_V, W_V.mT, [0.0, 0.01, 0.02])
    assert answer.smoothing.all()
    assert answer.least.isinf().all()


def test_padding_is_left_out():
    A = attention(2, 5, 5, seed=4)
    padded = torch.zeros(2, 7, 7, dtype=torch.float64)
    padded[:, :5, :5] = A
    padded[:, 5:, 0] = 1
    mask = torch.tensor([True] * 5 + [False] * 2)
    W_V, W_O = weights(2, 8, 3, seed=4)
    whole = shifted_dominance(A[None], W_V, W_O, SHIFTS)
    hidden = shifted_dominance(DenseAttention(padded[None], mask=mask), W_V, W_O, SHIFTS)
    assert torch.equal(whole.smoothing, hidden.smoothing)
    torch.testing.assert_close(whole.rho_rough, hidden.rho_rough)


def test_components_of_attention():
    """Two closed components: 1 is repeated, and competes with itself whatever the shift."""
    A = torch.block_diag(attention(3, 3, seed=1), attention(4, 4, seed=2))[None]
    W_V, _ = weights(1, 8, 3, seed=7)
    answer, _ = compared(A, W_V, W_V.mT)
    assert not answer.smoothing.any()


@pytest.mark.parametrize("case", ["plain", "long paths", "nearly defective"])
def test_every_shift_is_what_dominance_says(case):
    n = 12
    if case == "long paths":
        A = 0.98 * torch.eye(n, dtype=torch.float64).roll(1, 0) + 0.02 / n
        A[0] = 1 / n
    elif case == "nearly defective":
        A = torch.full((n, n), 1e-9, dtype=torch.float64) + torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
        A[0, 0] = 1
        A = A / A.sum(-1, keepdim=True)
    else:
        A = attention(n, n, seed=9)
    A = A[None, None].float()
    W_V, _ = weights(1, 8, 4, seed=9)
    W_V, W_O = W_V.float(), W_V.mT.float()
    answer = shifted_dominance(A, W_V, W_O, SHIFTS)
    for j, shift in enumerate(SHIFTS):
        one = torch.ones(1)
        change = AttentionChange(one, shift * one, 0 * one, source=shift != 0)
        expected = dominance(A, W_V, W_O, per_head=True, change=change)
        assert torch.equal(answer.smoothing[..., j], expected.smoothing)
        assert torch.equal(answer.undecided[..., j], expected.undecided)


def test_long_inputs_are_asked_shift_by_shift():
    A = attention(1, 600, 600, sharpness=0.5, seed=3, dtype=torch.float32)
    W_V, _ = weights(1, 8, 3, seed=3)
    answer = shifted_dominance(A[None], W_V, W_V.mT, [0.0, 0.5, 1.5])
    assert answer.smoothing[0, 0].tolist() == [True, True, False]
    assert float(answer.least) == 1.5


def test_a_single_token():
    A = torch.ones(2, 1, 1, 1)
    W_V, _ = weights(1, 6, 2, seed=1)
    answer = shifted_dominance(A, W_V.float(), W_V.mT.float(), [0.0, 0.5])
    assert answer.smoothing.all()
    assert (answer.rho_rough == 0).all()


@pytest.mark.parametrize(
    "shifts", [[0.0], [0.1, 0.2], [0.0, 0.2, 0.1], [0.0, 0.2, 0.2], [0.0, float("nan")], [], [0.0, "a"]]
)
def test_shifts_that_do_not_ascend_are_refused(shifts):
    A = attention(1, 4, 4, seed=1)
    W_V, W_O = weights(1, 6, 2, seed=1)
    with pytest.raises(InputError, match="shift"):
        shifted_dominance(A[None], W_V, W_O, shifts)


def test_other_shapes_are_refused():
    W_V, W_O = weights(2, 6, 2, seed=1)
    with pytest.raises(InputError, match="attention has shape"):
        shifted_dominance(attention(1, 3, 4, 4, seed=1), W_V, W_O, [0, 1])
