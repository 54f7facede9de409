"""Attention as a kernel, against detailed balance by hand and the gradient of P2's energy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import attention, normal

from oversmooth import InputError
from oversmooth_papers.tables.neutreno.kernel import attention_kernel, gradient_step

SEEDS = st.integers(0, 10_000)


def rows(K):
    return K / K.sum(-1, keepdim=True)


@given(st.integers(2, 9), SEEDS)
def test_symmetric_kernels_are_known_whatever_scales_their_rows(n, seed):
    q = normal(n, 3, seed=seed)
    found = attention_kernel(rows((q @ q.T).exp()))
    assert float(found.asymmetry) < 1e-10
    # exp of a Gram matrix is positive semi-definite (Schur), so attention has no negative eigenvalue.
    assert float(found.least) > -1e-10
    assert float(found.negative_share) == 0


@given(st.integers(2, 9), SEEDS)
def test_against_the_stationary_distribution_by_powers(n, seed):
    A = attention(n, n, seed=seed, sharpness=1.0)
    found = attention_kernel(A)
    pi = np.linalg.matrix_power(A.numpy(), 4096)[0]
    flow = pi[:, None] * A.numpy()
    size = np.sqrt(np.outer(pi, pi))
    off = np.linalg.norm((flow - flow.T) / size) / np.linalg.norm((flow + flow.T) / size)
    assert float(found.asymmetry) == pytest.approx(off, abs=1e-8)
    # The symmetric part beside π, as a generalised problem that is not symmetric.
    values = np.linalg.eigvals(np.diag(1 / pi) @ (flow + flow.T) / 2).real
    assert float(found.least) == pytest.approx(values.min(), abs=1e-8)
    assert values.max() == pytest.approx(1)


def test_a_symmetric_kernel_that_is_not_positive():
    K = torch.tensor([[0.1, 1.0], [1.0, 0.1]])
    found = attention_kernel(rows(K).double())
    assert float(found.asymmetry) == pytest.approx(0, abs=1e-9)
    assert float(found.least) == pytest.approx(-0.9 / 1.1)
    assert float(found.negative_share) == 0.5


def test_what_goes_round_does_not_flow_back():
    n = 12
    cycle = torch.eye(n, dtype=torch.float64).roll(1, 1)
    assert float(attention_kernel(rows(cycle + 1e-6)).asymmetry) == pytest.approx(1, abs=1e-4)


@given(st.integers(2, 7), st.integers(1, 4), SEEDS)
def test_the_step_is_that_of_the_gradient(n, k, seed):
    scores, V = normal(n, n, seed=seed), normal(n, k, seed=seed + 1)
    kernel, u = scores.exp(), V.clone().requires_grad_()
    energy = 0.5 * sum(kernel[i, j] * (u[i] - u[j]).square().sum() for i in range(n) for j in range(n))
    (gradient,) = torch.autograd.grad(energy, u)
    step = 1 / (kernel + kernel.T).sum(-1, keepdim=True)
    torch.testing.assert_close(gradient_step(scores, V), V - step * gradient)
    same = scores + scores.T
    torch.testing.assert_close(gradient_step(same, V), same.softmax(-1) @ V)


def test_batches_and_large_scores():
    scores = 400 * normal(2, 3, 5, 5)
    assert gradient_step(scores, normal(2, 3, 5, 2)).isfinite().all()
    assert attention_kernel(attention(2, 3, 6, 6)).asymmetry.shape == (2, 3)


@pytest.mark.parametrize(
    ("A", "says"),
    [
        (attention(4, 4, causal=True), "37.5% of attention is 0"),
        (rows(torch.ones(6, 6).tril(1).triu(-1)), "55.6% of attention is 0"),  # a window: symmetric, and not covered
        (torch.tensor([[1e-310, 1.0], [1e-310, 1.0]], dtype=torch.float64), "less than 1e-300 of the time"),
    ],
)
def test_bad_attention(A, says):
    with pytest.raises(InputError, match=says):
        attention_kernel(A)
