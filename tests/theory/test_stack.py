"""A stack of different layers, repeated: against the product of dense matrices, and against running it."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nightly import few, nightly
from support.oracles import attention, centred_basis, layer_matrix, normal, radius, weights

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


@settings(max_examples=few(3))
@given(**{**SIZES, "layers": st.integers(1, 3), "n": st.integers(2, 6)})
def test_the_verdict_is_what_a_long_run_shows(layers, heads, n, d, k, causal, seed):
    A, W_V, W_O = stack(layers, heads, n, d, k, causal, seed)
    found = stack_dominance(A, W_V, W_O)
    if abs(found.margin) < 0.05:
        return  # too slow to see
    # Long, since complex pairs let the ratio swing by a bounded factor on its way.
    run = simulate(normal(n, d, seed=seed), A, W_V, W_O, 400 * layers, every=layers, bands_only=True)
    late, end = run.log_hfc_lfc[100].item(), run.log_hfc_lfc[400].item()
    if found.verdict == "smooth":
        assert end < late - 0.8 * 300 * found.margin or end == -math.inf
        if math.isfinite(end):
            assert (end - late) / (300 * layers) == pytest.approx(math.log(found.rate), rel=0.1, abs=1e-2)
    else:
        # A limit that turns lets the ratio come back again and again: its highest values stay.
        assert run.log_hfc_lfc[300:].max() > run.log_hfc_lfc[100:201].max() - 0.5
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


@nightly
def test_many_layers_do_not_overflow():
    A, W_V, W_O = stack(1, 2, 5, 4, 2, False, 1, scale=2.0)
    one = stack_dominance(A, W_V, W_O)
    many = stack_dominance(A * 500, W_V * 500, W_O * 500)
    assert many.log_rho_smooth == pytest.approx(500 * one.log_rho_smooth, rel=1e-6)
    assert many.log_rho_rough == pytest.approx(500 * one.log_rho_rough, rel=1e-6)
    assert many.rate == pytest.approx(one.rate, rel=1e-5)


def test_a_single_token_has_nothing_rough():
    found = stack_dominance([torch.ones(1, 1, 1).double()], *([w] for w in weights(1, 3, 2)))
    assert found.verdict == "smooth"


def test_single_precision():
    """Within a thousandth a pass, or its own word for how far off it may be."""
    for seed in range(few(20)):
        layers, heads, n, d = 2 + seed % 3, 1 + seed % 3, 3 + seed % 6, 3 + seed % 5
        A = [attention(heads, n, n, seed=seed * 10 + i, causal=bool(seed % 2)) for i in range(layers)]
        W = [weights(heads, d, 2, seed=seed * 10 + i) for i in range(layers)]
        W_V, W_O = [v for v, _ in W], [o for _, o in W]
        smooth, rough = dense_stack(A, W_V, W_O)
        found = stack_dominance([a.float() for a in A], [v.float() for v in W_V], [o.float() for o in W_O])
        assert found.log_rho_smooth == pytest.approx(smooth, abs=1e-4)
        assert found.log_rho_rough == pytest.approx(rough, abs=max(1e-3, found.tolerance)), seed


OTHERS, WIDE = stack(2, 2, 4, 3, 2, False, 0), weights(2, 4, 2)
TOKENS, VALUES, OUTPUTS = OTHERS


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        *(([*OTHERS[:i], OTHERS[i][:1], *OTHERS[i + 1 :]], "give as many of each") for i in range(3)),
        (([], [], []), "give as many of each"),
        (([a[:1] for a in TOKENS], VALUES, OUTPUTS), "do not fit"),
        (([a.expand(2, *a.shape) for a in TOKENS], VALUES, OUTPUTS), "one array at a time"),
        (([TOKENS[0], attention(2, 5, 5)], VALUES, OUTPUTS), "different numbers of tokens or features"),
        ((TOKENS, [VALUES[0], WIDE[0]], [OUTPUTS[0], WIDE[1]]), "different numbers of tokens or features"),
    ],
)
def test_layers_that_do_not_fit(parts, says):
    with pytest.raises(InputError, match=says):
        stack_dominance(*parts)


def row_stochastic(*rows):
    return torch.tensor([rows], dtype=torch.float64)


SMOOTH_APART = (
    (-2.0, row_stochastic([0.15, 0.15, 0.7], [0.3, 0.65, 0.05], [0.1, 0.3, 0.6])),
    (-3.7, row_stochastic([0.2, 0.35, 0.45], [0.1, 0.25, 0.65], [0.75, 0.1, 0.15])),
)
"""One feature, three tokens: 1.000 > 0.624 and 2.700 > 1.891, together 2.700 < 3.565."""
ROUGH_APART = (
    (-2.2, row_stochastic([0.65, 0.05, 0.3], [0.05, 0.3, 0.65], [0.25, 0.6, 0.15])),
    (-2.1, row_stochastic([0.05, 0.6, 0.35], [0.45, 0.25, 0.3], [0.1, 0.25, 0.65])),
)
"""1.200 < 1.951 and 1.100 < 1.789, together 1.320 > 0.812."""


@pytest.mark.parametrize(
    ("layers", "alone", "together", "radii"),
    [
        (SMOOTH_APART, "smooth", "rough", [(1.0, 0.6245), (2.7, 1.8908), (2.7, 3.5654)]),
        (ROUGH_APART, "rough", "smooth", [(1.2, 1.9508), (1.1, 1.7894), (1.32, 0.8117)]),
    ],
)
def test_what_layers_do_alone_does_not_decide_what_they_do_together(layers, alone, together, radii):
    """THEORY2, G, both ways: by numpy's spectrum of the whole matrices, by `stack_dominance` and by running them."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    P = np.eye(3) - 1 / 3
    matrices = [np.eye(3) + w * A[0].numpy() for w, A in layers]
    stacks = [[0], [1], [0, 1]]
    for places, (smooth, rough) in zip(stacks, radii, strict=True):
        T = np.eye(3)
        for i in places:
            T = matrices[i] @ T
        # On centred vectors P T has the spectrum of T without one eigenvalue; on constant ones it is zero.
        assert np.abs(np.linalg.eigvals(P @ T)).max() == pytest.approx(rough, abs=1e-4)
        assert (T @ np.ones(3)) == pytest.approx(np.prod([1 + layers[i][0] for i in places]) * np.ones(3))
        A, W = [layers[i][1] for i in places], [layers[i][0] * one for i in places]
        found = stack_dominance(A, [one] * len(places), W)
        assert math.exp(found.log_rho_smooth) == pytest.approx(smooth, abs=1e-4)
        assert math.exp(found.log_rho_rough) == pytest.approx(rough, abs=1e-4)
        said = together if len(places) == 2 else alone
        assert found.verdict == said
        assert found.reason == ""
        run = simulate(normal(3, 1, seed=1), A, one, W, 200 * len(places), every=len(places), bands_only=True)
        late, end = run.log_hfc_lfc[100].item(), run.log_hfc_lfc[200].item()
        assert (end < late - 30) if said == "smooth" else (abs(end) < 5)


def chain(n, diagonal):
    """Every token looks at itself and at the one before it: as far from normal as attention gets."""
    A = torch.diag(torch.full((n,), diagonal, dtype=torch.float64))
    A += torch.diag(torch.full((n - 1,), 1 - diagonal, dtype=torch.float64), -1)
    A[0, 0] = 1
    return A[None]


@pytest.mark.parametrize("n", [10, 40, 100])
@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("w", [2.0, -0.9])
def test_causal_stacks_are_known_by_their_diagonals(n, layers, w):
    """1 + w a for every token but the first. Arnoldi on the whole product gave a logarithm of 4.06 for 2.66."""
    one, diagonals = torch.ones(1, 1, 1, dtype=torch.float64), [0.4 + 0.05 * i for i in range(layers)]
    found = stack_dominance(
        [chain(n, a) for a in diagonals], [one] * layers, [w * one] * layers, bias=[None] * (layers - 1) + [one[0, 0]]
    )
    exact = sum(math.log(1 + w * a) for a in diagonals)
    assert found.log_rho_rough == pytest.approx(exact, abs=1e-12)
    assert found.verdict == "smooth"  # also where all shrinks: the bias does not
    assert found.margin == pytest.approx(max(0.0, layers * math.log(abs(1 + w))) - exact, abs=1e-12)


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(2, 9), st.integers(1, 6), st.booleans(), st.integers(0, 10_000)
)
def test_causal_stacks_against_blocks_written_out(layers, heads, n, d, hidden, seed):
    A, W_V, W_O = stack(layers, heads, n, d, 2, True, seed)
    mask = torch.ones(n, dtype=torch.bool)
    if hidden and n > 2:
        mask[0] = False  # padding on the left: the second token is then the first
        A = [a * mask / (a * mask).sum(-1, keepdim=True).clamp(min=1e-12) for a in A]
    radii = []
    for i in mask.nonzero()[1:, 0].tolist():
        block = np.eye(d)
        for a, v, o in zip(A, W_V, W_O, strict=True):
            block = block @ (np.eye(d) + sum(a[h, i, i].item() * (v[h] @ o[h]).numpy() for h in range(heads)))
        radii.append(np.abs(np.linalg.eigvals(block)).max())
    found = stack_dominance([DenseAttention(a, mask=mask.expand(heads, n)) for a in A], W_V, W_O)
    assert found.log_rho_rough == pytest.approx(math.log(max(radii)), abs=1e-7)


def condition_of(M, value):
    """1/|yᴴx| of the eigenvalue nearest to value, by LAPACK."""
    values, left, right = scipy.linalg.eig(M, left=True, right=True)
    at = np.abs(values - value).argmin()
    return 1 / abs(np.vdot(left[:, at], right[:, at]))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 8), st.integers(1, 6), st.integers(0, 10_000))
def test_the_condition_number_of_the_product(layers, heads, n, d, seed):
    A, W_V, W_O = stack(layers, heads, n, d, 2, False, seed)
    T = torch.eye(n * d, dtype=torch.float64)
    for a, v, o in zip(A, W_V, W_O, strict=True):
        T = layer_matrix(a, v, o) @ T
    centred = torch.kron(centred_basis(n), torch.eye(d, dtype=torch.float64))
    M = (centred.T @ T @ centred).numpy()
    values = np.linalg.eigvals(M)
    largest = values[np.abs(values).argmax()]
    if (np.abs(values) > 0.98 * abs(largest)).sum() > 1 + (abs(largest.imag) > 1e-12):
        return  # either of two may be taken
    found = stack_dominance(A, W_V, W_O)
    assert found.condition == pytest.approx(condition_of(M, largest), rel=0.1)


@nightly
def test_the_condition_number_of_a_large_product():
    """So large that Arnoldi restarts, on the product and on its transpose."""
    layers, heads, n, d = 6, 2, 60, 16
    A, W_V, W_O = stack(layers, heads, n, d, 8, False, 7, scale=0.3)
    M = np.eye(n * d)
    for a, v, o in zip(A, W_V, W_O, strict=True):
        M = layer_matrix(a, v, o).numpy() @ M
    P = np.kron(centred_basis(n).numpy(), np.eye(d))
    M = P.T @ M @ P
    values = np.linalg.eigvals(M)
    largest = values[np.abs(values).argmax()]
    found = stack_dominance([from_queries_and_keys(a) for a in A], W_V, W_O, tolerance=1e-6)
    assert found.log_rho_rough == pytest.approx(math.log(abs(largest)), abs=2 * found.tolerance)
    assert found.condition == pytest.approx(condition_of(M, largest), rel=0.1)


def from_queries_and_keys(A):
    """The same attention from queries and keys: as many of them as tokens."""
    n = A.shape[-1]
    return SoftmaxAttention(A.log(), torch.eye(n, dtype=A.dtype).expand_as(A), scale=1.0)


@pytest.mark.parametrize("kept", [True, False])
def test_attention_that_is_too_large_to_keep_is_formed_layer_by_layer(kept, monkeypatch):
    monkeypatch.setattr("oversmooth.theory.stack._DENSE", 1 << 20 if kept else 0)
    A, W_V, W_O = stack(3, 2, 12, 6, 3, False, 1)
    found = stack_dominance([from_queries_and_keys(a) for a in A], W_V, W_O)
    expected = stack_dominance(A, W_V, W_O)
    assert found.log_rho_rough == pytest.approx(expected.log_rho_rough, abs=1e-8)
    assert found.condition == pytest.approx(expected.condition, rel=0.05)


def nearly_defective(gap, slope=1e4):
    """I + W has the eigenvalues 1.5 and 1.5 + 1e-4, of condition number 1e8; attention has 1 and 1 − gap."""
    W = torch.tensor([[[0.5, slope], [0.0, 0.5 + 1e-4]]], dtype=torch.float64)
    t = 1 - gap
    A = torch.tensor([[[(1 + t) / 2, (1 - t) / 2], [(1 - t) / 2, (1 + t) / 2]]], dtype=torch.float64)
    return [A], [torch.eye(2, dtype=torch.float64)[None]], [W]


def test_radii_nearer_than_they_are_known_decide_nothing():
    found = stack_dominance(*nearly_defective(1e-6))
    assert 3e7 < found.condition < 3e8  # rounding moves the eigenvalues by as much as they lie apart, by LAPACK
    assert 1e-5 < found.error < 1e-2
    assert found.verdict == "undecided"
    assert "condition number" in found.reason
    assert f"{found.condition:.1e}" in found.reason
    # Rightly so: rounding of the weights alone moves the radius by more than the margin.
    (W,) = nearly_defective(1e-6)[2]
    moved = [
        np.abs(np.linalg.eigvals(np.eye(2) + W[0].numpy() + 1e-12 * rng.standard_normal((2, 2)))).max()
        for rng in map(np.random.default_rng, range(9))
    ]
    assert max(moved) - min(moved) > 1e-6
    # With a margin that is larger than that, it is decided.
    assert stack_dominance(*nearly_defective(0.2)).verdict == "smooth"
    assert stack_dominance(*nearly_defective(0.2)).reason == ""


@pytest.mark.parametrize("w", [0.5, -0.5])
def test_almost_causal_stacks_are_right_or_undecided(w):
    """A hair above the diagonal, and nobody knows that the product is all but triangular. Against 60 digits."""
    n, layers, one = 12, 2, torch.ones(1, 1, 1, dtype=torch.float64)
    A = [chain(n, 0.5 + 0.1 * i) for i in range(layers)]
    for a in A:
        a[0, 0, 1] = 2.0**-60
    with mpmath.workdps(60):
        T = mpmath.eye(n)
        for a in A:
            T = (mpmath.eye(n) + w * mpmath.matrix(a[0].tolist())) * T
        P = mpmath.eye(n) - mpmath.ones(n) / n
        rough = max(abs(value) for value in mpmath.eig(P * T * P, left=False, right=False))
    found = stack_dominance(A, [one] * layers, [w * one] * layers)
    assert abs(found.log_rho_rough - float(mpmath.log(rough))) <= 3 * found.error
    for margin in (-0.05, 0.05):  # as a bias of another kind would set it
        moved = dataclasses.replace(found, log_rho_smooth=float(mpmath.log(rough)) + margin)
        assert moved.verdict in ("undecided", "smooth" if margin > 0 else "rough")


@settings(max_examples=few(20))
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(4, 9), st.integers(2, 6), st.booleans(), st.integers(0, 10_000)
)
def test_arnoldi_that_is_cut_short_claims_nothing_false(layers, heads, n, d, causal, seed):
    A, W_V, W_O = stack(layers, heads, n, d, 2, causal, seed)
    smooth, rough = dense_stack(A, W_V, W_O)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oversmooth.theory.stack._STEPS", 6)
        patch.setattr("oversmooth.theory.stack._RESTARTS", 1)
        found = stack_dominance(A, W_V, W_O)
    if found.verdict in ("smooth", "rough"):
        assert found.verdict == ("smooth" if smooth > rough else "rough")
        assert found.reason == ""
    elif found.verdict == "tie":
        assert smooth == pytest.approx(rough, abs=1e-6)
    else:
        assert found.reason.startswith("undecided: ")


def test_the_residual_is_relative_to_a_radius_that_is_small_beside_the_other(monkeypatch):
    monkeypatch.setattr("oversmooth.theory.stack._STEPS", 5)
    monkeypatch.setattr("oversmooth.theory.stack._RESTARTS", 0)
    Q = torch.linalg.qr(torch.cat([torch.ones(30, 1).double(), normal(30, 29)], dim=1)).Q
    t = 0.02 * 0.4 ** torch.arange(29, dtype=torch.float64)
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    found = stack_dominance([((Q[:, 1:] * t) @ Q[:, 1:].T + 1 / 30)[None]], [one], [50 * one])
    assert found.residual > 1e-5
    assert found.error == pytest.approx(math.log1p(found.condition * found.residual), rel=0.01)


def test_each_reason_is_told():
    tie = StackDominance(1.0, 1.0 + 1e-9, 0.0, 2, 1e-7)
    assert (tie.verdict, tie.reason) == ("tie", "")
    near = StackDominance(1.0, 1.1, 1e-3, 2, 0.2, condition=200.0, error=0.2)
    assert near.verdict == "undecided"
    assert "is -1.0e-01, and it may be off by 2.0e-01" in near.reason
    unknown = dataclasses.replace(near, condition=math.inf, error=math.inf, tolerance=math.inf)
    assert "left" in unknown.reason
    early = StackDominance(2.0, 1.0, 1e-9, 2, 1e-7, converged=False)
    assert early.verdict == "undecided"
    assert "hidden" in early.reason
    assert dataclasses.replace(early, log_rho_smooth=0.5).verdict == "rough"  # a larger one would be rougher still


@pytest.mark.parametrize(("w", "bias", "said"), [(-0.5, True, "rough"), (-0.5, False, "rough"), (-1.5, True, "smooth")])
def test_a_bias_does_not_outgrow_what_grows(w, bias, said):
    """max(1, ρ_smooth) < ρ_rough excludes convergence, and ρ_rough < 1 with a bias brings it; both as they run."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    swap = torch.tensor([[[0.1, 0.9], [0.9, 0.1]]], dtype=torch.float64)  # t = −0.8
    even = torch.tensor([[[0.6, 0.4], [0.2, 0.8]]], dtype=torch.float64)  # t = 0.4
    A = [even, even] if w < -1 else [swap, even]
    offset = [3 * one[0, 0], None] if bias else None
    found = stack_dominance(A, [one] * 2, [w * one] * 2, bias=offset)
    assert found.verdict == said
    assert found.margin == (-found.log_rho_rough if bias else pytest.approx(2 * math.log(0.5) - found.log_rho_rough))
    run = simulate(normal(2, 1), A, one, w * one, 600, bias=offset, every=2, bands_only=True)
    course = run.log_hfc_lfc.tolist()
    assert (course[-1] < course[150] - 5) if said == "smooth" else (course[-1] > -5)


def test_weights_that_cancel_the_token_itself():
    """I + W = 0 in one layer: no constant part is left, and once this was a division by zero."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    A = attention(1, 4, 4, seed=1)
    assert stack_dominance([A], [one], [-one]).verdict == "rough"
    assert stack_dominance([A], [one], [-one]).log_rho_smooth == -math.inf
