"""A stack of different layers, repeated: against the product of dense matrices, and against running it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import attention, centred_basis, layer_matrix, normal, radius, weights

from oversmooth import InputError
from oversmooth.theory import DenseAttention, SoftmaxAttention, simulate
from oversmooth.theory.stack import StackDominance, stack_dominance


def stack(layers, heads, n, d, k, causal, seed, scale=0.5):
    A = [attention(heads, n, n, causal=causal, seed=100 * seed + i) for i in range(layers)]
    W = [weights(heads, d, k, scale=scale, seed=100 * seed + i) for i in range(layers)]
    return A, [v for v, _ in W], [o for _, o in W]


def dense_stack(A, W_V, W_O):
    """Logarithms of (ρ_smooth, ρ_rough) from the product of whole n·d by n·d matrices."""
    n, d = A[0].shape[-1], W_V[0].shape[-2]
    eye = torch.eye(d, dtype=torch.float64)
    T = torch.eye(n * d, dtype=torch.float64)
    for a, v, o in zip(A, W_V, W_O, strict=True):
        T = layer_matrix(a, v, o) @ T
    constant = torch.kron(torch.full((n, 1), n**-0.5, dtype=torch.float64), eye)
    centred = torch.kron(centred_basis(n), eye)
    assert (centred.T @ T @ constant).abs().max() < 1e-8 * T.abs().max()  # constant arrays stay constant
    return math.log(radius(constant.T @ T @ constant)), math.log(radius(centred.T @ T @ centred))


SIZES = dict(
    layers=st.integers(1, 4),
    heads=st.integers(1, 3),
    n=st.integers(2, 8),
    d=st.integers(1, 5),
    k=st.integers(1, 3),
    causal=st.booleans(),
    seed=st.integers(0, 10_000),
)


@given(**SIZES)
def test_radii_of_the_product(layers, heads, n, d, k, causal, seed):
    A, W_V, W_O = stack(layers, heads, n, d, k, causal, seed)
    smooth, rough = dense_stack(A, W_V, W_O)
    found = stack_dominance(A, W_V, W_O)
    assert found.layers == layers
    assert found.log_rho_smooth == pytest.approx(smooth, abs=1e-6)
    # A product of triangular matrices is far from normal: its eigenvalues are known to the root of rounding.
    assert found.log_rho_rough == pytest.approx(rough, abs=1e-5 if causal else 1e-7)
    if abs(smooth - rough) > 1e-4:
        assert found.verdict == ("smooth" if smooth > rough else "rough")
        assert found.margin == pytest.approx(smooth - rough, abs=1e-4)
    expected = math.exp(-max(0.0, found.margin) / layers)
    assert found.rate == pytest.approx(expected)


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(2, 5), st.integers(1, 3), st.booleans(), st.integers(0, 10_000)
)
def test_hidden_tokens_take_no_part(layers, heads, n, hidden, causal, seed):
    """With a mask, the stack is that of the tokens that count, wherever they stand."""
    d, total = 3, n + hidden
    A, W_V, W_O = stack(layers, heads, n, d, 2, causal, seed)
    places = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:n].sort().values
    mask = torch.zeros(total, dtype=torch.bool)
    mask[places] = True
    operators = []
    for a in A:
        whole = torch.rand(heads, total, total, dtype=torch.float64)
        whole[:, places] = 0.0
        whole[:, places[:, None], places] = a
        operators.append(DenseAttention(whole, mask=mask.expand(heads, total)))
    found, expected = stack_dominance(operators, W_V, W_O), stack_dominance(A, W_V, W_O)
    assert found.log_rho_smooth == pytest.approx(expected.log_rho_smooth, abs=1e-9)
    assert found.log_rho_rough == pytest.approx(expected.log_rho_rough, abs=1e-5)


@given(st.integers(1, 3), st.booleans(), st.integers(0, 1000))
def test_queries_and_keys_as_matrices(layers, causal, seed):
    heads, n, d = 2, 6, 4
    _, W_V, W_O = stack(layers, heads, n, d, 2, False, seed)
    lazy = [
        SoftmaxAttention(2 * normal(heads, n, 3, seed=seed + i), normal(heads, n, 3, seed=seed + 50 + i), causal=causal)
        for i in range(layers)
    ]
    found, expected = stack_dominance(lazy, W_V, W_O), stack_dominance([a.dense().A for a in lazy], W_V, W_O)
    assert found.log_rho_rough == pytest.approx(expected.log_rho_rough, abs=1e-5)


@settings(max_examples=15)
@given(**{**SIZES, "layers": st.integers(1, 3), "n": st.integers(2, 6)})
def test_the_verdict_is_what_a_long_run_shows(layers, heads, n, d, k, causal, seed):
    A, W_V, W_O = stack(layers, heads, n, d, k, causal, seed)
    found = stack_dominance(A, W_V, W_O)
    if abs(found.margin) < 0.05:
        return  # too slow to see
    run = simulate(normal(n, d, seed=seed), A, W_V, W_O, 200 * layers, every=layers, bands_only=True)
    late, end = run.log_hfc_lfc[100].item(), run.log_hfc_lfc[200].item()
    if found.verdict == "smooth":
        assert end < late - 0.8 * 100 * found.margin or end == -math.inf
        if math.isfinite(end):
            assert (end - late) / (100 * layers) == pytest.approx(math.log(found.rate), rel=0.1, abs=1e-2)
    else:
        assert end > late - 0.5
        assert found.rate == 1


def test_one_layer_is_dominance():
    from oversmooth.theory import dominance

    A, W_V, W_O = stack(1, 3, 6, 5, 2, False, 3)
    one, found = dominance(A[0], W_V[0], W_O[0]), stack_dominance(A, W_V, W_O)
    assert found.log_rho_smooth == pytest.approx(math.log(one.rho_smooth))
    assert found.log_rho_rough == pytest.approx(math.log(one.rho_rough))
    assert found.verdict == one.verdict


def test_order_is_that_of_running():
    """Of three layers a cyclic shift changes nothing, and a swap does."""
    A, W_V, W_O = stack(3, 2, 5, 4, 2, False, 5, scale=1.0)

    def of(*order):
        return stack_dominance(*([part[i] for i in order] for part in (A, W_V, W_O)))

    assert of(1, 2, 0).log_rho_rough == pytest.approx(of(0, 1, 2).log_rho_rough, abs=1e-7)
    assert of(0, 1, 2).log_rho_rough == pytest.approx(dense_stack(A, W_V, W_O)[1], abs=1e-7)
    assert abs(of(0, 2, 1).log_rho_rough - of(0, 1, 2).log_rho_rough) > 1e-3


def test_many_layers_do_not_overflow():
    A, W_V, W_O = stack(1, 2, 5, 4, 2, False, 1, scale=2.0)
    one = stack_dominance(A, W_V, W_O)
    many = stack_dominance(A * 500, W_V * 500, W_O * 500)
    assert many.log_rho_smooth == pytest.approx(500 * one.log_rho_smooth, rel=1e-6)
    assert many.log_rho_rough == pytest.approx(500 * one.log_rho_rough, rel=1e-6)
    assert many.rate == pytest.approx(one.rate, rel=1e-5)


def test_a_bias_is_a_smooth_mode_of_size_one():
    A = [attention(1, 4, 4, seed=1)]
    W = torch.eye(3, dtype=torch.float64)[None]
    shrinking = stack_dominance(A, [W], [-0.9 * W]), stack_dominance(A, [W], [-0.9 * W], bias=True)
    assert [found.verdict for found in shrinking] == ["rough", "smooth" if shrinking[1].log_rho_rough < 0 else "rough"]
    assert shrinking[1].margin == pytest.approx(-shrinking[1].log_rho_rough)


def test_a_single_token_has_nothing_rough():
    found = stack_dominance([torch.ones(1, 1, 1).double()], *([w] for w in weights(1, 3, 2)))
    assert found.verdict == "smooth"


def test_ties_are_ties():
    assert StackDominance(1.0, 1.0 + 1e-9, 0.0, 2, 1e-7).verdict == "tie"


def test_single_precision():
    """Within a thousandth a pass, or its own word for how far off it may be."""
    for seed in range(60):
        layers, heads, n, d = 2 + seed % 3, 1 + seed % 3, 3 + seed % 6, 3 + seed % 5
        A = [attention(heads, n, n, seed=seed * 10 + i, causal=bool(seed % 2)) for i in range(layers)]
        W = [weights(heads, d, 2, seed=seed * 10 + i) for i in range(layers)]
        W_V, W_O = [v for v, _ in W], [o for _, o in W]
        smooth, rough = dense_stack(A, W_V, W_O)
        found = stack_dominance([a.float() for a in A], [v.float() for v in W_V], [o.float() for o in W_O])
        assert found.log_rho_smooth == pytest.approx(smooth, abs=1e-4)
        assert found.log_rho_rough == pytest.approx(rough, abs=max(1e-3, found.tolerance)), seed


@pytest.mark.parametrize("part", [0, 1, 2])
def test_lists_of_other_lengths(part):
    parts = list(stack(2, 2, 4, 3, 2, False, 0))
    parts[part] = parts[part][:1]
    with pytest.raises(InputError, match="give as many of each"):
        stack_dominance(*parts)
    with pytest.raises(InputError, match="give as many of each"):
        stack_dominance([], [], [])


def test_heads_and_batches_that_do_not_fit():
    A, W_V, W_O = stack(2, 2, 4, 3, 2, False, 0)
    with pytest.raises(InputError, match="do not fit"):
        stack_dominance([a[:1] for a in A], W_V, W_O)
    with pytest.raises(InputError, match="one array at a time"):
        stack_dominance([a.expand(2, *a.shape) for a in A], W_V, W_O)


@pytest.mark.parametrize("what", ["tokens", "width"])
def test_layers_of_different_sizes(what):
    A, W_V, W_O = stack(2, 2, 4, 3, 2, False, 0)
    if what == "tokens":
        A[1] = attention(2, 5, 5)
    else:
        W_V[1], W_O[1] = weights(2, 4, 2)
    with pytest.raises(InputError):
        stack_dominance(A, W_V, W_O)
