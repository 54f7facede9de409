"""Nguyen et al.'s energies against their sums, and attention as a step down their gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth.theory import SoftmaxAttention
from oversmooth_papers.tables.neutreno.energy import fidelity_energy, nonlocal_energy


def double_sum(u, kernel):
    return 0.5 * sum(kernel[i, j] * (u[i] - u[j]).square().sum() for i in range(len(u)) for j in range(len(u)))


def step_size(kernel):
    """Δt_i = 1 / Σ_j (k_ij + k_ji), at which the flow of a symmetric kernel becomes attention."""
    return 1 / (kernel.sum(-1) + kernel.sum(-2))


@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 10_000))
def test_against_the_double_sum(n, d, seed):
    u, f, kernel = normal(n, d, seed=seed), normal(n, d, seed=seed + 1), normal(n, n, seed=seed + 2).exp()
    strength = normal(n, seed=seed + 3).abs()
    torch.testing.assert_close(nonlocal_energy(u, kernel), torch.as_tensor(double_sum(u, kernel)).double())
    expected = double_sum(u, kernel) + 0.5 * (strength * (u - f).square().sum(-1)).sum()
    torch.testing.assert_close(fidelity_energy(u, f, kernel, strength), expected)


@given(st.integers(2, 8), st.integers(0, 10_000))
def test_symmetric_attention_is_one_euler_step_of_the_flow(n, seed):
    """u − Δt ∇J(u) = A u for A = softmax(q qᵀ/√k): P2's reading of attention, exact for queries equal to keys."""
    q, u = normal(n, 4, seed=seed), normal(n, 3, seed=seed + 1).requires_grad_()
    kernel = torch.exp(q @ q.T / 2)
    (gradient,) = torch.autograd.grad(nonlocal_energy(u, kernel), u)
    step = u - step_size(kernel)[:, None] * gradient
    torch.testing.assert_close(step, SoftmaxAttention(q, q) @ u)


@given(st.integers(2, 8), st.floats(0.0, 1.0), st.integers(0, 10_000))
def test_neutreno_is_one_euler_step_with_the_fidelity_term(n, strength, seed):
    """u − Δt ∇E(u, f) = A u + λ̃ (f − u), with λ = λ̃/Δt."""
    q, f = normal(n, 4, seed=seed), normal(n, 3, seed=seed + 2)
    u = normal(n, 3, seed=seed + 1).requires_grad_()
    kernel = torch.exp(q @ q.T / 2)
    step = step_size(kernel)
    (gradient,) = torch.autograd.grad(fidelity_energy(u, f, kernel, strength / step), u)
    torch.testing.assert_close(u - step[:, None] * gradient, SoftmaxAttention(q, q) @ u + strength * (f - u))


def test_ordinary_attention_is_not_such_a_step():
    q, k, u = normal(6, 4), normal(6, 4, seed=1), normal(6, 3, seed=2).requires_grad_()
    kernel = torch.exp(q @ k.T / 2)
    (gradient,) = torch.autograd.grad(nonlocal_energy(u, kernel), u)
    step = u - step_size(kernel)[:, None] * gradient
    assert (step - SoftmaxAttention(q, k) @ u).abs().max() > 0.05


def test_equal_tokens_have_no_energy():
    assert nonlocal_energy(torch.full((5, 3), 1e4).double(), torch.rand(5, 5).double()) == 0


@pytest.mark.parametrize("seed", range(5))
def test_far_clusters_that_are_tight(seed):
    """Sums of squares of 10⁶ leave a few millionths; against a double sum."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.cat([torch.full((3, 2), 1000.0), torch.full((3, 2), -1000.0)])
    u = u + 1e-3 * torch.randn(6, 2, generator=generator)
    kernel = torch.block_diag(*torch.rand(2, 3, 3, generator=generator))
    expected = sum(
        0.5 * kernel[i, j].item() * (u[i].double() - u[j].double()).square().sum().item()
        for i in range(6)
        for j in range(6)
    )
    assert float(nonlocal_energy(u.double(), kernel.double())) == pytest.approx(expected, rel=1e-2)


def test_a_batch_is_its_arrays_one_by_one():
    """The kernel is not symmetric, and the batch not as large as the number of tokens."""
    u, f, kernel = normal(3, 5, 2), normal(3, 5, 2, seed=1), normal(3, 5, 5, seed=2).exp()
    strength = normal(3, 5, seed=3).abs()
    one_by_one = [nonlocal_energy(a, k) for a, k in zip(u, kernel, strict=True)]
    torch.testing.assert_close(nonlocal_energy(u, kernel), torch.stack(one_by_one))
    each = [fidelity_energy(a, b, k, s) for a, b, k, s in zip(u, f, kernel, strength, strict=True)]
    torch.testing.assert_close(fidelity_energy(u, f, kernel, strength), torch.stack(each))
    torch.testing.assert_close(nonlocal_energy(u, kernel[0]), torch.stack([nonlocal_energy(a, kernel[0]) for a in u]))
