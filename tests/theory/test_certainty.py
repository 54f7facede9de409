"""Errors from both sides: neither smaller than what rounding does, nor so large that they say nothing."""

import pytest
import torch
from support.oracles import apply_layer, attention, weights

from oversmooth.theory import AttentionChange, dominance
from oversmooth.theory.errors import error_of_pairs, moved
from oversmooth.theory.operators import DenseAttention


def jordan(centre, link, size):
    return centre * torch.eye(size, dtype=torch.float64) + link * torch.diag(
        torch.ones(size - 1, dtype=torch.float64), 1
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_causal_heads_are_certified_and_their_error_is_that_of_the_diagonal(dtype):
    eps = torch.finfo(dtype).eps
    A = attention(3, 30, 30, causal=True, seed=1, dtype=dtype)
    W_V, W_O = (W.to(dtype) for W in weights(3, 8, 4, seed=1))
    for scale in (0.1, 1.0, 8.0):
        found = dominance(A, W_V, scale * W_O, per_head=True)
        assert found.certainty == ["certified"] * 3
        largest = torch.linalg.eigvals(W_O.double() @ W_V.double()).abs().amax(-1) * scale
        assert (found.error <= 1.001 * eps * largest).all()
        # A diagonal entry that is off by its rounding moves |1 + λ t| by up to |λ| ε t.
        t, lam = (x.abs() for x in (found.t, found.lam))
        rough = found.rho_rough > found.rho_smooth
        assert (found.error >= 0.99 * eps * lam * t)[rough].all()


def test_a_causal_head_nearer_to_a_tie_than_its_diagonal_is_known_is_not_decided():
    """λ = −2/(1 + a) is the flip: a change of a by rounding decides it."""
    a = 0.5
    A = torch.tensor([[[1.0, 0.0], [1 - a, a]]])
    for off, decided in ((0.0, False), (1e-3, True), (-1e-3, True)):
        W_O = torch.tensor([[[-2 / (1 + a) * (1 + off)]]])
        found = dominance(A, torch.ones(1, 1, 1), W_O)
        assert (found.verdict in ("smooth", "rough")) is decided


def test_the_error_of_a_pair_against_matrices_within_rounding():
    """Every change of A's entries by their rounding moves |1 + λ t| by less than the error, but by a share."""
    g = torch.Generator().manual_seed(0)
    A, lam = attention(1, 12, 12, seed=3), -1.3
    rounding = 1e-9

    def radius(M):
        t = torch.linalg.eigvals(M)
        return (1 + lam * t[(t - 1).abs().argsort()[1:]]).abs().max()

    values, vectors = torch.linalg.eig(A[0])
    best = (1 + lam * torch.where((values - 1).abs() < 1e-9, 0, values)).abs().argmax()
    left = torch.linalg.inv(vectors)[best]
    condition = torch.linalg.vector_norm(left) * torch.linalg.vector_norm(vectors[:, best])
    operator = DenseAttention.trusted(A, None, False, rounding)
    blur = rounding * torch.linalg.matrix_norm(A)
    error = error_of_pairs(operator, blur, torch.tensor([-lam]), condition[None], torch.zeros(1))[0]
    changes = []
    for _ in range(200):
        E = torch.randn(12, 12, generator=g, dtype=torch.float64)
        E = E - E.mean(-1, keepdim=True)
        changes.append((radius(A[0] + E * (blur / torch.linalg.matrix_norm(E, 2))) - radius(A[0])).abs())
    assert max(changes) <= error * (1 + 1e-6)
    assert max(changes) >= 0.05 * error


def test_a_defective_eigenvalue_moves_by_the_root_of_the_change():
    """Of a Jordan block of size p the first order knows nothing, and Elsner's bound ε^(1/p) holds."""
    for p in (2, 4, 8):
        J = jordan(0.5, 1.0, p)
        change, size = torch.tensor(1e-8, dtype=torch.float64), torch.linalg.matrix_norm(J, 2)
        J[-1, 0] += change
        off = (torch.linalg.eigvals(J) - 0.5).abs().max()
        bound = moved(torch.tensor(1e30, dtype=torch.float64), change, size, p)
        assert off <= bound <= 5 * off


@pytest.mark.parametrize("per_head", [True, False])
def test_the_limit_of_shifted_causal_attention_is_an_eigenarray(per_head):
    heads, n, d = 2, 7, 4
    A, (W_V, W_O) = attention(heads, n, n, causal=True, seed=2), weights(heads, d, d, scale=0.7, seed=2)
    found = dominance(
        A, W_V, W_O, change=AttentionChange(shift=torch.tensor(0.3, dtype=torch.float64)), limit=True, per_head=per_head
    )
    for h, X in enumerate(found.array.array if per_head else [found.array.array]):
        some = slice(h, h + 1) if per_head else slice(None)
        shifted = (A[some] - 0.3 * torch.eye(n, dtype=A.dtype)).to(X.dtype)
        TX = apply_layer(X, shifted, W_V[some].to(X.dtype), W_O[some].to(X.dtype))
        mu = (X.conj() * TX).sum() / X.abs().square().sum()
        assert abs(mu.abs() - (found.rho_rough[h] if per_head else found.rho_rough)) < 1e-9
        assert (TX - mu * X).abs().max() < 1e-9


@pytest.mark.parametrize("per_head", [True, False])
def test_no_limit_is_computed_where_constant_arrays_are_treated_apart(per_head):
    A, (W_V, W_O) = attention(2, 6, 6), weights(2, 4, 4)
    for change in (
        AttentionChange(mean=torch.tensor(0.3)),
        AttentionChange(constant_gain=torch.ones(4), centred_gain=torch.ones(4)),
    ):
        assert dominance(A, W_V, W_O, change=change, limit=True, per_head=per_head).array is None


def test_the_error_of_a_head_whose_attention_is_symmetric_is_its_rounding():
    """Its eigenvalues have condition number 1; A's rounding is four units in the last place of its norm."""
    half = attention(1, 8, 8, seed=3)[0]
    symmetric = half + half.T
    A = torch.eye(8, dtype=torch.float64) + 0.3 * (symmetric - torch.diag(symmetric.sum(-1)))
    W_V, W_O = weights(1, 4, 4, seed=3)
    found = dominance(A[None], W_V, W_O)
    lam = torch.linalg.eigvals(W_V[0] @ W_O[0]).abs()
    expected = 4 * torch.finfo(torch.float64).eps * float(torch.linalg.matrix_norm(A))
    ratio = float(found.error) / (expected * lam)
    assert (ratio - 1).abs().min() < 1e-3
