import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import attention, normal, same_spectrum

from oversmooth.theory import SoftmaxAttention, attention_spectrum, flip_threshold


def without_one(A):
    """All eigenvalues by a dense decomposition, less the one nearest to 1."""
    values = torch.linalg.eigvals(A)
    return values[(values - 1).abs().argsort()][1:]


@given(st.integers(2, 20), st.integers(0, 10_000), st.floats(0.1, 4.0))
def test_all_eigenvalues_but_the_one(n, seed, sharpness):
    A = attention(n, n, seed=seed, sharpness=sharpness)
    found = attention_spectrum(A)
    assert found.method == "dense"
    assert found.method != "arnoldi"
    assert same_spectrum(found.values, without_one(A), 1e-7)
    # Proposition 1: moduli at most 1, and the others below it for positive A.
    assert (found.values.abs() < 1).all()
    assert found.radius == found.values.abs().max()


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_causal_attention_has_its_diagonal(n, seed):
    A = attention(3, n, n, causal=True, seed=seed)
    found = attention_spectrum(A)
    assert found.method == "causal"
    torch.testing.assert_close(found.values.real, A.diagonal(dim1=-2, dim2=-1)[:, 1:])
    assert found.values.shape == (3, n - 1)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_arnoldi_finds_the_vertices_of_the_hull(sharpness):
    A = attention(4, 120, 120, sharpness=sharpness)
    found = attention_spectrum(A, method="arnoldi", steps=110)
    assert found.method == "arnoldi"
    assert found.method == "arnoldi"
    assert found.residuals.shape == found.values.shape
    for a, values, residuals in zip(A, found.values, found.residuals, strict=True):
        exact = without_one(a)
        for angle in torch.arange(16) * (2 * torch.pi / 16):
            turn = torch.polar(torch.ones(()), -angle).to(values.dtype)
            best = (values * turn).real.argmax()
            assert residuals[best] <= found.tolerance
            assert abs((values[best] * turn).real - (exact * turn).real.max()) < 1e-7


def test_the_zero_that_is_not_an_eigenvalue_stays_out():
    """Centred, A has also an eigenvalue 0 on the constant vector: rounding must not let it in."""
    positive = torch.matrix_exp(0.2 * (attention(100, 100, sharpness=1.0) - torch.eye(100, dtype=torch.float64)))
    for dtype in (torch.float32, torch.float64):
        found = attention_spectrum(positive.to(dtype), method="arnoldi", steps=90)
        assert found.values.real.min() > 0.75


@pytest.mark.parametrize("method", ["dense", "arnoldi"])
def test_degenerate_attention(method):
    n = 12
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert attention_spectrum(uniform, method=method).radius < 1e-12
    identity = torch.eye(n, dtype=torch.float64)
    values = attention_spectrum(identity, method=method).values
    torch.testing.assert_close(values, torch.ones_like(values))  # the eigenvalue 1 is repeated; one of them is left out
    pairs = torch.block_diag(*[torch.full((2, 2), 0.5, dtype=torch.float64)] * 6)
    values = attention_spectrum(pairs, method=method, steps=11).values
    assert same_spectrum(values, torch.tensor([1.0] * 5 + [0.0] * 6), 1e-7)


def test_hidden_tokens_have_no_eigenvalues():
    n, k = 9, 4
    q, key = normal(2, n, k), normal(2, n, k, seed=1)
    mask = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 1]).bool()
    A = SoftmaxAttention(q, key, mask=mask)
    values = attention_spectrum(A).values
    for head in range(2):
        kept = values[head][~values[head].isnan()]
        exact = without_one(A.dense().A[head][mask][:, mask])
        assert same_spectrum(kept, exact, 1e-9)
    causal = SoftmaxAttention(q, key, mask=mask, causal=True)
    values = attention_spectrum(causal).values
    diagonal = causal.dense().A.diagonal(dim1=-2, dim2=-1)[:, mask]
    for head in range(2):
        torch.testing.assert_close(values[head][~values[head].isnan()].real, diagonal[head, 1:])


def test_operator_and_matrix_agree_without_forming_the_matrix(monkeypatch):
    from oversmooth.theory import spectrum

    q, k = normal(2, 90, 8), normal(2, 90, 8, seed=1)
    A = SoftmaxAttention(q, k)
    expected = attention_spectrum(A.dense(), method="dense").radius
    monkeypatch.setattr(spectrum, "_MATERIALISE", 0)
    monkeypatch.setattr(SoftmaxAttention, "dense", None)  # any attempt fails
    torch.testing.assert_close(attention_spectrum(A).radius, expected, rtol=1e-7, atol=1e-9)


def test_one_and_two_tokens():
    one = attention_spectrum(torch.ones(1, 1))
    assert one.values.shape == (0,)
    assert one.radius == 0
    two = attention_spectrum(torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64), method="arnoldi")
    torch.testing.assert_close(two.values, torch.tensor([0.6 + 0j], dtype=torch.complex128))


def test_one_token_never_flips():
    assert flip_threshold(torch.ones(1, 1)) == -torch.inf
