import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.nightly import nightly, some
from support.oracles import apply_layer, attention, normal, weights
from torch.nn.functional import layer_norm

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


@nightly
@pytest.mark.parametrize("scale", some([-3.5, 2.0], 2))
def test_ten_thousand_layers_neither_overflow_nor_underflow(scale):
    A, eye = attention(1, 8, 8, sharpness=0.5), torch.eye(4, dtype=torch.float64)[None]
    run = simulate(normal(8, 4), A, eye, scale * eye, 10_000, every=2000)
    for name in (
        "log_hfc_lfc",
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
        assert run.rate.log().item() == pytest.approx(math.log((1 + scale * t) / (1 + scale)), abs=0.35)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_lose_no_digits_over_many_layers(dtype):
    """Flat attention and W = 3: the mean is multiplied by 4 a layer, exactly, and the rest stays as it is.

    In float32 the logarithm of 4 is added to sums of thousands, and after 3,000 layers it was 0.056 off.
    """
    n, layers = 4, 1000
    X = (normal(n, 1) + 0.5).to(dtype)
    one = torch.ones(1, 1, 1, dtype=dtype)
    run = simulate(X, torch.full((1, n, n), 0.25, dtype=dtype), one, 3 * one, layers, every=250)
    with mpmath.workdps(40):
        x = [mpmath.mpf(value) for value in X[:, 0].tolist()]
        mean = mpmath.fsum(x) / n
        high, low = mpmath.norm([v - mean for v in x]), mpmath.sqrt(n) * abs(mean)
        for depth, ratio, size in zip(run.depth.tolist(), run.log_hfc_lfc, run.log_norm, strict=True):
            grown = low * mpmath.mpf(4) ** int(depth)
            digits = 1e-13 if dtype == torch.float64 else 2e-7
            assert ratio.item() == pytest.approx(float(mpmath.log(high / grown)), rel=1e-12, abs=digits)
            assert size.item() == pytest.approx(float(mpmath.log(mpmath.hypot(high, grown))), rel=1e-12, abs=digits)
    for name in ("depth", "log_hfc_lfc", "log_norm"):
        assert getattr(run, name).dtype == torch.float64


@given(st.integers(1, 60), st.integers(1, 3), st.booleans(), st.integers(0, 1000))
def test_the_ratio_of_an_input_has_all_digits_of_float64(n, d, masked, seed):
    """log √n, too: in float32 it has eight."""
    X = normal(n + 2, d, seed=seed) + 2
    mask = torch.ones(n + 2, dtype=torch.bool)
    mask[n:] = not masked
    A = SoftmaxAttention(normal(1, n + 2, 2), normal(1, n + 2, 2), mask=mask)
    run = simulate(X, A, *weights(1, d, 1), 1)
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(v) for v in row] for row in X[mask].tolist()]
        mean = [mpmath.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
        high = mpmath.norm([v - m for row in rows for v, m in zip(row, mean, strict=True)])
        if high > 0:
            expected = float(mpmath.log(high / (mpmath.sqrt(len(rows)) * mpmath.norm(mean))))
            assert run.log_hfc_lfc[0].item() == pytest.approx(expected, abs=1e-13)


def test_large_tokens_in_single_precision():
    X = 1e30 * normal(4, 3, dtype=torch.float32)
    run = simulate(X, attention(1, 4, 4, dtype=torch.float32), *weights(1, 3, 2), 3)
    assert run.log_norm.isfinite().all()
    assert run.log_norm[0].item() == pytest.approx(math.log(X.double().norm()), abs=1e-6)


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


@pytest.mark.parametrize("times", [1.0, 1e3, 2e4])
def test_small_tokens_beside_a_massive_one_are_not_lost_in_single_precision(times):
    """Against numpy in double precision, before the first layer and after it."""
    X = normal(16, 8).float()
    X[0] *= times
    A, W = attention(16, 16)[None].float(), 0.1 * normal(1, 8, 8).float()
    run = simulate(X, A, W, W, 1)
    x = X.double().numpy()
    for depth in range(2):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        cos = (unit @ unit.T)[~np.eye(16, dtype=bool)].mean()
        values = np.linalg.svd(x, compute_uv=False)
        assert float(run.cos[depth]) == pytest.approx(cos, abs=2e-3)
        assert float(run.sigma_ratio[depth]) == pytest.approx(values[1] / values[0], rel=2e-2)
        x = x + A[0].double().numpy() @ x @ (W[0] @ W[0]).double().numpy()


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


@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(2, 5),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["none", "pre", "post"]),
    st.integers(0, 10_000),
)
def test_a_bias_of_its_own_for_each_layer(has, heads, n, d, residual, norm, seed):
    """Against numpy, one layer after another; None where a layer has none, and all of them begun again."""
    layers = [(attention(heads, n, n, seed=seed + i), *weights(heads, d, 2, seed=seed + i)) for i in range(len(has))]
    bias = [3 * normal(d, seed=seed + 50 + i) if some else None for i, some in enumerate(has)]
    X0, A, W_V, W_O = normal(n, d, seed=seed), *(list(part) for part in zip(*layers, strict=True))
    run = simulate(X0, A, W_V, W_O, 11, bias=bias, residual=residual, norm=norm)
    X = X0.numpy()

    def normed(X):
        centred = X - X.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)

    for step in range(11):
        at = step % len(has)
        inner = normed(X) if norm == "pre" else X
        added = sum(a @ inner @ v @ o for a, v, o in zip(*(part.numpy() for part in layers[at]), strict=True))
        X = (X if residual else 0) + added + (bias[at].numpy() if has[at] else 0)
        X = normed(X) if norm == "post" else X
    scale = np.linalg.norm(X)
    if scale > 1e-9:
        assert run.log_norm[-1].item() == pytest.approx(math.log(scale), abs=1e-8)
        torch.testing.assert_close(run.X, torch.from_numpy(X / scale), rtol=1e-7, atol=1e-7)


def test_one_bias_is_that_of_every_layer():
    layers = [(attention(2, 5, 5, seed=i), *weights(2, 4, 2, seed=i)) for i in range(3)]
    A, W_V, W_O = (list(x) for x in zip(*layers, strict=True))
    bias = normal(4, seed=9)
    one, three = (simulate(normal(5, 4), A, W_V, W_O, 7, bias=b) for b in (bias, [bias] * 3))
    assert torch.equal(one.log_hfc_lfc, three.log_hfc_lfc)
    # Layers that differ in nothing else make a stack, too.
    alone = simulate(normal(5, 4), A[0], W_V[0], W_O[0], 6, bias=[bias, None])
    pair = simulate(normal(5, 4), A[:1] * 2, W_V[0], W_O[0], 6, bias=[bias, None])
    assert torch.equal(alone.log_norm, pair.log_norm)
