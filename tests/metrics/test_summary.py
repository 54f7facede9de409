"""The sweep against the single functions it shares its passes with."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth.metrics import angle, cosine, hfc, input_convergence, lfc, summary
from oversmooth.metrics.moments import moments, scaled


def agrees(x, mask=None, tolerance=1e-5):
    found = summary(x, mask=mask)
    near = dict(rtol=tolerance, atol=tolerance, equal_nan=True, check_dtype=False)
    norm = torch.linalg.vector_norm
    torch.testing.assert_close(found.log_hfc, norm(hfc(x, mask=mask), dim=(-2, -1)).log(), **near)
    torch.testing.assert_close(found.log_lfc, norm(lfc(x, mask=mask), dim=(-2, -1)).log(), **near)
    torch.testing.assert_close(found.log_hfc_lfc.exp(), input_convergence(x, mask=mask), **near)
    torch.testing.assert_close(found.cos, cosine(x, mask=mask), **near)
    torch.testing.assert_close(found.abs_cos, cosine(x, absolute=True, mask=mask), **near)
    lengths = norm(x.to(found.token_norms.dtype), dim=-1)
    lengths = lengths if mask is None else torch.where(mask, lengths, 0.0)
    torch.testing.assert_close(found.token_norms, lengths, **near)


@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(2, 9),
    st.integers(1, 6),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 10_000),
)
def test_single_functions(batch, n, d, dtype, seed):
    agrees((normal(*batch, n, d, seed=seed) + 0.5).to(dtype), tolerance=1e-9 if dtype == torch.float64 else 1e-4)


@given(st.integers(1, 3), st.integers(2, 9), st.integers(1, 6), st.integers(0, 10_000))
def test_masks(batch, n, d, seed):
    x = normal(batch, n, d, seed=seed) + 0.5
    mask = normal(batch, n, seed=seed + 1) > 0
    mask[:, 0] = mask[:, 1] = True
    x[~mask] = torch.nan  # what is hidden is not looked at
    found = summary(x, mask=mask)
    for i in range(batch):
        alone = summary(x[i][mask[i]])
        for name in ("log_hfc", "log_lfc", "cos", "abs_cos"):
            torch.testing.assert_close(getattr(found, name)[i], getattr(alone, name), rtol=1e-9, atol=1e-9)
    agrees(torch.where(mask[..., None], x, 0.0), mask, 1e-9)
    assert (found.token_norms[~mask] == 0).all()


@given(st.integers(2, 6), st.integers(1, 5), st.data())
def test_tokens_of_very_different_lengths(n, d, data):
    """In float32, against the exact directions; `cosine` is another function of ours."""
    powers = torch.tensor(data.draw(st.lists(st.integers(-34, 34), min_size=n, max_size=n)), dtype=torch.float64)
    x = (normal(n, d, seed=data.draw(st.integers(0, 10_000))) * 10.0 ** powers[:, None]).float()
    exact = x.double() / torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
    products = (exact @ exact.mT)[~torch.eye(n, dtype=torch.bool)]
    found = summary(x)
    assert float(found.cos) == pytest.approx(float(products.mean()), abs=1e-5)
    assert float(found.abs_cos) == pytest.approx(float(products.abs().mean()), abs=1e-5)
    expected = torch.linalg.vector_norm(x.double(), dim=-1)
    torch.testing.assert_close(found.token_norms.double(), expected, rtol=1e-5, atol=0.0)


@given(st.integers(3, 9), st.integers(2, 5), st.integers(1, 2), st.integers(0, 10_000))
def test_tokens_of_length_zero(n, d, zeros, seed):
    x = normal(n, d, seed=seed) + 0.5
    x[:zeros] = 0
    agrees(x, tolerance=1e-9)


def with_nan():
    x = normal(2, 4, 3)
    x[0, 0, 0] = torch.nan
    return x


@pytest.mark.parametrize(
    "x",
    [torch.zeros(2, 4, 3), torch.zeros(2, 4, 3).double(), normal(2, 1, 3), with_nan()]
    + [torch.full((7, 5), value) for value in (0.1, 1000.1)],
    ids=["zero", "zero in double", "a single token", "NaN", "equal", "equal and far"],
)
def test_arrays_at_the_edges(x):
    agrees(x)


def test_nothing_counts():
    found = summary(normal(2, 4, 3), mask=torch.zeros(2, 4, dtype=torch.bool))
    for value in (found.log_hfc_lfc, found.cos, found.abs_cos):
        assert value.isnan().all()
    assert not found.token_norms.any()


def test_tokens_on_one_line():
    x = torch.tensor([1.0, -3.0, 2.0, -1.0])[:, None] * normal(1, 6)
    found = summary(x)
    assert found.abs_cos.item() == pytest.approx(1)
    assert found.cos.item() == pytest.approx(-1 / 3)


@pytest.mark.parametrize(("n", "block"), [(1, 4), (5, 4), (7, 20), (9, 200)])
def test_blocks_of_pairs(n, block, monkeypatch):
    x = normal(3, 2, n, 4)
    expected = summary(x).abs_cos
    monkeypatch.setitem(angle._BLOCK, "cpu", block)
    torch.testing.assert_close(summary(x).abs_cos, expected, equal_nan=True)


def test_without_cosines():
    x = normal(3, 5, 4)
    quick, whole = summary(x, cosines=False), summary(x)
    assert quick.cos.isnan().all()
    assert quick.abs_cos.isnan().all()
    assert torch.equal(quick.log_hfc, whole.log_hfc)
    assert torch.equal(quick.token_norms, whole.token_norms)


def test_no_gradients_and_no_change():
    x = normal(3, 5, 4).requires_grad_()
    before = x.detach().clone()
    assert not summary(x).cos.requires_grad
    assert torch.equal(x, before)


def test_nearly_equal_tokens():
    x = 1000 + 1e-3 * normal(50, 8, dtype=torch.float32)
    expected = input_convergence(x.double()).item()
    assert summary(x).log_hfc_lfc.exp().item() == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_very_small_and_very_large_tokens(size):
    x = normal(6, 4, dtype=torch.float32) * size
    found = summary(x)
    torch.testing.assert_close(found.log_hfc_lfc.exp(), input_convergence(x))
    torch.testing.assert_close(found.cos, cosine(x))
    torch.testing.assert_close(found.abs_cos, cosine(x, absolute=True))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    found = summary(torch.zeros(shape))
    for value in (found.log_hfc_lfc, found.cos, found.abs_cos):
        assert value.shape == shape[:-2]
        assert value.isnan().all()


def test_hidden_tokens_of_any_size_leave_no_digit_behind():
    """Sizes are relative to the longest token: a hidden one must not be it."""
    x = 1e-25 * normal(6, 4, dtype=torch.float32)
    mask = torch.tensor([True, True, True, True, False, False])
    for hidden in (0.0, 1.0, 1e30, float("nan")):
        found, alone = summary(torch.where(mask[:, None], x, hidden), mask=mask), summary(x[:4])
        torch.testing.assert_close(found.log_hfc, alone.log_hfc)
        torch.testing.assert_close(found.log_lfc, alone.log_lfc)


def test_a_token_is_massive_above_the_ratio_and_not_at_it():
    for longest, massive in ((4.0, 0), (4.0001, 1)):
        x = torch.eye(5)
        x[4] *= longest
        found = moments(scaled(x), 4.0)
        assert found.massive.item() == massive
        assert found.count.tolist() == [5, 5 - massive]
