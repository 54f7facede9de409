import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import apply_layer, attention, normal, weights
from torch.nn.functional import layer_norm

from oversmooth import InputError
from oversmooth.metrics import cosine, effective_rank, input_convergence, rank_one_distance, sigma_ratio, stable_rank
from oversmooth.theory import SoftmaxAttention, simulate


def plainly(X, A, W_V, W_O, layers, *, residual=True, norm="none", gamma=1.0, beta=0.0, bias=0.0, neutreno=0.0):
    """The update written out head by head, with no rescaling."""
    out = [X]
    V0 = None
    for _ in range(layers):
        inner = layer_norm(X, X.shape[-1:], eps=1e-6) * gamma + beta if norm == "pre" else X
        V = [inner @ v for v in W_V]
        U = [a @ v for a, v in zip(A, V, strict=True)]
        if V0 is not None:
            U = [u + neutreno * (v0 - v) for u, v0, v in zip(U, V0, V, strict=True)]
        V0 = V0 or V
        X = (X if residual else 0) + sum(u @ o for u, o in zip(U, W_O, strict=True)) + bias
        X = layer_norm(X, X.shape[-1:], eps=1e-6) * gamma + beta if norm == "post" else X
        out.append(X)
    return torch.stack(out)


@given(
    st.integers(1, 3),
    st.integers(2, 6),
    st.integers(2, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["none", "pre", "post"]),
    st.sampled_from([0.0, 0.6]),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_against_the_update_written_out(heads, n, d, causal, residual, norm, neutreno, biased, seed):
    A, (W_V, W_O) = attention(heads, n, n, causal=causal, seed=seed), weights(heads, d, 2, seed=seed)
    X = normal(n, d, seed=seed)
    bias = normal(d, seed=seed + 1) if biased else None
    gamma, beta = (normal(d, seed=seed + 2), normal(d, seed=seed + 3)) if norm != "none" else (1.0, 0.0)
    settings = dict(residual=residual, norm=norm, gamma=gamma, beta=beta, neutreno=neutreno)
    expected = plainly(X, A, W_V, W_O, 12, **settings, bias=0.0 if bias is None else bias)
    run = simulate(X, A, W_V, W_O, 12, **settings, bias=bias)
    assert run.depth.tolist() == list(range(13))
    near = dict(rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(run.hfc_lfc, input_convergence(expected), **near)
    torch.testing.assert_close(run.log_norm, expected.flatten(1).norm(dim=-1).log(), **near)
    torch.testing.assert_close(run.cos, cosine(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run.abs_cos, cosine(expected, absolute=True), rtol=1e-5, atol=1e-5)
    for name, metric in (
        ("sigma_ratio", sigma_ratio),
        ("stable_rank", stable_rank),
        ("effective_rank", effective_rank),
    ):
        torch.testing.assert_close(getattr(run, name), metric(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.rank_one_distance, rank_one_distance(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.X, expected[-1] / expected[-1].norm(), **near)


@pytest.mark.parametrize("scale", [2.0, -0.9, -3.5])
def test_ten_thousand_layers_neither_overflow_nor_underflow(scale):
    A, eye = attention(1, 8, 8, sharpness=0.5), torch.eye(4, dtype=torch.float64)[None]
    run = simulate(normal(8, 4), A, eye, scale * eye, 10_000, every=500)
    for name in (
        "log_hfc_lfc",
        "log_hfc_lfc_spectral",
        "log_hfc",
        "log_lfc",
        "log_norm",
        "cos",
        "abs_cos",
        "sigma_ratio",
        "stable_rank",
        "effective_rank",
        "X",
    ):
        assert getattr(run, name).isfinite().all()
    assert run.depth[-1] == 10_000
    if scale > 0:
        # The ratio falls by the same factor all the way down to e^-9000 and below.
        t = torch.linalg.eigvals(A[0]).abs().sort().values[-2]
        assert run.log_hfc_lfc[-1] < -5000
        assert run.rate().log().item() == pytest.approx(math.log((1 + scale * t) / (1 + scale)), abs=0.35)


def test_a_stack_of_different_layers_is_begun_again_when_it_ends():
    stack = [(attention(2, 5, 5, seed=i), *weights(2, 4, 2, seed=i)) for i in range(3)]
    A, W_V, W_O = (list(x) for x in zip(*stack, strict=True))
    X = normal(5, 4)
    run = simulate(X, A, W_V, W_O, 7)
    for i in range(7):
        X = apply_layer(X, *stack[i % 3])
    torch.testing.assert_close(run.X, X / X.norm())
    # One A for all of them, too.
    simulate(normal(5, 4), A[0], W_V, W_O, 4)


def test_batches_operators_masks_and_progress():
    q, k = normal(3, 2, 6, 4), normal(3, 2, 6, 4, seed=1)
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    A, (W_V, W_O), X = SoftmaxAttention(q, k, mask=mask), weights(2, 4, 2), normal(3, 6, 4, seed=2)
    seen = []
    for norm in ("none", "pre", "post"):
        run = simulate(X, A, W_V, W_O, 9, norm=norm, every=4, progress=seen.append)
        assert run.depth.tolist() == [0, 4, 8, 9]
        assert run.cos.shape == (4, 3)
        alone = A.dense().A[1][:, :4, :4]
        expected = simulate(X[1, :4], alone, W_V, W_O, 9, norm=norm, every=4)
        torch.testing.assert_close(run.log_hfc_lfc[:, 1], expected.log_hfc_lfc)
        torch.testing.assert_close(run.effective_rank[:, 1], expected.effective_rank, rtol=1e-5, atol=1e-6)
    assert seen == 3 * list(range(1, 10))


def test_equal_tokens_stay_equal_and_zero_stays_zero():
    A, (W_V, W_O) = attention(2, 5, 5), weights(2, 4, 2)
    run = simulate(torch.ones(5, 4).double(), A, W_V, W_O, 5)
    assert run.log_hfc_lfc.isneginf().all()
    zero = simulate(torch.zeros(5, 4).double(), A, W_V, W_O, 5)
    assert zero.log_hfc_lfc.isnan().all()


A, (W_V, W_O), X = attention(2, 5, 5), weights(2, 4, 2), normal(5, 4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: simulate(X, A, W_V, W_O, 0), "layers is 0"),
        (lambda: simulate(X, A, W_V, W_O, 3, every=0), "every is 0"),
        (lambda: simulate(X, A, W_V, W_O, 3, norm="batch"), "'batch'"),
        (lambda: simulate(X[:4], A, W_V, W_O, 3), r"\(4, 4\)"),
        (lambda: simulate(X * torch.nan, A, W_V, W_O, 3), "NaN"),
        (lambda: simulate(X, [A, A], [W_V] * 3, W_O, 3), "2 A, 3 W_V and 1 W_O"),
        (lambda: simulate(X, A, W_V, W_O, 3, neutreno=torch.ones(3)), "neutreno"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
