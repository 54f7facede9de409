import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal, same_spectrum, weights
from torch.nn.functional import layer_norm, rms_norm

from oversmooth.theory import centre_features, fold_norm, head_spectrum, joined_spectrum
from oversmooth.theory.weights import repeat_shared_heads

sizes = st.tuples(st.integers(1, 4), st.integers(2, 9), st.integers(1, 9))


@given(sizes, st.integers(0, 10_000))
def test_heads_against_the_large_product(size, seed):
    heads, d, k = size
    W_V, W_O = weights(heads, d, k, seed=seed)
    found = head_spectrum(W_V, W_O)
    assert found.shape == (heads, min(d, k))
    for h in range(heads):
        zeros = torch.zeros(d - found.shape[-1], dtype=found.dtype)
        exact = torch.linalg.eigvals((W_V[h] @ W_O[h]).T)  # the papers' H is the transpose
        assert same_spectrum(torch.cat([found[h], zeros]), exact, 1e-6)


@given(sizes, st.integers(0, 10_000))
def test_all_heads_together_against_the_sum(size, seed):
    heads, d, k = size
    W_V, W_O = weights(heads, d, k, seed=seed)
    found = joined_spectrum(W_V, W_O)
    assert found.shape == (min(d, heads * k),)
    zeros = torch.zeros(d - len(found), dtype=found.dtype)
    exact = torch.linalg.eigvals(sum(v @ o for v, o in zip(W_V, W_O, strict=True)))
    assert same_spectrum(torch.cat([found, zeros]), exact, 1e-6)


def test_batches_of_layers():
    W_V, W_O = normal(5, 3, 8, 4), normal(5, 3, 4, 8, seed=1)
    assert head_spectrum(W_V, W_O).shape == (5, 3, 4)
    torch.testing.assert_close(joined_spectrum(W_V, W_O)[2].abs().max(), joined_spectrum(W_V[2], W_O[2]).abs().max())


def test_grouped_queries_repeat_their_value_head():
    shared, W_O = normal(2, 8, 4), normal(6, 4, 8, seed=1)
    W_V = repeat_shared_heads(shared, 6)
    assert W_V.shape == (6, 8, 4)
    X, A = normal(5, 8, seed=2), normal(6, 5, 5, seed=3).softmax(-1)
    values = X @ shared
    expected = sum(A[h] @ values[h // 3] @ W_O[h] for h in range(6))
    torch.testing.assert_close(sum(A[h] @ X @ W_V[h] @ W_O[h] for h in range(6)), expected)


def test_folded_layer_norm_is_the_norm_itself():
    """LN(X) W_V = diag(1/σ) X C diag(γ) W_V + 1 β W_V, token by token."""
    X, gamma, beta = normal(6, 8), normal(8, seed=1), normal(8, seed=2)
    W_V = normal(3, 8, 4, seed=3)
    expected = layer_norm(X, (8,), gamma, beta, eps=0.0) @ W_V
    inverse_sigma = 1 / X.var(-1, correction=0).sqrt()
    got = inverse_sigma[:, None] * (X @ fold_norm(W_V, gamma)) + (beta @ W_V)[:, None]
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(fold_norm(W_V, gamma, inverse_sigma=2.5), 2.5 * fold_norm(W_V, gamma))


def test_folded_rms_norm_is_the_norm_itself():
    X, gamma, W_V = normal(6, 8), normal(8, seed=1), normal(3, 8, 4, seed=3)
    inverse = 1 / X.square().mean(-1).sqrt()
    got = inverse[:, None] * (X @ fold_norm(W_V, gamma, kind="rms"))
    torch.testing.assert_close(got, rms_norm(X, (8,), gamma, eps=0.0) @ W_V)


@given(st.integers(0, 10_000))
def test_turning_gamma_around_negates_every_eigenvalue(seed):
    W_V, W_O = weights(1, 6, 6, seed=seed)
    gamma = normal(6, seed=seed)
    plus = head_spectrum(fold_norm(W_V, gamma), W_O)[0]
    minus = head_spectrum(fold_norm(W_V, -gamma), W_O)[0]
    assert same_spectrum(minus, -plus, 1e-7)


def test_folding_the_feature_mean_can_break_a_sign_guarantee():
    """All eigenvalues of H in [−1, 0), one of C H above zero."""
    H = torch.tensor([[[-0.05, -1.2], [0.0, -0.1]]], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)[None]
    assert (head_spectrum(H, eye).real < 0).all()
    assert head_spectrum(fold_norm(H, 1.0), eye).real.max() > 0.1


def test_centred_features_act_as_the_whole_layer_on_tokens_without_mean():
    W_V, W_O = weights(2, 7, 3)
    V, O = centre_features(W_V, W_O)  # noqa: E741
    assert V.shape == (2, 6, 3)
    C = torch.eye(7, dtype=torch.float64) - 1 / 7
    whole = torch.linalg.eigvals(C @ (W_V[0] @ W_O[0]) @ C)
    zero = torch.zeros(1, dtype=whole.dtype)
    assert same_spectrum(torch.cat([torch.linalg.eigvals(V[0] @ O[0]), zero]), whole, 1e-6)
