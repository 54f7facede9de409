"""`dominance` against the dense n·d by n·d spectrum, and every way into it against every other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nightly import few
from support.oracles import attention, dense_radii, layer_matrix, normal, radius, same_spectrum, weights

from oversmooth import InputError
from oversmooth.theory import (
    AttentionChange,
    SoftmaxAttention,
    dominance,
    fold_norm,
    krylov,
    shared_weights,
)
from oversmooth.theory.systems import CausalBlocks

METHODS = ("auto", "dense", "arnoldi")
layers = st.tuples(
    st.integers(1, 3),  # heads
    st.integers(2, 9),  # tokens
    st.integers(1, 6),  # width
    st.integers(1, 6),  # head size
    st.booleans(),  # causal
    st.integers(0, 10_000),
)


def draw(heads, n, d, k, causal, seed, scale=0.7):
    return attention(heads, n, n, causal=causal, seed=seed), *weights(heads, d, k, scale=scale, seed=seed)


def check(found, smooth, rough, tolerance=1e-6):
    assert abs(found.rho_smooth.item() - smooth) < tolerance
    assert abs(found.rho_rough.item() - rough) < tolerance
    if abs(smooth - rough) > tolerance:
        assert found.verdict == ("smooth" if smooth > rough else "rough")
        assert found.smoothing.item() == (smooth > rough)


@settings(max_examples=few(20))
@given(layers)
def test_multi_head_theorem_against_the_dense_spectrum(layer):
    A, W_V, W_O = draw(*layer)
    smooth, rough = dense_radii(A, W_V, W_O)
    assert max(smooth, rough) == pytest.approx(radius(layer_matrix(A, W_V, W_O)), abs=1e-6)
    for method in METHODS:
        check(dominance(A, W_V, W_O, method=method), smooth, rough)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_components_with_single_tokens_behind_them(method, seed):
    """Three tokens that see each other, and three that see only themselves and what comes before."""
    sees = torch.ones(6, 6, dtype=torch.bool).tril() | (torch.arange(6) < 3) & (torch.arange(6) < 3)[:, None]
    scores = 2 * normal(3, 6, 6, seed=seed) + torch.tensor([0.0, 0, 0, 3, 4, 5]).diag()
    A = scores.masked_fill(~sees, -torch.inf).softmax(-1)
    W_V, W_O = weights(3, 5, 2, scale=0.7, seed=seed)
    check(dominance(A, W_V, W_O, method=method), *dense_radii(A, W_V, W_O))


@given(layers)
def test_the_spectrum_of_the_update_is_the_union_of_both_parts(layer):
    heads, n, d, k, _, seed = layer
    n, d = min(n, 5), min(d, 3)  # small: dense eigenvalues in the interior are not accurate beyond
    A, W_V, W_O = draw(heads, n, d, k, False, seed)
    T = layer_matrix(A, W_V, W_O)
    basis = torch.cat(
        [torch.full((n, 1), n**-0.5, dtype=A.dtype), torch.linalg.svd(torch.ones(n, 1).double()).U[:, 1:]], 1
    )
    turned = torch.kron(basis.contiguous(), torch.eye(d, dtype=A.dtype))
    turned = turned.T @ T @ turned
    assert turned[d:, :d].abs().max() < 1e-12  # constant arrays stay constant
    parts = torch.cat([torch.linalg.eigvals(turned[:d, :d]), torch.linalg.eigvals(turned[d:, d:])])
    assert same_spectrum(parts, torch.linalg.eigvals(T), 1e-5)


@given(layers)
def test_causal_spectrum_is_the_union_of_the_diagonal_blocks(layer):
    heads, n, d, k, _, seed = layer
    A, W_V, W_O = draw(heads, min(n, 5), min(d, 3), k, True, seed)
    T = layer_matrix(A, W_V, W_O)
    blocks = torch.eye(W_V.shape[1]) + CausalBlocks(A.diagonal(dim1=-2, dim2=-1).mT, W_V, W_O).matrices()
    assert same_spectrum(torch.linalg.eigvals(blocks).flatten(), torch.linalg.eigvals(T), 1e-4)
    # The first token sees only itself: its block is the smooth part.
    torch.testing.assert_close(blocks[0], torch.eye(W_V.shape[1]) + (W_V @ W_O).sum(0))


@given(layers)
def test_causal_blocks_by_arnoldi(layer):
    A, W_V, W_O = draw(*layer[:4], True, layer[5])
    smooth, rough = dense_radii(A, W_V, W_O)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_weights, "_DENSE_BLOCK", 0)
        patch.setattr(shared_weights, "_DENSE_WEIGHTS", 0)
        check(dominance(A, W_V, W_O), smooth, rough)


@given(st.integers(0, 1000), st.integers(20, 96))
def test_arnoldi_is_not_used_where_causal_attention_is_far_from_normal(seed, n):
    """Its Ritz values settle on pseudo-eigenvalues there; the diagonal has the eigenvalues."""
    A, W_V, W_O = draw(3, n, 3, 1, True, seed)
    blocks = torch.eye(3) + torch.einsum("hi,hjk->ijk", A.diagonal(dim1=-2, dim2=-1).double(), (W_V @ W_O).double())
    rough = torch.linalg.eigvals(blocks[1:]).abs().max()
    torch.testing.assert_close(dominance(A, W_V, W_O, method="arnoldi").rho_rough.double(), rough, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_medium_sizes_by_arnoldi_with_restarts(causal, monkeypatch):
    monkeypatch.setattr(shared_weights, "_STEPS", 24)
    for seed in range(3):
        A, W_V, W_O = draw(3, 14, 12, 4, causal, seed, scale=0.4)
        smooth, rough = dense_radii(A, W_V, W_O)
        check(dominance(A, W_V, W_O, method="arnoldi"), smooth, rough)


@given(layers, st.floats(0.0, 1.0), st.booleans())
def test_neutreno_and_missing_residual_enter_the_radii(layer, strength, residual):
    A, W_V, W_O = draw(*layer)
    smooth, rough = dense_radii(A, W_V, W_O, base=float(residual), shift=strength)
    for method in METHODS:
        found = dominance(A, W_V, W_O, residual=residual, neutreno=strength, method=method)
        assert abs(found.rho_smooth.item() - smooth) < 1e-6
        assert abs(found.rho_rough.item() - rough) < 1e-6


def test_neutreno_one_strength_a_head():
    A, W_V, W_O = draw(2, 6, 4, 2, False, 3)
    strengths = torch.tensor([0.2, 0.7], dtype=torch.float64)
    eye = torch.eye(6, dtype=torch.float64)
    shifted = A - strengths[:, None, None] * eye
    T = layer_matrix(shifted, W_V, W_O)
    found = dominance(A, W_V, W_O, neutreno=strengths)
    assert max(found.rho_smooth, found.rho_rough).item() == pytest.approx(radius(T), abs=1e-8)


@given(layers)
def test_per_head_is_each_head_alone_over_its_k_eigenvalues(layer):
    heads, _, d, k, _, _ = layer
    A, W_V, W_O = draw(*layer)
    for method in METHODS:
        found = dominance(A, W_V, W_O, per_head=True, method=method)
        assert found.rho_smooth.shape == (heads,)
        for h in range(heads):
            lam = torch.linalg.eigvals(W_O[h] @ W_V[h] if k <= d else W_V[h] @ W_O[h])
            values = torch.linalg.eigvals(A[h])
            t = values[(values - 1).abs().argsort()][1:]
            smooth, rough = (1 + lam).abs().max(), (1 + lam[:, None] * t).abs().max()
            assert found.rho_smooth[h].item() == pytest.approx(smooth.item(), abs=1e-6)
            assert found.rho_rough[h].item() == pytest.approx(rough.item(), abs=1e-5)
            assert "left out" in found.rule
            t, lam = found.t[h], found.lam[h]
            assert (1 + t * lam).abs().item() == pytest.approx(max(smooth, rough).item(), abs=1e-5)
            counted = dominance(A[h : h + 1], W_V[h : h + 1], W_O[h : h + 1], method=method)
            floor = 1.0 if k < d else 0.0  # the zeros of H
            assert counted.rho_smooth.item() == pytest.approx(max(floor, smooth.item()), abs=1e-6)
            assert "included" in counted.rule


def test_batches_and_batches_of_weights():
    A = attention(3, 2, 3, 6, 6)  # three images, two layers, three heads
    W_V, W_O = normal(2, 3, 4, 2, seed=1), normal(2, 3, 2, 4, seed=2)
    whole = dominance(A, W_V, W_O)
    heads = dominance(A, W_V, W_O, per_head=True)
    assert whole.rho_rough.shape == whole.smoothing.shape == (3, 2)
    assert heads.rho_rough.shape == (3, 2, 3)
    assert whole.array.array.shape == (3, 2, 6, 4)
    for image in range(3):
        for layer in range(2):
            one = dominance(A[image, layer], W_V[layer], W_O[layer])
            torch.testing.assert_close(whole.rho_rough[image, layer], one.rho_rough)
            torch.testing.assert_close(whole.rho_smooth[image, layer], one.rho_smooth)
            assert whole.verdict[image][layer] == one.verdict
            alone = dominance(A[image, layer], W_V[layer], W_O[layer], per_head=True)
            torch.testing.assert_close(heads.rho_rough[image, layer], alone.rho_rough)


@pytest.mark.parametrize("causal", [False, True])
def test_operator_and_mask(causal):
    heads, n, k, d = 2, 9, 4, 5
    q, key = normal(2, heads, n, k), normal(2, heads, n, k, seed=1)
    W_V, W_O = weights(heads, d, k)
    mask = torch.ones(2, n, dtype=torch.bool)
    mask[0, :2], mask[1, 6:] = False, False
    A = SoftmaxAttention(q, key, mask=mask, causal=causal)
    for method in METHODS:
        for per_head in (False, True):
            found = dominance(A, W_V, W_O, method=method, per_head=per_head)
            for i in range(2):
                inner = A.dense().A[i][:, mask[i]][:, :, mask[i]]
                expected = dominance(inner, W_V, W_O, method="dense", per_head=per_head)
                torch.testing.assert_close(found.rho_rough[i], expected.rho_rough, rtol=0, atol=1e-6)
    found = dominance(A, W_V, W_O)
    assert (found.array.array[0, :2] == 0).all()


def test_matrix_free_is_matrix_free(monkeypatch):
    from oversmooth.theory import spectrum

    q, key = normal(1, 2, 80, 6), normal(1, 2, 80, 6, seed=1)
    W_V, W_O = weights(2, 12, 6)
    expected = dominance(SoftmaxAttention(q, key).dense(), W_V, W_O, method="arnoldi")
    monkeypatch.setattr(spectrum, "_MATERIALISE", 0)
    monkeypatch.setattr(SoftmaxAttention, "dense", None)
    found = dominance(SoftmaxAttention(q, key), W_V, W_O)
    torch.testing.assert_close(found.rho_rough, expected.rho_rough, rtol=1e-7, atol=0)
    assert found.residual.max() < 1e-7


def test_large_attention_by_head_agrees_with_the_dense_route_in_float32():
    A = attention(2, 3, 120, 120, dtype=torch.float32, sharpness=1.0)
    W_V, W_O = (w.float() for w in weights(3, 16, 8))
    exact = dominance(A.double(), W_V.double(), W_O.double(), per_head=True, method="dense")
    found = dominance(A, W_V, W_O, per_head=True)
    torch.testing.assert_close(found.rho_rough.double(), exact.rho_rough, rtol=0, atol=1e-3)
    assert (found.smoothing == exact.smoothing).all()
    short = dominance(A, W_V, W_O, per_head=True, steps=4)
    assert (short.residual > 1e-4).any()
    assert (short.tolerance >= short.residual.where(short.residual > 1e-4, 0)).all()  # no finer than that


def test_slow_heads_are_computed_directly(monkeypatch):
    """Where Arnoldi has not converged within its steps, the matrix itself is decomposed."""
    monkeypatch.setattr(krylov.Arnoldi, "residual", lambda _self, y, *_: torch.full_like(y[:, 0].real, 9.0))
    A = attention(3, 80, 80)
    W_V, W_O = weights(3, 8, 4)
    found = dominance(A, W_V, W_O, per_head=True)
    exact = dominance(A, W_V, W_O, per_head=True, method="dense")
    torch.testing.assert_close(found.rho_rough, exact.rho_rough)
    assert (found.residual == 0).all()


def test_limit_array_is_an_eigenarray_of_the_update():
    for seed in range(6):
        heads, causal = 1 + seed % 3, seed % 2 == 0
        A, W_V, W_O = draw(heads, 7, 4, 4, causal, seed)
        for method in METHODS:
            found = dominance(A, W_V, W_O, method=method)
            X = found.array.array.reshape(-1)
            T = layer_matrix(A, W_V, W_O).to(X.dtype)
            mu = X.conj() @ T @ X
            assert (T @ X - mu * X).abs().max() < 1e-6
            assert mu.abs().item() == pytest.approx(found.rho_rough.item(), abs=1e-6)


def test_one_token_and_two():
    W_V, W_O = weights(2, 4, 2)
    for n in (1, 2):
        A = attention(2, n, n)
        found = dominance(A, W_V, W_O)
        if n == 1:
            assert found.rho_rough == 0
            assert found.verdict == "smooth"
            assert dominance(A, W_V, W_O, per_head=True).rho_rough.tolist() == [0, 0]
        else:
            check(found, *dense_radii(A, W_V, W_O))


def test_float32_and_half_precision():
    A, W_V, W_O = draw(2, 8, 6, 3, False, 5)
    exact = dominance(A, W_V, W_O)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        found = dominance(A.to(dtype), W_V.to(dtype), W_O.to(dtype))
        assert found.rho_rough.dtype == torch.float32
        assert abs(found.rho_rough - exact.rho_rough) < tolerance
        assert abs(found.rho_smooth - exact.rho_smooth) < tolerance


def test_norm_and_bias_enter_as_the_theory_says():
    A, W_V, W_O = draw(2, 6, 4, 2, False, 1)
    gamma = normal(4, seed=9)
    C = torch.eye(4, dtype=torch.float64) - 0.25
    folded = dominance(A, fold_norm(W_V, gamma), W_O)
    check(folded, *dense_radii(A, C @ torch.diag(gamma) @ W_V, W_O))
    # Both parts shrink, the rough one less: without bias rough wins, with one the constant offset does.
    small = -0.5 * torch.eye(4, dtype=torch.float64)[None]
    one = torch.eye(4, dtype=torch.float64)[None]
    A = attention(1, 6, 6, causal=True)
    plain = dominance(A, one, small)
    assert plain.verdict == "rough"
    assert plain.rho_rough < 1
    assert dominance(A, one, small, bias=torch.tensor([0.0, 0.1])).verdict == "smooth"
    assert dominance(A, one, small, bias=torch.zeros(2)).verdict == "rough"


def test_generator_of_the_caller_is_left_alone():
    A, W_V, W_O = draw(2, 70, 6, 3, False, 0)
    before = torch.get_rng_state()
    dominance(A, W_V, W_O)
    dominance(A, W_V, W_O, per_head=True)
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=few(15))
@given(layers)
def test_changed_attention_against_the_dense_spectrum(layer):
    """A' = gain A − shift I − mean J, built as matrices."""
    A, W_V, W_O = draw(*layer)
    heads, n = A.shape[0], A.shape[-1]
    gain, shift, mean = 1 + 0.5 * normal(heads, seed=1), 0.5 * normal(heads, seed=2), 0.5 * normal(heads, seed=3)
    column = (slice(None), None, None)
    changed = gain[column] * A - shift[column] * torch.eye(n) - mean[column] / n
    smooth, rough = dense_radii(changed, W_V, W_O)
    change = AttentionChange(gain, shift, mean)
    for method in METHODS:
        check(dominance(A, W_V, W_O, change=change, method=method), smooth, rough)
    for h in range(heads):
        one = (slice(h, h + 1),)
        own = AttentionChange(gain[one], shift[one], mean[one])
        found = dominance(A[one], W_V[one], W_O[one], change=own)
        alone = dense_radii(changed[one], W_V[one], W_O[one])
        assert found.rho_smooth.item() == pytest.approx(alone[0], abs=1e-6)
        assert found.rho_rough.item() == pytest.approx(alone[1], abs=1e-6)


def test_a_change_that_is_none_and_one_that_leaves_nothing():
    A, W_V, W_O = draw(2, 5, 4, 3, False, 0)
    plain, none = dominance(A, W_V, W_O), dominance(A, W_V, W_O, change=AttentionChange())
    assert torch.equal(plain.rho_rough, none.rho_rough)
    assert torch.equal(plain.rho_smooth, none.rho_smooth)
    shift = torch.full((2,), 0.4, dtype=torch.float64)
    neutreno = AttentionChange(torch.ones(2), shift, torch.zeros(2), source=True)
    by_name, by_change = dominance(A, W_V, W_O, neutreno=0.4), dominance(A, W_V, W_O, change=neutreno)
    assert torch.equal(by_name.rho_rough, by_change.rho_rough)
    assert by_name.rough_floor == by_change.rough_floor == 1
    with pytest.raises(InputError, match="multiplied by 0"):
        dominance(A, W_V, W_O, change=AttentionChange(torch.zeros(2), torch.zeros(2), torch.zeros(2)))
