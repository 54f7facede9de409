"""Moments, cosines and massive tokens against loops in float64, in every case that hurts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth import metrics
from oversmooth.metrics import moments as kernel
from oversmooth.metrics.moments import abs_cosine, moments, scaled

NAMES = ("log_hfc", "log_lfc", "cos", "abs_cos")


def by_hand(x):
    """(log HFC, log LFC, mean cosine, mean absolute cosine) of tokens (n, d), by loops."""
    x = np.asarray(x, dtype=np.float64)
    mean = x.mean(0)
    high = math.sqrt(math.fsum(float((row - mean) @ (row - mean)) for row in x))
    low = math.sqrt(len(x) * float(mean @ mean))
    units = [row / np.linalg.norm(row) for row in x if np.linalg.norm(row)]
    cosines = [float(a @ b) for i, a in enumerate(units) for j, b in enumerate(units) if i != j]
    logs = [math.log(value) if value else -math.inf for value in (high, low)]
    return (*logs, np.mean(cosines), np.mean(np.abs(cosines)))


def found(x, mask=None, massive=math.inf):
    """The same four, all tokens first, and without massive ones."""
    tokens = scaled(x, mask)
    seen = moments(tokens, massive)
    return {"log_hfc": seen.log_hfc, "log_lfc": seen.log_lfc, "cos": seen.cos, "abs_cos": abs_cosine(tokens, seen)[0]}


def agrees(seen, x, at, near):
    for name, expected in zip(NAMES, by_hand(x), strict=True):
        assert float(seen[name][at]) == pytest.approx(expected, rel=near, abs=near), name


@given(
    st.integers(2, 9),
    st.integers(1, 6),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_against_loops(n, d, dtype, masked, seed):
    x = (normal(2, n + 2, d, seed=seed) + 0.5).to(dtype)
    mask = torch.ones(2, n + 2, dtype=torch.bool)
    mask[0, n:] = not masked
    given_x = x.masked_fill(~mask[..., None], torch.nan)
    seen = found(given_x, mask if masked else None)
    near = 1e-9 if dtype == torch.float64 else 1e-4
    for one in range(2):
        agrees(seen, x[one][mask[one]].double(), (one, 0), near)


@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([6.0, 300.0, 1e4, 1e6]))
def test_massive_tokens_are_found_and_leave_no_trace_in_the_rest(seed, many, size):
    """In float32, where a sum that holds a massive token has lost the digits of the others."""
    x = normal(3, 11, 5, seed=seed) + 1.0
    x = x / x.norm(dim=-1, keepdim=True) * (1 + torch.rand(3, 11, 1, generator=torch.Generator().manual_seed(seed)))
    places = torch.randperm(11, generator=torch.Generator().manual_seed(seed))[:many]
    x[0, places] *= 2 * size
    x = x.float()
    tokens = scaled(x)
    seen = moments(tokens, 5.0)
    assert seen.massive.tolist() == [many, 0, 0]
    ratios, positions = seen.longest()
    assert set(positions[0, :many].tolist()) == set(places.tolist())
    norms = x[0].double().norm(dim=-1)
    assert float(ratios[0, 0]) == pytest.approx(float(norms.max() / norms.sort().values[5]), rel=1e-5)
    rest = torch.ones(11, dtype=torch.bool)
    rest[places] = False
    both = found(x, massive=5.0)
    agrees(both, x[0].double(), (0, 0), 1e-5)
    agrees(both, x[0][rest].double(), (0, 1), 1e-5)
    for name in NAMES:
        assert torch.equal(both[name][1:, 0], both[name][1:, 1])


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 7, 40]), st.booleans())
def test_ratios_are_to_the_median_of_valid_tokens(seed, n, masked):
    x = normal(1, n, 4, seed=seed).float()
    mask = torch.rand(1, n, generator=torch.Generator().manual_seed(seed)) < (0.7 if masked else 2.0)
    mask[0, 0] = True
    norms = x[0][mask[0]].norm(dim=-1)
    expected = torch.where(mask[0], x[0].norm(dim=-1) / norms.median(), 0.0)
    torch.testing.assert_close(moments(scaled(x, mask)).ratios[0], expected)


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e38, 1e-37])
def test_extreme_sizes(size):
    x = normal(2, 7, 4).clamp(-3, 3)
    x[0, 3] *= 0.01
    scaled_x = (x.double() * size).clamp(-3e38, 3e38).float()
    seen = found(scaled_x)
    for one in range(2):
        agrees(seen, scaled_x[one].double() / size, (one, 0), 1e9)  # finite
        exact = by_hand(scaled_x[one].double())
        for name, value in zip(NAMES, exact, strict=True):
            assert float(seen[name][one, 0]) == pytest.approx(value, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("n", "d"), [(7, 5), (197, 192), (2000, 64), (50_000, 8)])
@pytest.mark.parametrize("value", [0.1, 1000.1])
def test_equal_tokens_have_no_hfc_and_one_rounding_is_seen(n, d, value):
    x = (value * normal(d, dtype=torch.float32)).expand(1, n, d).clone()
    assert found(x)["log_hfc"][0, 0] == -math.inf
    x[0, ::3] = torch.nextafter(x[0, ::3], 2 * x[0, ::3])
    ratio = float(metrics.input_convergence(x.double()))
    seen = found(x)
    assert float((seen["log_hfc"] - seen["log_lfc"])[0, 0].exp()) == pytest.approx(ratio, rel=0.15)


def test_at_the_edges():
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    one = torch.tensor([[False, True, False, False]])
    for x, mask in ((torch.zeros(1, 4, 3), None), (normal(1, 4, 3), nothing), (torch.full((1, 4, 3), torch.nan), None)):
        seen = found(x, mask)
        assert (seen["log_hfc"] - seen["log_lfc"]).isnan().all()
        assert seen["cos"].isnan().all()
        assert seen["abs_cos"].isnan().all()
    seen = found(normal(1, 4, 3), one)
    assert seen["cos"].isnan().all()
    assert (seen["log_hfc"] == -torch.inf).all()
    for bad in (torch.nan, torch.inf):
        x = normal(2, 4, 3)
        x[0, 1, 1] = bad
        seen = found(x)
        for name in ("log_hfc", "cos", "abs_cos"):
            assert seen[name].isnan()[:, 0].tolist() == [True, False]


@given(st.integers(0, 10_000), st.integers(3, 60), st.integers(1, 5), st.integers(0, 2))
def test_a_sample_of_all_columns_is_all_pairs(seed, n, d, massive):
    """With no more tokens than are sampled, every column is taken, or some of them twice."""
    x = normal(2, n, d, seed=seed) + 0.3
    x[0, :massive] *= 100
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.9
    mask[:, :3] = True
    exact = found(x, mask, 5.0)["abs_cos"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "EXACT_TOKENS", 2)
        tokens = scaled(x, mask)
        seen, error = abs_cosine(tokens, moments(tokens, 5.0))
    assert ((seen - exact).abs() <= 5e-3).all()  # 1,024 columns do not divide evenly by so few tokens
    assert (error >= 0).all()


@pytest.mark.parametrize("period", [0, 7, 64, 1024])
def test_a_sample_of_columns_is_within_its_error(period):
    """Also of tokens that repeat."""
    x = normal(3, 6000, 8, dtype=torch.float32)
    x = x[:, torch.arange(6000) % period] if period else x
    x = x + 0.1 * normal(1, 1, 8, seed=1, dtype=torch.float32)
    tokens = scaled(x)
    seen = moments(tokens)
    value, error = abs_cosine(tokens, seen)
    exact, none = abs_cosine(tokens, seen, exact=True)
    assert not none.any()
    assert ((value - exact).abs() <= 4 * error + 1e-6).all()
    assert (error < 5e-3).all()
    x = x + 0.5 * x.norm(dim=-1).mean()  # as in trained models, where most cosines are positive
    tokens = scaled(x)
    value, error = abs_cosine(tokens, moments(tokens))
    assert (error < 1e-3).all()


def test_bfloat16_products_move_the_mean_by_less_than_a_thousandth():
    """As on a GPU, for arrays of bfloat16: the tokens lose no digit, each product is rounded."""
    for shift in (0.0, 0.3, 20.0):
        x = (normal(2, 300, 64) + shift * normal(1, 1, 64, seed=1)).bfloat16()
        x[:, :, 0] *= 30
        tokens = scaled(x)
        assert torch.equal(tokens.x.bfloat16().float(), tokens.x)
        seen = moments(tokens)
        exact = abs_cosine(tokens, seen)[0]
        own = tokens.x.bfloat16()
        quick = (kernel.sums_over_tokens(own, own, seen.weights, torch.Tensor.abs_) * seen.weights).sum(-1)
        quick = kernel.over_pairs(quick - 300, torch.tensor(300), 0.0)
        assert (quick - exact).abs().max() < 1e-3


def test_not_under_autocast_and_without_gradients():
    x = normal(2, 30, 8, dtype=torch.float32).requires_grad_()
    expected = found(x)
    with torch.autocast("cpu", torch.bfloat16):
        seen = found(x)
    for name in NAMES:
        assert torch.equal(seen[name], expected[name])
        assert not seen[name].requires_grad
