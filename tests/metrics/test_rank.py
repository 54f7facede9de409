import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from support.oracles import normal

from oversmooth.metrics import effective_rank, rank_one_distance, sigma_ratio, stable_rank
from oversmooth.metrics.rank import singular_values

ALL = (effective_rank, stable_rank, sigma_ratio, rank_one_distance)
shapes = st.tuples(st.integers(2, 12), st.integers(2, 12))


@given(shapes, st.integers(0, 10_000))
def test_against_the_singular_value_decomposition(shape, seed):
    x = normal(*shape, seed=seed)
    s = np.linalg.svd(x.numpy(), compute_uv=False)
    assert sigma_ratio(x).item() == pytest.approx(s[1] / s[0], abs=1e-9)
    assert stable_rank(x).item() == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-9)
    assert effective_rank(x).item() == pytest.approx(np.exp(entropy(s / s.sum())), rel=1e-9)
    best = x - s[0] * torch.outer(
        *[torch.linalg.svd(x)[i][:, 0] if i == 0 else torch.linalg.svd(x)[i][0] for i in (0, 2)]
    )
    assert rank_one_distance(x).item() == pytest.approx((best.norm() / x.norm()).item(), abs=1e-9)


@given(shapes, st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_blind_to_order_rotation_and_scale(shape, seed, factor):
    x = normal(*shape, seed=seed)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
    rotation = torch.linalg.qr(normal(shape[1], shape[1], seed=seed + 1)).Q
    for metric in ALL:
        torch.testing.assert_close(metric(factor * x[order] @ rotation), metric(x))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_known_arrays(shape):
    n, d = shape
    small = min(shape)
    isotropic = torch.linalg.qr(normal(max(shape), small)).Q
    isotropic = isotropic if n >= d else isotropic.T
    rank_one = torch.outer(normal(n), normal(d, seed=1))
    constant = torch.full(shape, 3.0)
    for x, rank in ((isotropic, small), (rank_one, 1), (constant, 1)):
        assert effective_rank(x).item() == pytest.approx(rank, rel=1e-6)
        assert stable_rank(x).item() == pytest.approx(rank, rel=1e-6)
        assert sigma_ratio(x).item() == pytest.approx(float(rank > 1), abs=1e-6)
        assert rank_one_distance(x).item() == pytest.approx((1 - 1 / rank) ** 0.5, abs=1e-6)


def test_effective_rank_is_not_the_sum_over_the_largest():
    x = torch.diag(torch.tensor([4.0, 2.0, 1.0]))
    p = np.array([4, 2, 1]) / 7
    assert effective_rank(x).item() == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-6)
    assert effective_rank(x).item() != pytest.approx(7 / 4, rel=1e-2)


def test_a_float32_array_is_seen_below_the_floor_of_a_float32_gram_matrix():
    U, V = torch.linalg.qr(normal(50, 50)).Q, torch.linalg.qr(normal(40, 40, seed=1)).Q
    s = torch.zeros(50, 40, dtype=torch.float64)
    s[0, 0], s[1, 1] = 1.0, 1e-5
    x = (U @ s @ V).float()
    assert sigma_ratio(x).item() == pytest.approx(1e-5, rel=0.05)


def near_rank_one(n, d, share, seed=0):
    """Singular values 1 and, from `share` down to a fifth of it, all others."""
    m = min(n, d)
    U, V = torch.linalg.qr(normal(n, m, seed=seed)).Q, torch.linalg.qr(normal(d, m, seed=seed + 1)).Q
    s = torch.cat([torch.ones(1), share * torch.linspace(1, 0.2, m - 1)]).double()
    return (U * s) @ V.T


FINE = [(torch.float32, share) for share in (1e-2, 1e-3, 1e-5, 1e-6, 1e-7, 3e-8)]
FINE += [(torch.float64, share) for share in (1e-2, 1e-3, 1e-4, 1e-7, 1e-10, 1e-13, 1e-14, 1e-15)]


@pytest.mark.parametrize(("dtype", "share"), FINE)
@pytest.mark.parametrize("shape", [(2, 2), (3, 5), (9, 4)])
def test_near_rank_one_against_many_digits(shape, dtype, share):
    """A Gram matrix alone sees nothing below 1e-7: σ₂/σ₁ and the distance were zero there."""
    x = near_rank_one(*shape, share, seed=int(-1000 * np.log10(share))).to(dtype)
    with mpmath.workdps(50):
        s = sorted(mpmath.svd_r(mpmath.matrix(x.tolist()), compute_uv=False), reverse=True)
        ratio, distance = float(s[1] / s[0]), float(mpmath.norm(s[1:]) / mpmath.norm(s))
    single = 1e-7 if dtype == torch.float32 else 0.0  # what comes back is float32
    assert sigma_ratio(x).item() == pytest.approx(ratio, rel=1e-6 + single)
    assert rank_one_distance(x).item() == pytest.approx(distance, rel=1e-6 + single)
    found = singular_values(x)
    np.testing.assert_allclose(found[:2], [float(v) for v in s[:2]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(197, 192), (50, 200)])
def test_many_small_singular_values_add_up(shape):
    """Each below 1e-7 of the first, together 1e-6: to drop them is to lose much of the distance, or all."""
    x = near_rank_one(*shape, 0.0)
    rest = normal(*shape, seed=5)
    x = (x + 1e-6 * rest / rest.norm()).float()
    s = np.linalg.svd(x.double().numpy(), compute_uv=False)
    assert rank_one_distance(x).item() == pytest.approx(np.linalg.norm(s[1:]) / np.linalg.norm(s), rel=1e-5)
    assert effective_rank(x).item() == pytest.approx(np.exp(entropy(s / s.sum())), rel=1e-6)


def test_near_and_far_arrays_in_one_batch():
    x = torch.stack([near_rank_one(6, 4, share) for share in (0.5, 1e-9, 0.0, 1e-4, 1e-12)]).float().double()
    x = x.reshape(5, 1, 6, 4)
    for metric in ALL:
        torch.testing.assert_close(metric(x)[:, 0], torch.stack([metric(one[0]) for one in x]), rtol=1e-12, atol=0)
    assert sigma_ratio(x)[1].item() > 1e-9  # float32 rounding of the array itself


@given(st.integers(1, 9), st.integers(1, 9), st.floats(-3e4, 3e4), st.sampled_from([torch.float32, torch.float64]))
def test_constant_arrays_are_exactly_rank_one(n, d, value, dtype):
    x = torch.full((n, d), value, dtype=dtype)
    if bool(x.any()):
        assert sigma_ratio(x) == rank_one_distance(x) == 0
        assert effective_rank(x) == 1


def test_gradients_near_rank_one():
    """Of the singular values themselves: u_i v_iᵀ, by the decomposition."""
    x = near_rank_one(5, 4, 1e-6).requires_grad_()
    U, _, V = torch.linalg.svd(x.detach(), full_matrices=False)
    for i in range(4):
        (gradient,) = torch.autograd.grad(singular_values(x)[i], x)
        torch.testing.assert_close(gradient, torch.outer(U[:, i], V[i]), rtol=1e-6, atol=1e-6)


def test_mask_is_the_same_as_leaving_tokens_out():
    x = normal(2, 7, 4)
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 0]]).bool()
    padded = x.masked_fill(~mask[..., None], torch.nan)
    for metric in ALL:
        expected = torch.stack([metric(a[m]) for a, m in zip(x, mask, strict=True)])
        torch.testing.assert_close(metric(padded, mask=mask), expected)


def test_defined_behaviour_at_the_edges():
    one = normal(1, 5)
    assert (effective_rank(one), stable_rank(one)) == (pytest.approx(1), pytest.approx(1))
    assert (sigma_ratio(one), rank_one_distance(one)) == (0, 0)
    for metric in ALL:
        assert metric(torch.zeros(4, 3)).isnan()
        assert metric(torch.ones(0, 3)).isnan()
        assert metric(torch.ones(4, 3), mask=torch.zeros(4, dtype=torch.bool)).isnan()
        batch = torch.stack([torch.ones(4, 3), torch.full((4, 3), torch.nan)])
        assert metric(batch).isnan().tolist() == [False, True]
        assert metric(normal(4, 3).float() * 1e30).isfinite()
        assert metric(normal(4, 3).bfloat16()).dtype == torch.float32


def test_gradients_also_where_singular_values_are_zero():
    x = normal(5, 3).requires_grad_()
    for metric in ALL:
        assert torch.autograd.gradcheck(metric, x)
    low = torch.outer(normal(5), normal(3, seed=1)).requires_grad_()
    for metric in ALL:
        (gradient,) = torch.autograd.grad(metric(low), low)
        assert gradient.isfinite().all()


def test_singular_values_descend():
    s = singular_values(normal(3, 8, 5))
    assert s.shape == (3, 5)
    assert (s.diff(dim=-1) <= 0).all()
