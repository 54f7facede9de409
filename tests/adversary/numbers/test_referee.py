"""docs/theory.md under attack: each statement, its limits and its counterexamples, against numpy and mpmath alone.

Radii are those of the whole matrices, depth is iterated with the constant and the centred part carried separately.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from support.conformance_methods import make
from support.oracles import same_spectrum

from oversmooth import theory
from oversmooth.steering import Spectral, steer, steering_of, verify
from oversmooth.theory import (
    AttentionChange,
    centre_features,
    dominance,
    flip_threshold,
    fold_norm,
    head_spectrum,
    simulate,
)

SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(rng, n, sharpness=2.0, causal=False):
    scores = sharpness * rng.standard_normal((n, n))
    return softmax(np.where(np.tri(n) > 0, scores, -np.inf) if causal else scores)


def functional(rng, n):
    """Attention of zeros and ones: periodic, with any number of closed components."""
    return np.eye(n)[rng.integers(0, n, n)]


def two_tokens(t, share=0.5):
    """Row-stochastic 2 by 2 attention with the eigenvalues 1 and t; doubly stochastic for share = ½."""
    a, b = share * (1 - t), (1 - share) * (1 - t)
    return np.array([[1 - a, a], [b, 1 - b]])


def centred_basis(n):
    return np.linalg.svd(np.ones((n, 1)))[0][:, 1:]


def radius(M):
    return abs(np.linalg.eigvals(M)).max()


def on_centred(As, Ws, base=None):
    """The matrix of T_P on rows laid end to end."""
    n, d = len(As[0]), len(Ws[0])
    Q = centred_basis(n)
    base = np.eye(d) if base is None else base
    return np.kron(np.eye(n - 1), base.T) + sum(np.kron(Q.T @ A @ Q, W.T) for A, W in zip(As, Ws, strict=True))


def radii(As, Ws):
    return radius(np.eye(len(Ws[0])) + sum(Ws)), radius(on_centred(As, Ws))


def other_eigenvalues(A):
    """All of A but one copy of 1."""
    t = np.linalg.eigvals(A)
    return np.delete(t, abs(t - 1).argmin())


def with_eigenvalues(rng, values):
    """A real matrix with these complex eigenvalues and their conjugates."""
    blocks = [np.array([[z.real, z.imag], [-z.imag, z.real]]) for z in values]
    D = scipy.linalg.block_diag(*blocks)
    S = np.linalg.qr(rng.standard_normal(D.shape))[0] @ np.diag(rng.uniform(0.5, 2, len(D)))
    return S @ D @ np.linalg.inv(S)


def deep(X, As, Ws, depth, bias=None):
    """log(HFC/LFC) at every depth."""
    m, Z, log_m, log_z, out = X.mean(0), X - X.mean(0), 0.0, 0.0, []
    W, Q = sum(Ws), centred_basis(len(X))
    for _ in range(depth):
        mixed = sum(A @ Z @ V for A, V in zip(As, Ws, strict=True))
        m = m + m @ W + mixed.mean(0) * math.exp(min(log_z - log_m, 600))
        m = m if bias is None else m + bias * math.exp(min(-log_m, 600))
        Z = Q @ (Q.T @ (Z + mixed))
        size_m, size_z = np.linalg.norm(m), np.linalg.norm(Z)
        m, log_m = m / size_m, log_m + math.log(size_m)
        Z, log_z = (Z / size_z, log_z + math.log(size_z)) if size_z > 0 else (Z, -math.inf)
        out.append(log_z - log_m - math.log(len(X)) / 2)
    return np.array(out)


def torched(As, Ws):
    """A, W_V and W_O of heads with these products."""
    A, W = torch.tensor(np.array(As)), torch.tensor(np.array(Ws))
    return A, W, torch.eye(W.shape[-1], dtype=W.dtype).expand_as(W)


def verdict_of(As, Ws, **settings):
    return dominance(*torched(As, Ws), limit=False, **settings).verdict


# Grouped queries, wiring, slices


@pytest.fixture(scope="module")
def llama():
    """4 query heads on 2 value heads of 8 of the 32 features."""
    return steer(make("Llama", torch.float64), Spectral("sharpen"))


def checked(model, square, A=None):
    """`verify` of the first layer, with ψ² = square in all layers."""
    layers = steering_of(model).reparametrized
    with torch.no_grad():
        for layer in layers:
            layer.psi.copy_(torch.as_tensor(square, dtype=torch.float64).sqrt().expand_as(layer.psi))
    seen = None if A is None else {layer.attention.name: torch.tensor(np.array(A)) for layer in layers}
    return verify(model, seen).layers[0]


def group_products(model):
    """W_V W_O of the first layer's heads in the basis of what its value heads read."""
    shape = steering_of(model).reparametrized[0].attention
    W_V, W_O = shape.W_V.detach().double().numpy(), shape.raw_W_O.detach().double().numpy()
    B = np.linalg.qr(np.concatenate(W_V[::2], 1))[0]
    return [B.T @ v @ o @ B for v, o in zip(W_V, W_O, strict=True)]


def test_room_is_that_of_the_group_sum(llama):
    """ψ² = 0.9 in both query heads of a group is a sum of 1.8, which causal attention can turn into smoothing."""
    rng = np.random.default_rng(0)
    n = 6
    As = []
    for _ in range(4):
        A = np.tril(rng.uniform(0.1, 1, (n, n)), -1)
        diagonal = np.concatenate([[1.0], rng.uniform(0.80, 0.95, n - 1)])
        rest = np.maximum(A.sum(1, keepdims=True), 1e-300)
        As.append(A / rest * (1 - diagonal)[:, None] + np.diag(diagonal))
    found = checked(llama, 0.9, As)
    assert not verify(llama).ok
    assert "query heads that share a value head" in verify(llama).problems[0]
    smooth, rough = radii(As, group_products(llama))
    assert smooth == pytest.approx(0.8)
    assert smooth > rough + 0.05
    mixtures = [(As[0] + As[1]) / 2, (As[2] + As[3]) / 2]
    flip = max(-2 / (1 + np.diag(B)[1:].min()) for B in mixtures)
    assert found.margin == pytest.approx(-1.8 - flip, rel=1e-6)
    assert found.margin < 0
    assert checked(llama, 0.9).margin == pytest.approx(-0.8)
    assert checked(llama, 0.49).margin == pytest.approx(0.02)


def test_flips_of_heads_do_not_bound_the_flip_of_their_mixture(llama):
    n = 3
    one, two = (0.95 * np.eye(n)[list(p)] + 0.05 / n for p in ((1, 0, 2), (0, 2, 1)))
    flips = flip_threshold(torch.tensor(np.array([one, two, (one + two) / 2])))
    assert flips.tolist() == pytest.approx([-40.0, -40.0, -2 / 0.525], rel=1e-9)
    found = checked(llama, 2.5, [one, two, one, two])
    smooth, rough = radii([one, two, one, two], group_products(llama))
    assert smooth == pytest.approx(4.0)
    assert rough < 3.5
    assert found.margin == pytest.approx(-5 + 2 / 0.525, rel=1e-6)


def test_room_is_the_least_over_coordinates(llama):
    """One A for the group: the coordinate with the largest sum decides."""
    rng = np.random.default_rng(1)
    A = attention(rng, 5)
    square = torch.linspace(0.05, 0.4, 8, dtype=torch.float64).repeat(4, 1)
    t = other_eigenvalues(A)
    flip = -(2 * (1 - t.real) / (1 - abs(t) ** 2)).max()
    assert checked(llama, square, [A] * 4).margin == pytest.approx(-0.8 - flip, rel=1e-6)
    assert checked(llama, square).margin == pytest.approx(0.2)


def code_wiring():
    """Three heads on three tokens, x Vᵀ then (·) V Λ, all positive; found by search."""
    cx, cy, cz = (np.cos(a) for a in (-0.6, 0.1, 0.2))
    sx, sy, sz = (np.sin(a) for a in (-0.6, 0.1, 0.2))
    V = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]]) @ np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    V = V @ np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    Lam = np.array([-0.80, -0.99, -0.02])
    As = [
        [[0.62, 0.01, 0.37], [0.01, 0.22, 0.77], [0.01, 0.01, 0.98]],
        [[0.43, 0.01, 0.56], [0.10, 0.69, 0.21], [0.01, 0.19, 0.80]],
        [[0.09, 0.90, 0.01], [0.01, 0.01, 0.98], [0.98, 0.01, 0.01]],
    ]
    return [np.array(A) for A in As], [np.outer(v, v * Lam) for v in V]


def test_minus_one_is_not_safe_in_the_wiring_of_the_code():
    As, Ws = code_wiring()
    np.testing.assert_allclose(sum(Ws), np.diag([-0.80, -0.99, -0.02]), atol=1e-14)
    assert all(-0.82 < np.trace(W) < -0.33 for W in Ws)
    smooth, rough = radii(As, Ws)
    assert smooth == pytest.approx(0.98)
    assert rough < 0.96
    assert verdict_of(As, Ws) == "smooth"
    assert deep(np.random.default_rng(0).standard_normal((3, 3)), As, Ws, 2000)[-1] < -40
    model = steer(make("ViT"), Spectral("sharpen", wiring="code"))
    assert [check.margin for check in verify(model).layers] == [None, None]


def test_a_coordinate_that_is_frozen_is_said():
    """s = 0: μ = 1 on both sides, which sharpening does not promise."""
    model = steer(make("ViT", torch.float64), Spectral("sharpen", bounded=True, start="cold"))
    before = verify(model)
    assert before.ok
    with torch.no_grad():
        steering_of(model).reparametrized[0].psi[0, 0] = 0.0
    after = verify(model)
    assert (after.problems, after.warnings) != (before.problems, before.warnings)


def test_sharpening_slices_that_leave_features_out():
    """kv·k < d: a tie at 1, where input convergence is excluded without a bias and takes place with one."""
    rng = np.random.default_rng(2)
    n, d, k = 4, 6, 2
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    As, Ws = [], []
    for group in range(2):
        S = V[:, group * k : (group + 1) * k]
        for _ in range(2):
            As.append(0.7 * np.eye(n) + 0.3 * attention(rng, n, causal=True))  # all t above 0.7: nothing grows
            Ws.append(-S @ np.diag(rng.uniform(0.1, 0.5, k)) @ S.T)
    smooth, rough = radii(As, Ws)
    assert smooth == pytest.approx(1, abs=1e-9)
    assert rough == pytest.approx(1, abs=1e-9)
    assert verdict_of(As, Ws) in ("tie", "rough", "undecided")
    X, y, bias = rng.standard_normal((n, d)), V[:, -1], V[:, -1]
    least = np.linalg.norm((X - X.mean(0)) @ y)
    state = X
    for _ in range(300):
        state = state + sum(A @ state @ W for A, W in zip(As, Ws, strict=True))
        assert np.linalg.norm(state - state.mean(0)) > least * (1 - 1e-12)
        np.testing.assert_allclose(state @ y, X @ y, atol=1e-12)
    assert deep(X, As, Ws, 3000)[-1] > -2
    fallen = deep(X, As, Ws, 8000, bias)
    assert fallen[7999] - fallen[3999] == pytest.approx(-math.log(2), abs=0.03)


def test_frozen_features_of_grouped_queries_in_general():
    """Two value heads, four query heads: no y has W_O y = 0, yet 1 is an eigenvalue of T_P, (n − 1)(d − kv·k) times."""
    rng = np.random.default_rng(3)
    n, d = 4, 4
    W_V, W_O = rng.standard_normal((2, d, 1)), rng.standard_normal((4, 1, d))
    assert np.linalg.matrix_rank(W_O.reshape(4, d)) == d
    As, Ws = [attention(rng, n) for _ in range(4)], [W_V[h // 2] @ W_O[h] for h in range(4)]
    values = np.linalg.eigvals(on_centred(As, Ws))
    assert (abs(values - 1) < 1e-7).sum() == (n - 1) * (d - 2)


# The sign of γ, and norms


def test_the_sign_of_gamma_need_not_swap_anything():
    rng = np.random.default_rng(4)
    W = np.diag([0.05, 0.03, -0.05, -0.04])
    for _ in range(20):
        A = attention(rng, 5, rng.choice([0.5, 2, 5]))
        for sign in (1.0, -1.0):
            smooth, rough = radii([A], [sign * W])
            assert smooth > rough
            folded = fold_norm(torch.tensor(W)[None], sign, kind="rms")
            eye = torch.eye(4, dtype=torch.float64)[None]
            assert dominance(torch.tensor(A)[None], folded, eye).verdict == "smooth"


def test_the_sign_of_gamma_to_first_order():
    """For small λ the larger of max Re λ and max Re λt decides; one real sign swaps; LayerNorm has a λ = 0."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        t = other_eigenvalues(attention(rng, rng.integers(2, 7), rng.choice([1, 3, 8])))
        lam = rng.standard_normal(4) + 1j * rng.choice([0, 1]) * rng.standard_normal(4)
        lam = 1e-5 * np.concatenate([lam, lam.conj()])
        first = lam.real.max() - np.outer(lam, t).real.max()
        if abs(first) > 1e-8:
            assert (abs(1 + lam).max() > abs(1 + np.outer(lam, t)).max()) == (first > 0)
        signed = 1e-5 * rng.uniform(0.1, 1, 3)
        assert abs(1 + signed).max() > abs(1 + np.outer(signed, t)).max()
        assert abs(1 - signed).max() < abs(1 - np.outer(signed, t)).max()
    folded = fold_norm(torch.tensor(rng.standard_normal((1, 5, 5))), torch.tensor(rng.standard_normal(5)))
    assert head_spectrum(folded, torch.eye(5, dtype=torch.float64)[None]).abs().min() < 1e-12


def test_a_norm_before_slices_of_one_V_couples_them():
    rng = np.random.default_rng(6)
    V = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    W_V = torch.tensor(np.stack([V[:, :2], V[:, 2:]]))
    back = torch.tensor(np.stack([V[:, :2].T, V[:, 2:].T]))
    assert (back[0] @ W_V[1]).abs().max() < 1e-14
    for gamma, kind in ((1.0, "layer"), (torch.tensor([1.0, 2.0, 0.5, 1.5]).double(), "rms")):
        assert (back[0] @ fold_norm(W_V, gamma, kind=kind)[1]).abs().max() > 0.05


def test_attention_behind_unequal_sigma_can_be_row_stochastic():
    inverse = np.array([0.5, 1.0, 1.5])
    np.testing.assert_allclose((np.full((3, 3), 1 / 3) * inverse).sum(1), 1)
    A = attention(np.random.default_rng(7), 3)  # nonsingular
    assert np.ptp((A * inverse).sum(1)) > 0.01


def test_pre_norm_need_not_grow():
    """λ = −½ and A = ½(I + softmax): no powers of depth, since ‖X‖ stays."""
    rng = np.random.default_rng(1)
    A = 0.5 * np.eye(6) + 0.5 * softmax(rng.standard_normal((6, 6)))
    X = torch.tensor(rng.standard_normal((6, 4)))
    weights = torched([A], [-0.5 * np.eye(4)])
    run = simulate(X, *weights, 600, norm="pre", every=100)
    assert np.ptp(run.log_norm[1:].numpy()) < 0.05
    grows = simulate(X, weights[0], -weights[1], weights[2], 600, norm="pre", every=100)
    assert grows.log_norm[-1] > 5


def test_post_norm_does_not_see_the_sign_of_any_gamma():
    rng = np.random.default_rng(8)
    for seed in range(5):
        weights = torched([attention(rng, 5), attention(rng, 5)], 0.7 * rng.standard_normal((2, 4, 4)))
        X, gamma = torch.tensor(rng.standard_normal((5, 4))), torch.tensor(rng.standard_normal(4) + seed)
        plus, minus = (simulate(X, *weights, 25, norm="post", gamma=s * gamma) for s in (1, -1))
        assert torch.equal(plus.log_hfc_lfc, minus.log_hfc_lfc)
        assert torch.equal(plus.abs_cos, minus.abs_cos)


def test_post_norm_with_a_gamma_of_its_own_for_each_feature():
    """The stream is Y BᵀΓ, and BᵀΓB takes the place of the identity; for uniform γ it is centre_features's."""
    rng = np.random.default_rng(9)
    n, d = 5, 4
    A, W, X = attention(rng, n), rng.standard_normal((d, d)), rng.standard_normal((n, d))
    B = centred_basis(d)
    for gamma, same in ((np.full(d, 0.7), True), (rng.uniform(0.2, 2, d), False)):
        G = np.diag(gamma)
        run = simulate(torch.tensor(X), *torched([A], [W]), 6, norm="post", gamma=torch.tensor(gamma), eps=0.0)
        Y = X @ B  # the first step centres nothing that was not centred: begin behind it
        state = X
        for depth in range(6):
            stepped = state + A @ state @ W
            Y = stepped @ B if depth == 0 else Y @ B.T @ G @ B + A @ Y @ B.T @ G @ W @ B
            Y = Y * math.sqrt(d) / np.linalg.norm(Y, axis=1, keepdims=True)
            state = Y @ B.T @ G
        np.testing.assert_allclose(state / np.linalg.norm(state), run.X.numpy(), atol=1e-10)
        W_V, W_O = centre_features(torch.tensor(W)[None], torch.eye(d, dtype=torch.float64)[None])
        ours = np.sort_complex(np.linalg.eigvals((W_V @ W_O)[0].numpy()))
        full = np.sort_complex(np.linalg.eigvals(np.linalg.solve(B.T @ G @ B, B.T @ G @ W @ B)))
        assert np.allclose(ours, full) == same


# One as a simple eigenvalue


def test_flip_threshold_where_one_is_repeated_or_something_turns():
    rng = np.random.default_rng(10)
    blocks = scipy.linalg.block_diag(attention(rng, 2), attention(rng, 3))
    for A in (np.eye(3), np.eye(1), blocks, blocks[::-1, ::-1]):
        assert flip_threshold(torch.tensor(A.copy())).item() == -math.inf
    for A in (SWAP, np.eye(3)[[1, 2, 0]]):
        assert flip_threshold(torch.tensor(A)).item() < -1e10
    open_end = np.array([[1.0, 0, 0], [0.5, 0.25, 0.25], [0.2, 0.3, 0.5]])  # one closed component of one token
    t = other_eigenvalues(open_end)
    assert flip_threshold(torch.tensor(open_end)).item() == pytest.approx(-2 / (1 + t.real.min()), rel=1e-9)


def test_attention_with_two_closed_components_never_smooths():
    rng = np.random.default_rng(11)
    for _ in range(15):
        sizes, d = rng.integers(1, 4, 2), 3
        A = scipy.linalg.block_diag(*(attention(rng, size) for size in sizes), 0)
        A[-1] = softmax(rng.standard_normal(len(A)))  # a token that looks at both
        p = rng.permutation(len(A))
        A, W = A[p][:, p], 0.5 * rng.standard_normal((d, d))
        smooth, rough = radii([A], [W])
        assert rough > smooth - 1e-9
        assert verdict_of([A], [W]) != "smooth"
    assert verdict_of([np.eye(3)], [0.5 * np.eye(2)]) == "tie"
    packed = scipy.linalg.block_diag(attention(rng, 3), attention(rng, 3))
    assert verdict_of([packed], [0.5 * np.eye(2)]) == "tie"
    # Each head alone has two, both together one: the graph is the union over heads.
    one, two = scipy.linalg.block_diag(SWAP, 1, 1), scipy.linalg.block_diag(1, attention(rng, 3))
    assert verdict_of([one, two], [0.3 * np.eye(2), 0.4 * np.eye(2)]) == "smooth"
    assert np.subtract(*radii([one, two], [0.3 * np.eye(2), 0.4 * np.eye(2)])) > 1e-3


def test_sign_rules_need_one_closed_component_and_no_more():
    """Zeros and ones, periods and all; the rough side needs A ≠ I alone."""
    rng = np.random.default_rng(12)
    kinds = set()
    for _ in range(300):
        n = rng.integers(2, 6)
        A = functional(rng, n) if rng.random() < 0.7 else 0.5 * functional(rng, n) + 0.5 * functional(rng, n)
        ones = (abs(np.linalg.eigvals(A) - 1) < 1e-9).sum()
        t, lam = other_eigenvalues(A), rng.uniform(0.05, 1, 3)
        kinds.add((ones == 1, bool((abs(t) > 1 - 1e-9).any())))
        if ones == 1:
            assert abs(1 + lam).max() > abs(1 + np.outer(lam, t)).max() + 1e-6
        if not np.array_equal(A, np.eye(n)):
            assert abs(1 - lam).max() < abs(1 - np.outer(lam, t)).max() - 1e-6
    assert {(True, True), (True, False), (False, True)} <= kinds


# Limit arrays


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_limit_array_of_shifted_attention(heads, causal):
    """NeuTRENO: an eigenarray of the update with A' = gA − sI, constant part and all."""
    rng = np.random.default_rng(13)
    n, d = 5, 3
    for g, s in itertools.product((0.7, 1.4), (0.0, 0.3)):
        As = [attention(rng, n, causal=causal) for _ in range(heads)]
        Ws = [0.8 * rng.standard_normal((d, d)) for _ in range(heads)]
        change = AttentionChange(*(torch.full((heads,), x, dtype=torch.float64) for x in (g, s, 0.0)))
        found = dominance(*torched(As, Ws), change=change, limit=True)
        X = found.array.array.numpy()
        changed = [g * A - s * np.eye(n) for A in As]
        image = X + sum(A @ X @ W for A, W in zip(changed, Ws, strict=True))
        mu = np.vdot(X, image) / np.vdot(X, X)
        assert np.linalg.norm(image - mu * X) < 1e-7 * np.linalg.norm(X)
        assert abs(mu) == pytest.approx(radius(on_centred(changed, Ws)), rel=1e-8)
        if abs(mu.imag) < 1e-12:
            ratio = np.linalg.norm(X - X.mean(0)) / np.linalg.norm(X.mean(0)) / math.sqrt(n)
            assert found.array.hfc_lfc[0].item() == pytest.approx(ratio, rel=1e-6)


def phases_of(X, count=20_000):
    """The least and the greatest HFC/LFC of Re(e^{iφ} X), by brute force."""
    phi = np.linspace(0, math.pi, count, endpoint=False)[:, None, None]
    turned = np.cos(phi) * X.real - np.sin(phi) * X.imag
    mean = turned.mean(1)
    high = np.sqrt(((turned - mean[:, None]) ** 2).sum((1, 2)))
    ratio = high / np.sqrt(X.shape[0] * (mean**2).sum(1))
    return ratio.min(), ratio.max()


def test_range_over_phases_is_exact():
    rng = np.random.default_rng(14)
    tried = 0
    for _ in range(60):
        As, Ws = [attention(rng, 4, 4.0) for _ in range(2)], [rng.standard_normal((3, 3)) for _ in range(2)]
        found = dominance(*torched(As, Ws), limit=True).array
        if not found.turns:
            continue
        tried += 1
        low, high = phases_of(found.array.numpy())
        assert found.hfc_lfc[0].item() == pytest.approx(low, rel=1e-4)
        assert found.hfc_lfc[1].item() == pytest.approx(high, rel=1e-4)
        assert found.hfc_lfc[0].item() <= low * (1 + 1e-7)
        assert found.hfc_lfc[1].item() >= high * (1 - 1e-7)
        X = found.array.numpy()
        low_part = np.stack([X.real.mean(0), -X.imag.mean(0)]) * math.sqrt(len(X))
        high_part = np.stack([x - x.mean(0) for x in (X.real, -X.imag)]).reshape(2, -1)
        ends = np.sqrt(scipy.linalg.eigh(high_part @ high_part.T, low_part @ low_part.T, eigvals_only=True))
        assert [end.item() for end in found.hfc_lfc] == pytest.approx(ends, rel=1e-6)
        if tried == 12:
            break
    assert tried >= 8


def test_the_mean_token_of_a_turning_rank_one_limit_passes_through_zero():
    rng = np.random.default_rng(15)
    tried = 0
    for _ in range(40):
        A = attention(rng, 5, 4.0)
        found = dominance(*torched([A], [np.diag([-0.9, -0.8])]), limit=True)
        if found.verdict == "rough" and found.array.turns:
            tried += 1
            assert found.array.hfc_lfc[1].item() > 1e7
            assert found.array.hfc_lfc[0].item() == pytest.approx(phases_of(found.array.array.numpy())[0], rel=1e-4)
    assert tried >= 3


# Ties


def largest_block(T, moduli_one):
    """The size of the largest Jordan block over these eigenvalues, by ranks in many digits."""
    best, n = 0, T.rows
    for mu in moduli_one:
        power, rank, size = mpmath.eye(n), n, 0
        while True:
            power = power * (T - mu * mpmath.eye(n))
            below = sum(s > mpmath.mpf(10) ** -40 for s in mpmath.svd_r(power, compute_uv=False))
            if below == rank:
                break
            rank, size = below, size + 1
        best = max(best, size)
    return best


def kron(A, B):
    rows, cols = A.rows * B.rows, A.cols * B.cols
    entry = lambda i, j: A[i // B.rows, j // B.cols] * B[i % B.rows, j % B.cols]  # noqa: E731
    return mpmath.matrix([[entry(i, j) for j in range(cols)] for i in range(rows)])


def jordan(*blocks):
    size = sum(count for _, count in blocks)
    out, start = mpmath.zeros(size), 0
    for mu, count in blocks:
        for i in range(count):
            out[start + i, start + i] = mu
            if i + 1 < count:
                out[start + i, start + i + 1] = 1
        start += count
    return out


def test_ties_are_decided_by_the_jordan_blocks_of_T_and_T_P():
    """Any I + W and any T_P occur on two tokens with two heads: all pairs of blocks, coupled and not, in 80 digits."""
    rng = np.random.default_rng(16)
    half = mpmath.mpf("0.5")
    forms = [((1, 1), (half, 1)), ((1, 2),), ((-1, 1), (half, 1)), ((-1, 2),), ((1, 1), (-1, 1))]
    seen = set()
    with mpmath.workdps(80):
        t = [mpmath.mpf("0.4"), mpmath.mpf("-0.5")]
        for trial, (form, other) in enumerate(itertools.product(forms, forms)):
            S, R = (mpmath.matrix((rng.standard_normal((2, 2)) + 2 * np.eye(2)).tolist()) for _ in range(2))
            M, T_P = S * jordan(*form) * S**-1, R * jordan(*other) * R**-1
            eye = mpmath.eye(2)
            W = [((T_P - eye) - t[1] * (M - eye)) / (t[0] - t[1])]
            W.append(M - eye - W[0])
            shares = [half, half] if trial % 3 == 0 else [mpmath.mpf("0.3"), mpmath.mpf("0.6")]
            T = mpmath.eye(4)
            for value, share, weight in zip(t, shares, W, strict=True):
                a, b = share * (1 - value), (1 - share) * (1 - value)
                T += kron(mpmath.matrix([[1 - a, a], [b, 1 - b]]), weight.T)
            p, p_P = largest_block(T, (1, -1)), largest_block(T_P, (1, -1))
            p_M = largest_block(M, (1, -1))
            seen.add((p, p_P, p_M))
            x = mpmath.matrix(rng.standard_normal(4).tolist())

            def ratio(depth, T=T, x=x):
                y = T**depth * x
                first, second = y[0:2, 0], y[2:4, 0]
                return mpmath.norm(first - second) / mpmath.norm(first + second)

            slope = max(float(mpmath.log(ratio(2**13 + o) / ratio(2**12 + o), 2)) for o in (0, 1))
            if p > p_P:
                assert slope == pytest.approx(p_P - p, abs=0.02)
            else:
                assert slope > -0.02
    assert any(p > max(p_P, p_M) for p, p_P, p_M in seen)  # blocks that coupling has joined


def test_a_tie_that_only_the_blocks_of_T_tell():
    """I + W and T_P have blocks of size one; doubly stochastic attention keeps its ratio, uneven one loses it."""
    Ws = [np.diag([0.5, 0.0]), np.array([[0.0, 0.0], [1.0, -1.0]])]
    X = np.array([[1.0, 0.3], [-0.2, 0.7]])
    even, uneven = ([two_tokens(0.4, a), two_tokens(-0.5, b)] for a, b in ((0.5, 0.5), (0.3, 0.6)))
    for As in (even, uneven):
        assert radii(As, Ws) == pytest.approx((1.5, 1.5))
        assert verdict_of(As, Ws) in ("tie", "undecided")
    stays, falls = deep(X, even, Ws, 4000), deep(X, uneven, Ws, 4000)
    assert abs(stays[-1] - stays[1999]) < 1e-9
    assert falls[-1] - falls[1999] == pytest.approx(-math.log(2), abs=1e-2)


def test_two_real_eigenvalues_on_a_complex_one_come_near_rank_one():
    rng = np.random.default_rng(17)
    A = attention(rng, 3, 4.0)
    while abs(np.linalg.eigvals(A).imag).max() < 0.1:
        A = attention(rng, 3, 4.0)
    t = other_eigenvalues(A)[0]
    first = -0.3
    second = -2 * t.real / abs(t) ** 2 - first
    assert abs(1 + first * t) == pytest.approx(abs(1 + second * t))
    values, vectors = np.linalg.eig(A)
    v = vectors[:, abs(values - t).argmin()]
    mu = np.array([1 + first * t, 1 + second * t])
    phase = np.exp(1j * np.angle(mu) * np.arange(5000)[:, None])
    X = np.stack([(phase[:, [j]] * v).real for j in (0, 1)], -1)
    sigma = np.linalg.svd(X, compute_uv=False)
    ratio = sigma[:, 1] / sigma[:, 0]
    assert ratio.min() < 2e-3
    assert np.median(ratio) > 0.05


# Biases and sources


def test_a_bias_does_not_help_against_a_source():
    """The margin is ρ_smooth − max(1, ρ_rough), with or without bias."""
    rng = np.random.default_rng(19)
    small = 0
    for scale in (0.1, 0.2, 0.5, 1.5) * 5:
        A = rng.choice([0.0, 0.8]) * np.eye(4)
        A += (1 - A[0, 0]) * attention(rng, 4)
        W = scale * rng.standard_normal((3, 3)) - 0.7 * np.eye(3)
        smooth = radius(np.eye(3) + 0.4 * W)
        rough = radius(on_centred([A - 0.6 * np.eye(4)], [W]))
        small += max(smooth, rough) < 1
        for bias in (None, torch.ones(3)):
            found = dominance(*torched([A], [W]), neutreno=0.6, bias=bias, limit=False)
            assert found.margin.item() == pytest.approx(smooth - max(1, rough), abs=1e-8)
    assert small >= 2
    # And so it is: X tends to tokens that differ.
    A, W = 0.8 * np.eye(4) + 0.2 * attention(rng, 4), -0.5 * np.eye(3)
    assert max(radius(np.eye(3) + 0.4 * W), radius(on_centred([A - 0.6 * np.eye(4)], [W]))) < 1
    X, bias = torch.tensor(rng.standard_normal((4, 3))), torch.ones(3, dtype=torch.float64)
    run = simulate(X, *torched([A], [W]), 400, neutreno=0.6, bias=bias, every=100)
    assert run.log_hfc_lfc[-1] > -5
    assert dominance(*torched([A], [W]), neutreno=0.6, bias=bias).verdict == "rough"


def test_a_bias_does_not_help_against_a_growing_rough_part():
    """max(1, ρ_smooth) < ρ_rough excludes input convergence for any bias; above, it takes place for generic ones."""
    rng = np.random.default_rng(20)
    counts = {True: 0, False: 0}
    for _ in range(40):
        As = [attention(rng, 4, 3.0) for _ in range(2)]
        Ws = [rng.choice([0.3, 0.7]) * rng.standard_normal((3, 3)) - 0.3 * np.eye(3) for _ in range(2)]
        smooth, rough = radii(As, Ws)
        margin = max(1, smooth) - rough
        if abs(margin) < 0.1:
            continue
        counts[margin > 0] += 1
        end = deep(rng.standard_normal((4, 3)), As, Ws, 300, bias=rng.standard_normal(3))[-1]
        assert (end < -8) == (margin > 0)
        assert verdict_of(As, Ws, bias=torch.ones(3)) == ("smooth" if margin > 0 else "rough")
    assert min(counts.values()) > 4


def neutreno_run(A, lam, strength, X, depth):
    state = X
    for _ in range(depth):
        state = state + lam * (A @ state + strength * (X - state))
    return np.linalg.norm(state - state.mean(0)) / np.linalg.norm(state.mean(0)) / math.sqrt(len(X))


def test_neutreno_with_its_own_first_values():
    """V⁰ = X₀W_V is generic enough if the rough part that dominates has t ≠ 0, and is not if t = 0."""
    X = np.array([[1.0], [0.2]])
    assert abs(1 + 3 * (0 - 0.9)) > 1 + 3 * 0.1 > 1
    assert neutreno_run(np.full((2, 2), 0.5), 3.0, 0.9, X, 60) < 1e-6
    assert abs(1 + 3 * (0.05 - 0.9)) > 1 + 3 * 0.1
    assert neutreno_run(two_tokens(0.05), 3.0, 0.9, X, 150) > 1e6
    assert neutreno_run(two_tokens(0.7, 0.3), 3.0, 0.3, X, 60) < 1e-5  # 3.1 against max(1, 2.2)


# Verdicts from weights alone


def disc(rng, count):
    """λ ≠ 0 with |λ + ½| ≤ ½, half of them on the circle."""
    r = np.where(rng.random(count) < 0.5, 1.0, np.sqrt(rng.random(count)))
    return -0.5 + 0.5 * r * np.exp(1j * rng.uniform(0.1, np.pi, count))


def test_signs_in_the_disc_sharpen_for_every_attention():
    rng = np.random.default_rng(21)
    for _ in range(600):
        n = rng.integers(2, 7)
        kind = rng.integers(3)
        A = attention(rng, n, rng.choice([0.1, 1, 4]), causal=kind == 1) if kind < 2 else functional(rng, n)
        if np.array_equal(A, np.eye(n)):
            continue
        t, lam = other_eigenvalues(A), disc(rng, rng.integers(1, 4))
        t = t[abs(t - 1) > 1e-12]
        lam = np.concatenate([lam, lam.conj()])
        by = abs(1 + np.outer(t, lam)).max(0) ** 2 - abs(1 + lam) ** 2
        assert (by >= -lam.real * (1 - t.real.min()) ** 2 * (1 - 1e-9) - 1e-12).all()
        assert (by > 0).all()
    W = with_eigenvalues(rng, disc(rng, 2))
    assert verdict_of([attention(rng, 5)], [W]) == "rough"


def test_the_disc_is_sharp():
    rng = np.random.default_rng(22)
    for _ in range(200):
        z = 2 * rng.standard_normal() + 2j * rng.standard_normal()
        if abs(z + 0.5) < 0.5 + 1e-3:
            continue
        t = 1 - np.logspace(-6, -0.01, 80)
        wins = abs(1 + z) > abs(1 + z * t) + 1e-12
        assert wins.any()
        A, W = two_tokens(t[wins.nonzero()[0][-1]]), with_eigenvalues(rng, [z])
        assert (A > 0).all()
        smooth, rough = radii([A], [W])
        assert smooth > rough - 1e-12


def test_a_largest_eigenvalue_that_is_positive_smooths():
    rng = np.random.default_rng(23)
    for _ in range(300):
        A = attention(rng, rng.integers(2, 7), rng.choice([0.1, 1, 4]), causal=rng.random() < 0.3)
        lam = rng.standard_normal(3) + 1j * rng.standard_normal(3)
        lam = np.append(lam, abs(lam).max())
        assert abs(1 + lam).max() > abs(1 + np.outer(other_eigenvalues(A), lam)).max()
    # Periodic attention only ties.
    assert abs(1 + np.array([1.0, -1.0]) * other_eigenvalues(SWAP)[0]).max() == pytest.approx(2)


def test_causal_attention_cannot_stop_what_grows():
    rng = np.random.default_rng(24)
    tried = 0
    for _ in range(600):
        A = attention(rng, rng.integers(2, 7), rng.choice([0.1, 1, 4, 8]), causal=True)
        lam = rng.standard_normal(3) + 1j * rng.standard_normal(3)
        smooth, t = abs(1 + lam).max(), np.diag(A)[1:]
        if smooth > 1:
            tried += 1
            rough, a = abs(1 + np.outer(t, lam)).max(), t.max()
            assert rough <= 1 - a + a * smooth + 1e-12
            assert rough < smooth
    assert tried > 100


def low_rank(rng, d, k, values):
    """W_V (d by k) and W_O (k by d) with W_O W_V of these eigenvalues."""
    D = np.diag(values) if len(values) == k else with_eigenvalues(rng, values)
    W_V = rng.standard_normal((d, k))
    W_O = D @ np.linalg.pinv(W_V) + 0.3 * rng.standard_normal((k, d)) @ (np.eye(d) - W_V @ np.linalg.pinv(W_V))
    return W_V, W_O


@pytest.mark.parametrize("causal", [False, True])
def test_features_a_head_leaves_alone_exclude_convergence(causal):
    """k < d and |1 + λ| < 1 on the rest: radii tie at 1 and the ratio stays, though on its own the head smooths."""
    rng = np.random.default_rng(25)
    for _ in range(6):
        A = 0.9 * np.eye(4) + 0.1 * attention(rng, 4, causal=causal)  # all t near 1
        W_V, W_O = low_rank(rng, 4, 2, rng.uniform(-1.95, -1.5, 2))
        W = W_V @ W_O
        assert radii([A], [W]) == pytest.approx((1, 1), abs=1e-7)
        own = np.linalg.eigvals(W_O @ W_V)
        assert abs(1 + own).max() > abs(1 + np.outer(other_eigenvalues(A), own)).max()
        run = deep(rng.standard_normal((4, 4)), [A], [W], 800)
        assert abs(run[-1] - run[-400]) < 1e-6
        assert run[-1] > -6
        assert verdict_of([A], [W]) != "smooth"


def test_head_verdicts():
    """The rules per head from weights alone: right where they are definite, definite where a rule applies."""
    rng = np.random.default_rng(26)
    cases = [  # λ, d, causal, verdict
        ([-0.9, -0.2], 2, False, "rough"),
        ([-0.9, -0.2], 2, True, "rough"),
        ([-0.5 + 0.45j], 2, False, "rough"),
        ([0.7, -0.6], 2, False, "smooth"),
        ([0.7, -0.6], 4, False, "smooth"),
        ([0.2, -2.5], 4, True, "smooth"),
        ([0.3 + 1.0j], 5, True, "smooth"),
        ([-1.9, -0.5], 4, True, "rough"),
        ([-0.8 + 0.9j], 4, True, "rough"),
        ([-1.5, -1.2], 2, True, "open"),
        ([-1.5, -1.2], 2, False, "open"),
        ([-1.5, -1.2], 4, False, ("rough", "open")),
        ([0.2, -2.5], 4, False, "open"),
        ([0.3 + 1.0j], 2, False, "open"),
    ]
    for values, d, causal, expected in cases:
        W_V, W_O = low_rank(rng, d, 2, values)
        got = theory.head_verdicts(torch.tensor(W_V)[None], torch.tensor(W_O)[None], causal)
        assert len(got) == 1
        assert got[0] in expected if isinstance(expected, tuple) else got == [expected], (values, d, causal)


def test_definite_head_verdicts_hold_for_any_attention():
    rng = np.random.default_rng(27)
    definite = 0
    for _ in range(60):
        k, causal = 2, bool(rng.integers(2))
        d = k + int(rng.integers(2))
        kind = rng.integers(3)
        values = [disc(rng, 1)[0]] if kind == 0 else rng.uniform(-2.2, 0.6, k) * rng.choice([0.5, 1])
        W_V, W_O = low_rank(rng, d, k, values)
        (said,) = theory.head_verdicts(torch.tensor(W_V)[None], torch.tensor(W_O)[None], causal)
        if said == "open":
            continue
        definite += 1
        for sharpness in (0.3, 3.0):
            smooth, rough = radii([attention(rng, 4, sharpness, causal)], [W_V @ W_O])
            assert (smooth > rough - 1e-9) if said == "smooth" else (rough > smooth - 1e-7)
    assert definite > 15


# Attention recomputed from the tokens


def diameter(X):
    return np.sqrt(((X[:, None] - X) ** 2).sum(-1)).max()


def norm(W):
    return np.linalg.norm(W, 2)


def recomputed(m, Z, Bs, Ws):
    """One layer of softmax(X B Xᵀ) attention on X = 1m + Z, the two parts apart."""
    out_m, out_Z = m + m @ sum(Ws), Z
    for B, W in zip(Bs, Ws, strict=True):
        shared = m @ B @ Z.T
        U = softmax(shared - shared.max() + Z @ B @ Z.T) @ Z
        out_m, out_Z = out_m + U.mean(0) @ W, out_Z + (U - U.mean(0)) @ W
    return out_m, out_Z - out_Z.mean(0)


def network(rng):
    n, d, heads = rng.integers(2, 6), rng.integers(1, 5), rng.integers(1, 3)
    Bs = [rng.choice([0.1, 0.5, 1.0]) * rng.standard_normal((d, d)) for _ in range(heads)]
    Ws = [rng.choice([0.1, 0.5]) * rng.standard_normal((d, d)) for _ in range(heads)]
    return n, d, Bs, Ws


def test_total_variation_of_two_softmax_rows():
    rng = np.random.default_rng(28)
    tightest = 0.0
    for _ in range(800):
        q, delta = softmax(rng.choice([0.1, 3]) * rng.standard_normal(5)), rng.choice([0.01, 1, 8])
        shift = rng.choice([0, delta], 5) if rng.random() < 0.5 else rng.uniform(0, delta, 5)
        if np.ptp(shift) == 0:
            continue
        p = q * np.exp(shift)
        distance = abs(p / p.sum() - q).sum() / 2
        tightest = max(tightest, distance / np.tanh(np.ptp(shift) / 4))
    assert 0.99 < tightest <= 1 + 1e-9


@pytest.mark.parametrize("kind", ["none", "layer", "rms"])
def test_one_layer_changes_the_diameter_by_little(kind):
    """|D(TX)/D(X) − 1| ≤ Σ ‖W_h‖ q tanh(‖B_h‖ q² D²/4), with biases, without a norm and behind one."""
    rng = np.random.default_rng(29)
    for _ in range(250):
        n, d, Bs, Ws = network(rng)
        d_ok = d > 1 or kind == "none"
        if not d_ok:
            continue
        X = 10 ** rng.uniform(-2, 1) * rng.standard_normal((n, d)) + rng.choice([0, 4]) * rng.standard_normal(d)
        gamma, beta = rng.standard_normal(d), rng.standard_normal(d)
        inner, q = X, 1.0
        if kind != "none":
            U = X - X.mean(1, keepdims=True) if kind == "layer" else X
            sigma = np.sqrt((U**2).mean(1, keepdims=True) + 1e-6)
            inner, q = U / sigma * gamma + beta, abs(gamma).max() / sigma.min()
            assert diameter(inner) <= q * diameter(X) * (1 + 1e-9)
        keys = rng.standard_normal(d)
        out = X + rng.standard_normal(d)
        for B, W in zip(Bs, Ws, strict=True):
            out = out + softmax((inner + 1.0) @ B @ (inner + keys).T) @ inner @ W
        D = diameter(X)
        bound = sum(norm(W) * q * np.tanh(norm(B) * q**2 * D**2 / 4) for B, W in zip(Bs, Ws, strict=True))
        assert abs(diameter(out) / D - 1) <= bound * (1 + 1e-6) + 1e-9


def test_bounds_at_finite_depth():
    rng = np.random.default_rng(30)
    checked_ratio = 0
    for _ in range(120):
        n, d, Bs, Ws = network(rng)
        Z = 10 ** rng.uniform(-2.5, -0.5) * rng.standard_normal((n, d))
        Z, m = Z - Z.mean(0), rng.choice([1, 5]) * rng.standard_normal(d)
        c, w = (sum(f(B) * norm(W) for B, W in zip(Bs, Ws, strict=True)) for f in (lambda B: norm(B) / 4, lambda _B: 1))
        D, values, vectors = diameter(Z), *np.linalg.eig(np.eye(d) + sum(Ws))
        mu, y = values[abs(values).argmax()], vectors[:, abs(values).argmax()]
        room = abs(m @ y) - math.sqrt(2) * w * D / (abs(mu) - 1) if abs(mu) > 1 else -1
        for depth in range(1, min(30, math.ceil(1 / (2 * c * D**2)))):
            m, Z = recomputed(m, Z, Bs, Ws)
            x = c * D**2 * depth
            assert diameter(Z) ** 2 <= D**2 / (1 - 2 * x) * (1 + 1e-9)
            if x <= 0.25:
                assert diameter(Z) ** 2 >= D**2 / (1 + 6 * x) * (1 - 1e-9)
                if room > 0:
                    ratio = np.linalg.norm(Z) / math.sqrt(n) / np.linalg.norm(m)
                    assert ratio <= math.sqrt(2) * D * abs(mu) ** -depth / room * (1 + 1e-9)
                    checked_ratio += 1
    assert checked_ratio > 200


def test_fixed_attention_smooths_and_recomputed_attention_does_not():
    """λ = −1.8: ρ_smooth = 0.8 wins while attention is peaked, and loses once tokens are alike."""
    m, X = np.full(4, 0.2), np.sqrt(3.0) * np.eye(4)
    Z, W = X - X.mean(0), -1.8 * np.eye(4)
    A = softmax((m + Z) @ (m + Z).T)
    smooth, rough = radii([A], [W])
    assert smooth == pytest.approx(0.8)
    assert rough < 0.6
    assert verdict_of([A], [W]) == "smooth"
    assert deep(m + Z, [A], [W], 300)[-1] < -50
    rng = np.random.default_rng(31)
    Z = Z + 1e-3 * rng.standard_normal(Z.shape)
    Z -= Z.mean(0)
    for _ in range(2000):
        m, Z = recomputed(m, Z, [np.eye(4)], [W])
    assert np.linalg.norm(Z) / np.linalg.norm(m) > 1e3


def test_no_smoothing_where_constant_arrays_shrink():
    rng = np.random.default_rng(32)
    tried = 0
    for _ in range(25):
        n, d, Bs, Ws = network(rng)
        M = rng.standard_normal((d, d))
        Ws[-1] = M * rng.uniform(0.1, 0.95) / radius(M) - np.eye(d) - sum(Ws[:-1], np.zeros((d, d)))
        Z = 0.3 * rng.standard_normal((n, d))
        Z, m, ratios = Z - Z.mean(0), rng.standard_normal(d), []
        for depth in range(600):
            m, Z = recomputed(m, Z, Bs, Ws)
            if not abs(Z).max() < 1e3:
                break
            if depth > 300 and np.linalg.norm(m) > 0:
                ratios.append(np.linalg.norm(Z) / np.linalg.norm(m))
        else:
            tried += 1
            earlier = max(ratios[:150], default=0.0)
            assert max(ratios[150:], default=math.inf) > 0.5 * min(1.0, earlier)
    assert tried > 8


def jacobian(function, X):
    n = X.numel()
    return torch.autograd.functional.jacobian(function, X).reshape(n, n).numpy()


@pytest.mark.parametrize("causal", [False, True])
def test_derivative_of_softmax_attention_at_a_constant_state(causal):
    rng = np.random.default_rng(33)
    for _ in range(8):
        n, d = 4, 3
        Bs, Ws = torch.tensor(rng.standard_normal((2, d, d))), torch.tensor(rng.standard_normal((2, d, d)))
        hidden = torch.full((n, n), -torch.inf).triu(1) if causal else torch.zeros(n, n)

        def layer(X, Bs=Bs, Ws=Ws, hidden=hidden):
            return X + sum((X @ B @ X.T + hidden).softmax(-1) @ X @ W for B, W in zip(Bs, Ws, strict=True))

        found = np.linalg.eigvals(jacobian(layer, torch.tensor(rng.standard_normal(d)).repeat(n, 1)))
        W = Ws.sum(0).numpy()
        blocks = [np.eye(d) + W / i for i in range(2, n + 1)] if causal else [np.eye(d)] * (n - 1)
        expected = np.concatenate([np.linalg.eigvals(np.eye(d) + W), *map(np.linalg.eigvals, blocks)])
        # Where T_P is the identity the eigenvalue 1 is defective by rounding alone.
        assert same_spectrum(torch.tensor(found), torch.tensor(expected), 1e-5)
        if causal:
            assert max(map(radius, blocks)) == pytest.approx(max(radius(blocks[0]), radius(blocks[-1])))


def test_derivative_of_post_norm_at_a_constant_state():
    """spec(M𝒥) and spec(Z ↦ T_P(Z)𝒥), any γ and β; with A recomputed and γ = 1 the second radius is 1/σ(u)."""
    rng = np.random.default_rng(34)
    tried = 0
    for trial in range(20):
        n, d = 3, 4
        A = [attention(rng, n) for _ in range(2)]
        Ws = [0.4 * rng.standard_normal((d, d)) for _ in range(2)]
        plain = trial % 2 == 0
        gamma, beta = (np.ones(d), np.zeros(d)) if plain else (rng.uniform(0.5, 1.5, d), 0.3 * rng.standard_normal(d))
        M, m = np.eye(d) + sum(Ws), rng.standard_normal(d)

        def layer_norm(x, gamma=gamma, beta=beta):
            return torch.nn.functional.layer_norm(x, x.shape[-1:], torch.tensor(gamma), torch.tensor(beta), eps=0.0)

        for _ in range(400):
            before, u = m, m @ M
            m = (u - u.mean()) / u.std() * gamma + beta
        if np.linalg.norm(m - before) > 1e-12:
            continue  # it turns
        tried += 1
        u = m @ M
        sigma = u.std()
        x = (u - u.mean()) / sigma
        J = (np.eye(d) - 1 / d - np.outer(x, x) / d) @ np.diag(gamma) / sigma

        def step(X, A=A, Ws=Ws, norm=layer_norm):
            return norm(X + sum(torch.tensor(a) @ X @ torch.tensor(W) for a, W in zip(A, Ws, strict=True)))

        state = torch.tensor(m).repeat(n, 1)
        second = on_centred(A, [W @ J for W in Ws], base=J)
        expected = np.concatenate([np.linalg.eigvals(M @ J), np.linalg.eigvals(second)])
        found = torch.tensor(np.linalg.eigvals(jacobian(step, state)))
        assert same_spectrum(found, torch.tensor(expected), 1e-7)
        if plain:
            B, W = torch.tensor(rng.standard_normal((d, d))), torch.tensor(sum(Ws))

            def true(X, B=B, W=W, norm=layer_norm):
                return norm(X + (X @ B @ X.T).softmax(-1) @ X @ W)

            Q = np.kron(centred_basis(n), np.eye(d))
            assert radius(Q.T @ jacobian(true, state) @ Q) == pytest.approx(1 / sigma, rel=1e-6)
            apart = state + 1e-6 * torch.tensor(rng.standard_normal((n, d)))
            before = (apart - apart.mean(0)).norm()
            for _ in range(60):
                apart = true(apart)
            if abs(math.log(sigma)) > 0.1 and radius(M @ J) < 0.95:
                assert ((apart - apart.mean(0)).norm() < before) == (sigma > 1)
    assert tried > 6


# Semidefinite heads that overlap


def semidefinite(rng, d):
    F = rng.standard_normal((d, rng.integers(1, d + 1)))
    return F @ F.T


def test_positive_heads_that_overlap():
    """ρ_rough ≤ 1 + κ λ_max(N) through any common similarity; κ < 1 smooths."""
    rng = np.random.default_rng(35)
    below = 0
    for _ in range(150):
        n, d, heads = rng.integers(2, 5), rng.integers(1, 4), rng.integers(1, 4)
        S = rng.standard_normal((d, d)) + 2 * np.eye(d)
        if np.linalg.cond(S) > 30:
            continue
        Ns = [semidefinite(rng, d) for _ in range(heads)]
        As = [attention(rng, n, rng.choice([0.2, 0.7, 2])) for _ in range(heads)]
        P = np.eye(n) - 1 / n
        kappa, top = max(norm(P @ A @ P) for A in As), np.linalg.eigvalsh(sum(Ns)).max()
        smooth, rough = radii(As, [S @ N @ np.linalg.inv(S) for N in Ns])
        assert smooth == pytest.approx(1 + top)
        assert rough <= 1 + kappa * top + 1e-9 * smooth
        if kappa < 1:
            below += 1
            assert rough < smooth
    assert below > 50


def doubly_stochastic(rng, n):
    """Symmetric, with one closed component."""
    out = np.full((n, n), 0.02 / n)
    for weight in 0.98 * rng.dirichlet(np.full(3, 0.5)):
        p = np.eye(n)[rng.permutation(n)]
        out += weight * (p + p.T) / 2
    return out


def test_negative_heads_that_overlap_under_symmetric_attention():
    """Wiring "code", and symmetric heads between an RMSNorm and a layer scale, reach this form."""
    rng = np.random.default_rng(36)
    for _ in range(150):
        n, k, heads = rng.integers(2, 5), rng.integers(1, 3), rng.integers(1, 3)
        d = k * heads
        As = [doubly_stochastic(rng, n) for _ in range(heads)]
        V = np.linalg.qr(rng.standard_normal((d, d)))[0]
        rows = [V[h * k : (h + 1) * k] for h in range(heads)]
        Lam = np.diag(-rng.uniform(0.01, 1, d))
        code = [r.T @ r @ Lam for r in rows]
        before, after = (np.diag(rng.uniform(0.3, 1, d)) for _ in range(2))
        between = [before @ (r.T @ np.diag(-rng.uniform(0.01, 1, k)) @ r) @ after for r in rows]
        S = np.sqrt(before @ np.linalg.inv(after))
        symmetric = np.linalg.inv(S) @ between[0] @ S
        np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-12)
        for Ws in (code, between):
            smooth, rough = radii(As, Ws)
            assert rough > smooth - 1e-10


# What is certain


def cascade(n=30, edge=0.0):
    """Every token looks at itself and at the one before; the first, by a thread, at the last."""
    A = 0.3 * np.eye(n) + 0.7 * np.eye(n, k=-1)
    A[0, 0], A[0, -1] = 1.0, edge
    return A


def shuffled(A, seed=0):
    p = np.random.default_rng(seed).permutation(len(A))
    return A[p][:, p].copy()


def exact_cascade(n, edge):
    """All eigenvalues but the 1, in many digits: roots of (t − 1)(t − 0.3)^(n−1) = edge · 0.7^(n−1), by Newton."""
    with mpmath.workdps(60):
        gap = mpmath.mpf(edge) * mpmath.mpf(0.7) ** (n - 1)
        start = mpmath.root(gap / mpmath.mpf("0.7"), n - 1)
        out = []
        for j in range(n - 1):
            t = mpmath.mpf(0.3) + start * mpmath.expjpi(mpmath.mpf(2 * j + 1) / (n - 1))
            out.append(complex(mpmath.findroot(lambda t: (t - 1) * (t - mpmath.mpf(0.3)) ** (n - 1) / gap - 1, t)))
        return np.array(out)


@pytest.mark.parametrize("heads", [1, 2])
def test_components_are_taken_apart(heads):
    """Shuffled and triangular: the eigenvalues are 0.3, which dense routines on the centred matrix miss by 0.2."""
    A, W = shuffled(cascade()), -1.7 / heads * np.eye(1 if heads == 1 else 2)
    smooth, naive = radii([A] * heads, [W] * heads)
    assert naive > smooth + 0.05  # rounding, not truth: |1 − 1.7 · 0.3| = 0.49
    found = dominance(*torched([A] * heads, [W] * heads))
    assert found.rho_rough.item() == pytest.approx(0.49, abs=1e-3)
    assert found.verdict == "smooth"


def test_what_rounding_could_turn_is_undecided():
    n, edge = 30, 1e-40
    t = exact_cascade(n, edge)
    assert len({complex(round(x.real, 9), round(x.imag, 9)) for x in t}) == n - 1
    assert 0.02 < abs(t - 0.3).max() < 0.04
    assert abs(1 - 1.7 * t).max() < 0.6 < abs(1 - 1.7)  # the truth: smooth
    A = shuffled(cascade(n, edge))
    B = centred_basis(n).T @ A @ centred_basis(n)
    circle = (-1 + 0.7 * np.exp(1j * np.linspace(0, 2 * np.pi, 200))) / -1.7
    least = min(np.linalg.svd(z * np.eye(n - 1) - B, compute_uv=False)[-1] for z in circle)
    assert least < 1e-16  # the circle |1 + λz| = ρ_smooth runs through the pseudospectrum of rounding errors
    found = dominance(*torched([A], [[[-1.7]]]))
    assert found.verdict in ("undecided", "smooth")
    if found.verdict == "undecided":
        assert found.reason


def test_certainty_goes_with_the_verdict():
    rng = np.random.default_rng(37)
    A = torch.tensor(np.stack([[attention(rng, 5), attention(rng, 5)] for _ in range(3)]))
    W = torch.tensor(0.5 * rng.standard_normal((2, 3, 3)))
    eye = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    for per_head in (False, True):
        found = dominance(A, W, eye, per_head=per_head)
        assert np.shape(found.certainty) == np.shape(found.verdict)
        assert set(np.ravel(found.certainty)) <= {"certified", "estimated"}
    assert dominance(A[0, :1], W[:1] * 0 + eye[:1], eye[:1]).verdict == "smooth"


def clear_of(B, circles, eps):
    """Whether finitely many points certify σ_min(z − B) > ε on all circles (centre, radius); halving arcs."""

    def arc(centre, r, start, stop, depth):
        z = centre + r * np.exp(0.5j * (start + stop))
        least = np.linalg.svd(z * np.eye(len(B)) - B, compute_uv=False)[-1] - eps - 1e-13
        if least > r * (stop - start) / 2:
            return True
        halves = ((start, (start + stop) / 2), ((start + stop) / 2, stop))
        return depth < 14 and least > 0 and all(arc(centre, r, a, b, depth + 1) for a, b in halves)

    return all(arc(c, r, 2 * np.pi * i / 8, 2 * np.pi * (i + 1) / 8, 0) for c, r in circles for i in range(8))


def test_the_pseudospectrum_certifies_a_verdict():
    """Where the circles are clear no perturbation within ε turns the verdict; where they are not, one does."""
    rng = np.random.default_rng(38)
    counts = {True: 0, False: 0}
    for _ in range(30):
        n = 5
        Q = centred_basis(n)
        B = Q.T @ attention(rng, n, 3.0) @ Q
        lam = rng.uniform(-2.5, 1.0, 2)
        top = abs(1 + lam).max()
        circles = [(-1 / x, top / abs(x)) for x in lam]
        eps = 10 ** rng.uniform(-3, -0.7)

        def smooths(B, lam=lam, top=top):
            return abs(1 + np.outer(np.linalg.eigvals(B), lam)).max() < top

        clear = clear_of(B, circles, eps)
        counts[clear] += 1
        if clear:
            for _ in range(25):
                u, v = (np.linalg.qr(rng.standard_normal((n - 1, 1)))[0] for _ in range(2))
                E = u @ v.T if rng.random() < 0.5 else rng.standard_normal((n - 1, n - 1))
                assert smooths(B + eps * E / norm(E)) == smooths(B)
        points = [c + r * np.exp(1j * a) for c, r in circles for a in np.linspace(0, 2 * np.pi, 150)]
        inside = [z for z in points if (abs(1 + lam * z) <= top * (1 + 1e-9)).all()]
        decomposed = [(np.linalg.svd(z * np.eye(n - 1) - B), z) for z in inside]
        (U, s, Vh), z = min(decomposed, key=lambda found: found[0][1][-1])
        if s[-1] <= eps:
            moved = B + s[-1] * np.outer(U[:, -1], Vh[-1])
            assert abs(np.linalg.eigvals(moved) - z).min() < 1e-5
            assert abs(1 + np.outer(np.linalg.eigvals(moved), lam)).max() > top - 1e-4
            assert not clear
    assert min(counts.values()) > 3


def test_the_residual_counts_with_the_condition_number():
    """An eigenvalue is off by residual/|yᴴx|, not by the residual: a verdict within that is none."""
    rng = np.random.default_rng(39)
    worst = 0.0
    for _ in range(200):
        B = np.tril(rng.standard_normal((6, 6)), -1) * rng.choice([1, 5]) + np.diag(np.linspace(-0.5, 0.9, 6))
        B = B + 1e-3 * rng.standard_normal((6, 6))
        values, left, right = scipy.linalg.eig(B, left=True)
        i = abs(values).argmax()
        condition = 1 / abs(np.vdot(left[:, i], right[:, i]))
        E = rng.standard_normal((6, 6))
        E *= 1e-9 / norm(E)
        moved = np.linalg.eigvals(B + E)
        off = abs(moved - values[i]).min()
        assert off <= 1e-9 * condition * 1.01 + 1e-12
        worst = max(worst, off / 1e-9)
    assert worst > 20


def test_verdicts_of_nearly_defective_heads_are_right_or_withheld():
    """Two triangular heads, shuffled, on blocks whose eigenvalues are known: no definite verdict is wrong."""
    rng = np.random.default_rng(40)
    for seed in range(12):
        n = 16
        As = [attention(rng, n, 3.0, causal=True) for _ in range(2)]
        Ws = [rng.choice([-1.2, -0.8]) * np.eye(2) + 0.2 * rng.standard_normal((2, 2)) for _ in range(2)]
        blocks = [np.eye(2) + sum(A[i, i] * W for A, W in zip(As, Ws, strict=True)) for i in range(n)]
        smooth, rough = radius(blocks[0]), max(map(radius, blocks[1:]))
        if abs(smooth - rough) < 1e-3:
            continue
        said = verdict_of([shuffled(A, seed) for A in As], Ws)
        assert said in (("smooth" if smooth > rough else "rough"), "undecided")
