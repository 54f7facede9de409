"""Factors of sums, found from arrays that were summed by hand in the model's own precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oversmooth.trace.sums import fit_sum, is_plain_sum, same

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# How well a factor can be known from 30 tokens of 32 channels that were rounded so.
KNOWN = {torch.float64: 1e-10, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def arrays(seed, dtype, massive, count=2):
    source = torch.Generator().manual_seed(seed)
    found = [torch.randn(2, 15, 32, generator=source) for _ in range(count)]
    found[0][:, 3] *= massive
    return [x.to(dtype) for x in found]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(DTYPES),
    massive=st.sampled_from([1.0, 30.0, 1000.0]),
    keep=st.sampled_from([1.0, 0.0, 3.5, -0.7]),
    factor=st.sampled_from([1.0, 0.22, -0.5, 4.0]),
)
def test_numbers(seed, dtype, massive, keep, factor):
    x, out = arrays(seed, dtype, massive)
    found = fit_sum(keep * x + factor * out, [x, out])
    assert found is not None
    assert found.granularity == "no"
    assert abs(float(found.factors[0]) - keep) <= KNOWN[dtype]
    assert abs(float(found.factors[1]) - factor) <= KNOWN[dtype] * max(1, abs(factor))
    if keep == factor == 1.0:
        assert [float(f) for f in found.factors] == [1.0, 1.0]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), dtype=st.sampled_from(DTYPES), massive=st.sampled_from([1.0, 300.0]))
def test_one_factor_a_channel_or_a_token(seed, dtype, massive):
    x, out = arrays(seed, dtype, massive)
    source = torch.Generator().manual_seed(seed + 1)
    by_channel, by_token = torch.randn(32, generator=source), torch.rand(2, 15, 1, generator=source)
    found = fit_sum(x + by_channel.to(dtype) * out, [x, out])
    assert found.granularity == "by channel"
    assert float((found.factors[1] - by_channel).abs().max()) <= 10 * KNOWN[dtype]
    gated = x + by_token.to(dtype) * out
    assert fit_sum(gated, [x, out]) is None
    found = fit_sum(gated, [x, out], granularity=("by token",))
    assert float((found.factors[1] - by_token).abs().max()) <= 10 * KNOWN[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_third_term_is_not_overlooked(dtype):
    x, out, other = arrays(0, dtype, 1.0, count=3)
    total = x + 0.5 * out + 0.3 * other
    assert fit_sum(total, [x, out]) is None
    assert fit_sum(total, [x, out], granularity=("by token",)) is None
    assert [round(float(f), 2) for f in fit_sum(total, [x, other, out]).factors] == [1.0, 0.3, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_small_beside_a_massive_token_counts(dtype):
    x, out, other = arrays(0, dtype, 1e4, count=3)
    # One part in a thousand of the whole array, and as large as the other tokens themselves.
    assert fit_sum(x + out + other, [x, out]) is None
    assert not same(x + out, x)
    assert same(x.double(), x)


def test_tokens_that_are_all_alike_explain_no_factor_a_channel():
    x, out, other = (t[:, :1].expand(2, 15, 32).contiguous() for t in arrays(0, torch.float32, 1.0, count=3))
    assert fit_sum(other, [x, out]) is None


def test_a_branch_of_zeros_leaves_its_factor_at_what_is_expected():
    x, out = arrays(0, torch.float32, 1.0)
    assert [float(f) for f in fit_sum(x, [x, 0 * out]).factors] == [1.0, 1.0]
    scale = torch.tensor(0.3, dtype=torch.float64)
    assert [float(f) for f in fit_sum(x, [x, 0 * out], [None, scale]).factors] == [1.0, 0.3]


def test_a_shut_gate():
    x, out = arrays(0, torch.float32, 1.0)
    assert [float(f) for f in fit_sum(x, [x, out]).factors] == [1.0, 0.0]


def test_padding_that_is_nan_says_nothing():
    x, out = arrays(0, torch.float32, 1.0)
    out[:, -3:] = torch.nan
    assert [round(float(f), 4) for f in fit_sum(x + 0.3 * out, [x, out]).factors] == [1.0, 0.3]
    assert fit_sum(x + 0.3 * out * torch.rand(2, 15, 1), [x, out]) is None


def test_a_gate_of_a_small_branch_in_half_precision_is_no_number():
    """It changes no entry by more than eight roundings, and all of them by one or two."""
    source = torch.Generator().manual_seed(0)
    x, out, gate = (torch.randn(1, 20, 128, generator=source).bfloat16() for _ in range(3))
    out = 0.1 * out
    assert fit_sum(x + 0.5 * out, [x, out]).granularity == "no"
    assert fit_sum(x + torch.sigmoid(2 * gate) * out, [x, out]) is None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([1e-3, 1.0, -1.0, 300.0]),
    apart=st.sampled_from([1e-3, 0.05, 1.0]),
)
def test_no_sum_that_holds_is_ruled_out(seed, dtype, size, apart):
    """Terms of another size than the target, that cancel, or nearly alike, so that few entries leave factors open."""
    x, other = arrays(seed, dtype, 1.0)
    out = size * (x + apart * other)
    assert is_plain_sum(x + out, x, out)
    assert [float(f) for f in fit_sum(x + out, [x, out]).factors] == [1.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_as_it_is_holds_for_every_token(dtype):
    source = torch.Generator().manual_seed(0)
    x, out = (torch.randn(2, 40, 256, generator=source).to(dtype) for _ in range(2))
    total = x + out
    assert is_plain_sum(total, x, out)
    assert not is_plain_sum(total, x)
    assert not is_plain_sum(x + 0.5 * out, x, out)
    assert not is_plain_sum(total, x, out[:, :-1])
    total[1, -1, -1] *= 2  # the last entry of all
    assert not is_plain_sum(total, x, out)
