import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth.metrics import angle, cosine, summary


def pairwise(x, absolute):
    """The mean over all pairs, one after another."""
    values = [
        torch.nn.functional.cosine_similarity(x[i], x[j], dim=0, eps=0.0)
        for i in range(len(x))
        for j in range(len(x))
        if i != j
    ]
    values = torch.stack(values)
    return (values.abs() if absolute else values).mean()


@given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 10_000), st.booleans())
def test_mean_over_pairs(n, d, seed, absolute):
    x = normal(n, d, seed=seed)
    torch.testing.assert_close(cosine(x, absolute=absolute), pairwise(x, absolute))


@given(st.integers(2, 9), st.integers(0, 1000), st.booleans(), st.floats(1e-3, 1e3))
def test_blind_to_order_rotation_and_the_length_of_each_token(n, seed, absolute, factor):
    x = normal(n, 5, seed=seed)
    lengths = normal(n, 1, seed=seed + 1).exp() * factor
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    rotation = torch.linalg.qr(normal(5, 5, seed=seed + 2)).Q
    torch.testing.assert_close(cosine((lengths * x)[order] @ rotation, absolute), cosine(x, absolute))


@given(
    st.integers(2, 300),
    st.integers(1, 200),
    st.sampled_from(["one way", "both ways", "nearly one way", "anyhow"]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.integers(0, 10_000),
)
def test_a_mean_of_cosines_is_one(n, d, kind, dtype, seed):
    """Sums round: parallel tokens in float32 came to 1.0000005, opposite ones to −1.0000002."""
    x = normal(1, d, seed=seed) * normal(n, 1, seed=seed + 1)
    if kind == "one way":
        x = x * x[:, :1].sign()
    elif kind == "nearly one way":
        x = x.abs() + 1e-5 * normal(n, d, seed=seed + 2)
    elif kind == "anyhow":
        x = normal(n, d, seed=seed)
    x = x.to(dtype)
    found = summary(x)
    for value, least in ((cosine(x), -1), (found.cos, -1), (cosine(x, absolute=True), 0), (found.abs_cos, 0)):
        assert least <= value.item() <= 1


def test_opposite_tokens_and_tokens_at_right_angles():
    for seed in range(50):
        v = normal(1, 7, seed=seed, dtype=torch.float32)
        pair = torch.cat([v, -3 * v])
        for found in (cosine(pair), summary(pair).cos):
            assert -1 <= found.item() <= -1 + 1e-6
    for found in (cosine(torch.eye(9), absolute=True), summary(torch.eye(9)).abs_cos):
        assert found.item() == 0


def test_signed_and_absolute_differ_on_a_line():
    x = torch.tensor([[1.0, 1.0], [-3.0, -3.0], [2.0, 2.0], [-1.0, -1.0]])
    assert cosine(x, absolute=True).item() == pytest.approx(1)
    assert cosine(x).item() == pytest.approx(-1 / 3)


def test_mask_and_tokens_of_length_zero_are_in_no_pair():
    x = normal(6, 3)
    x[2] = 0
    mask = torch.tensor([True, True, True, False, True, True])
    padded = x.masked_fill(~mask[:, None], torch.nan)
    for absolute in (False, True):
        expected = pairwise(x[[0, 1, 4, 5]], absolute)
        torch.testing.assert_close(cosine(padded, absolute, mask=mask), expected)


def test_defined_behaviour_at_the_edges():
    for absolute in (False, True):
        assert cosine(normal(1, 4), absolute).isnan()
        assert cosine(torch.zeros(4, 4), absolute).isnan()
        assert cosine(torch.ones(0, 4), absolute).isnan()
        assert cosine(torch.ones(4, 4), absolute, mask=torch.zeros(4, dtype=torch.bool)).isnan()
        assert cosine(torch.tensor([[1.0, 0], [torch.nan, 0], [0, 1]]), absolute).isnan()
        # Lengths near the smallest float: no epsilon may be added to them.
        tiny = torch.tensor([[1e-38, 0], [1e-38, 1e-38]])
        assert cosine(tiny, absolute).item() == pytest.approx(0.5**0.5)


def test_blocks_agree_with_one_piece_in_value_and_gradient(monkeypatch):
    x = normal(3, 33, 4).requires_grad_()
    whole = cosine(x, absolute=True)
    (expected,) = torch.autograd.grad(whole.sum(), x)
    monkeypatch.setitem(angle._BLOCK, "cpu", 33 * 5)
    pieces = cosine(x, absolute=True)
    (gradient,) = torch.autograd.grad(pieces.sum(), x)
    torch.testing.assert_close(pieces, whole)
    torch.testing.assert_close(gradient, expected)


def test_signed_mean_forms_no_array_of_pairs():
    # 4e10 pairs: 160 GB if they were formed.
    x = torch.ones(200_000, 2)
    assert cosine(x).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("absolute", [False, True])
def test_gradients(absolute):
    assert torch.autograd.gradcheck(lambda x: cosine(x, absolute), normal(4, 3).requires_grad_())
    x = normal(4, 3)
    x[1] = 0
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(cosine(x, absolute), x)
    assert gradient.isfinite().all()
