"""docs/theory.md, §5, rows that do not sum to one: by construction, by dense matrices and by simulated layers."""

import pytest
import torch
from support.oracles import apply_layer, attention, layer_matrix, normal, same_spectrum, weights, with_spectrum
from torch.func import jacrev

from oversmooth.metrics import cosine, hfc, input_convergence, sigma_ratio
from oversmooth.steering.methods.gated import _GatedAttention
from oversmooth.steering.methods.inversion import _Inversion

N, D, K, HEADS = 6, 5, 3, 2
ONE = torch.ones(N, dtype=torch.float64)
SEEDS = range(2)


def inversion(seed, scale=1.0):
    part = _Inversion(HEADS, D).double()
    with torch.no_grad():
        part.low.copy_(scale * normal(HEADS, D, seed=seed))
        part.high.copy_(scale * normal(HEADS, D, seed=100 + seed))
    return part


def gated(seed):
    part = _GatedAttention(HEADS, K, D).double()
    with torch.no_grad():
        part.gate.copy_(normal(HEADS * K, D, seed=seed))
    return part


def inverted(A, b, g):
    """diag(1 + tanh b − g) A + diag(g), one head."""
    return (1 + b.tanh() - g)[:, None] * A + g.diag()


def steered_layer(part, A, W_V, W_O):
    def layer(X):
        V = torch.einsum("nd,hdk->nhk", X, W_V)
        U = torch.einsum("hij,jhk->ihk", A, V)
        return X + torch.einsum("nhk,hkd->nd", part(U, V, None, None, X), W_O)

    return layer


def limit(A, W_V, W_O, X, depth=3000):
    for _ in range(depth):
        X = apply_layer(X, A, W_V, W_O)
        X = X / X.norm()
    return X


@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_inversion_is_a_matrix_per_head_whose_rows_sum_to_1_plus_tanh_b(seed):
    A, (W_V, W_O), X = attention(HEADS, N, N, seed=seed), weights(HEADS, D, K, seed=seed), normal(N, D, seed=seed)
    part = inversion(seed)
    b, g = X @ part.low.T, X @ part.high.T
    B = torch.stack([inverted(A[h], b[:, h], g[:, h]) for h in range(HEADS)])
    torch.testing.assert_close(steered_layer(part, A, W_V, W_O)(X), apply_layer(X, B, W_V, W_O))
    torch.testing.assert_close(B @ ONE, 1 + b.T.tanh())


@pytest.mark.parametrize("seed", SEEDS)
def test_one_head_has_the_eigenvalues_of_lemma_1_whatever_the_rows_sum_to(seed):
    B = inverted(attention(N, N, seed=seed), normal(N, seed=seed), 2 * normal(N, seed=50 + seed))
    W_V, W_O = weights(1, D, D, seed=seed)
    t, lam = torch.linalg.eigvals(B), torch.linalg.eigvals(W_V[0] @ W_O[0])
    assert same_spectrum(torch.linalg.eigvals(layer_matrix(B[None], W_V, W_O)), (1 + t[:, None] * lam).flatten(), 1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_row_sums_keep_the_multi_head_theorem_with_c_in_place_of_1(seed):
    A, (W_V, W_O) = attention(HEADS, N, N, seed=seed), weights(HEADS, D, K, seed=seed)
    b, g = normal(HEADS, seed=seed), 2 * normal(HEADS, N, seed=50 + seed)  # g of any size and sign
    B = torch.stack([inverted(A[h], b[h].expand(N), g[h]) for h in range(HEADS)])
    c = 1 + b.tanh()
    smooth = torch.eye(D, dtype=torch.float64) + torch.einsum("h,hdk,hke->de", c, W_V, W_O)
    P = torch.eye(N, dtype=torch.float64) - 1 / N
    Q = torch.linalg.svd(ONE[:, None]).U[:, 1:]
    centred = layer_matrix(Q.T @ (P @ B) @ Q, W_V, W_O)
    both = torch.cat([torch.linalg.eigvals(smooth), torch.linalg.eigvals(centred)])
    assert same_spectrum(torch.linalg.eigvals(layer_matrix(B, W_V, W_O)), both, 1e-7)


@pytest.mark.parametrize(("g", "lam", "smooths"), [(0.5, 0.3, True), (3.0, 0.3, False), (-2.0, 3.0, False)])
def test_signs_need_weights_between_0_and_1(g, lam, smooths):
    A = torch.full((N, N), 1 / N, dtype=torch.float64)
    t = torch.linalg.eigvals(inverted(A, 0 * ONE, g * ONE)).real.sort().values
    rest = t[(t - 1).abs() > 1e-9]
    assert len(rest) == N - 1
    assert bool(((1 + lam * rest).abs() < 1 + lam).all()) == smooths
    mixed = inverted(attention(N, N, seed=1), 0 * ONE, torch.linspace(0, 1, N, dtype=torch.float64))
    assert bool((mixed >= 0).all())  # rows that sum to one: attention again
    torch.testing.assert_close(mixed @ ONE, ONE)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_positive_matrix_of_uneven_rows_makes_tokens_parallel_and_not_equal(seed):
    A, b = attention(N, N, sharpness=1.0, seed=seed), normal(N, seed=seed)
    g = (1 + b.tanh()) * torch.rand(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    B = inverted(A, b, g)
    assert bool((B > 0).all())
    t, v = torch.linalg.eig(B)
    first = t.abs().argmax()
    assert (1 + b.tanh()).min() < t[first].real < (1 + b.tanh()).max()
    v = v[:, first].real
    v = v * v.sum().sign()
    assert bool((v > 0).all())
    H = with_spectrum(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.6]), seed=seed)
    X = limit(B[None], H.T[None].contiguous(), torch.eye(D, dtype=torch.float64)[None], normal(N, D, seed=7 + seed))
    assert float(cosine(X)) == pytest.approx(1, abs=1e-6)
    assert float(sigma_ratio(X)) < 1e-6
    ratio = float((v - v.mean()).norm() / (N**0.5 * v.mean()))
    assert float(input_convergence(X)) == pytest.approx(ratio, rel=1e-5)
    assert ratio > 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_constant_arrays_do_not_stay_constant(seed):
    A, (W_V, W_O) = attention(HEADS, N, N, seed=seed), weights(HEADS, D, K, seed=seed)
    B = torch.stack([inverted(A[h], normal(N, seed=seed + h), 0 * ONE) for h in range(HEADS)])
    assert float(hfc(apply_layer(ONE[:, None] * normal(1, D, seed=seed), B, W_V, W_O)).norm()) > 0.1


@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_gates_are_a_head_for_every_feature(seed):
    A, (W_V, W_O), X = attention(HEADS, N, N, seed=seed), weights(HEADS, D, K, seed=seed), normal(N, D, seed=seed)
    part = gated(seed)
    r = 2 * (X @ part.gate.T).sigmoid().view(N, HEADS, K)
    B = torch.stack([r[:, h, f, None] * A[h] for h in range(HEADS) for f in range(K)])
    columns = W_V.permute(0, 2, 1).reshape(-1, D, 1), W_O.reshape(-1, 1, D)
    torch.testing.assert_close(steered_layer(part, A, W_V, W_O)(X), apply_layer(X, B, *columns))
    same = r[:1].expand(N, HEADS, K)  # gates that are the same for every token go into the weights
    B = torch.stack([same[:, h, f, None] * A[h] for h in range(HEADS) for f in range(K)])
    torch.testing.assert_close(apply_layer(X, B, *columns), apply_layer(X, A, W_V * r[0][:, None], W_O))


@pytest.mark.parametrize("seed", SEEDS)
def test_causal_layers_have_their_diagonal(seed):
    A, (W_V, W_O) = attention(HEADS, N, N, causal=True, seed=seed), weights(HEADS, D, K, seed=seed)
    b, g, r = normal(HEADS, N, seed=seed), normal(HEADS, N, seed=9 + seed), 2 * normal(N, HEADS, K, seed=seed).sigmoid()
    B = torch.stack([inverted(A[h], b[h], g[h]) for h in range(HEADS)])
    torch.testing.assert_close(B[:, 0, 0], 1 + b[:, 0].tanh())
    gates = torch.stack([r[:, h, f, None] * A[h] for h in range(HEADS) for f in range(K)])
    columns = W_V.permute(0, 2, 1).reshape(-1, D, 1), W_O.reshape(-1, 1, D)
    eye = torch.eye(D, dtype=torch.float64)
    for whole, blocks in (
        (layer_matrix(B, W_V, W_O), [torch.einsum("h,hdk,hke->de", B[:, i, i], W_V, W_O) for i in range(N)]),
        (
            layer_matrix(gates, *columns),
            [torch.einsum("h,hdk,hk,hke->de", A[:, i, i], W_V, r[i], W_O) for i in range(N)],
        ),
    ):
        expected = torch.cat([torch.linalg.eigvals(eye + block) for block in blocks])
        assert same_spectrum(torch.linalg.eigvals(whole), expected, 1e-6)


def recomputed(part, Q, W_V, W_O):
    def layer(X):
        A = torch.einsum("id,hde,je->hij", X, Q, X).softmax(-1)
        return steered_layer(part, A, W_V, W_O)(X)

    return layer


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["inversion", "gated"])
def test_recomputed_a_constant_state_stays_one_and_differences_follow_one_matrix(kind, seed):
    (W_V, W_O), Q = weights(HEADS, D, K, seed=seed), 0.3 * normal(HEADS, D, D, seed=seed)
    m, part = normal(D, seed=20 + seed), inversion(seed, 0.5) if kind == "inversion" else gated(seed)
    layer, state = recomputed(part, Q, W_V, W_O), ONE[:, None] * m
    step = torch.eye(D, dtype=torch.float64)
    if kind == "inversion":
        low, high = part.low.detach(), part.high.detach()
        b, g = low @ m, high @ m
        after = m + torch.einsum("h,d,hdk,hke->e", 1 + b.tanh(), m, W_V, W_O)
        for h in range(HEADS):
            W = W_V[h] @ W_O[h]
            step = step + g[h] * W + torch.outer(low[h], m @ W) / b[h].cosh() ** 2
    else:
        W_g = part.gate.detach().view(HEADS, K, D)
        after = m.clone()
        for h in range(HEADS):
            s = (W_g[h] @ m).sigmoid()
            after = after + (m @ W_V[h] * 2 * s) @ W_O[h]
            step = step + W_g[h].T @ (m @ W_V[h] * 2 * s * (1 - s)).diag() @ W_O[h]
    with torch.no_grad():
        torch.testing.assert_close(layer(state), ONE[:, None] * after)
    derivative = jacrev(layer)(state).detach()
    Z = hfc(normal(N, D, seed=30 + seed))
    torch.testing.assert_close(torch.einsum("ndme,me->nd", derivative, Z), Z @ step)
