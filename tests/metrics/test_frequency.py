import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth import InputError
from oversmooth.metrics import cosine, hfc, input_convergence, lfc, sigma_ratio

shapes = st.tuples(st.integers(2, 12), st.integers(1, 12))
seeds = st.integers(0, 10_000)


@given(shapes, seeds)
def test_parts_are_the_projections_of_the_definition(shape, seed):
    x = normal(*shape, seed=seed)
    n = shape[0]
    constant = torch.full((n, n), 1 / n, dtype=x.dtype)
    torch.testing.assert_close(lfc(x), constant @ x)
    torch.testing.assert_close(hfc(x), (torch.eye(n, dtype=x.dtype) - constant) @ x)
    torch.testing.assert_close(lfc(x) + hfc(x), x)
    torch.testing.assert_close(hfc(hfc(x)), hfc(x))


@given(shapes, seeds)
def test_ratio_in_both_norms_against_matrix_norms(shape, seed):
    x = normal(*shape, seed=seed)
    for norm, order in (("fro", "fro"), ("spectral", 2)):
        expected = torch.linalg.matrix_norm(hfc(x), ord=order) / torch.linalg.matrix_norm(lfc(x), ord=order)
        torch.testing.assert_close(input_convergence(x, norm=norm), expected, rtol=1e-7, atol=1e-7)


@given(shapes, seeds, st.floats(0.01, 100))
def test_ratio_is_blind_to_order_rotation_and_scale(shape, seed, factor):
    x = normal(*shape, seed=seed)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
    rotation = torch.linalg.qr(normal(shape[1], shape[1], seed=seed + 1)).Q
    for norm in ("fro", "spectral"):
        expected = input_convergence(x, norm=norm)
        torch.testing.assert_close(input_convergence(factor * x[order] @ rotation, norm=norm), expected)


@given(shapes, seeds)
def test_mask_is_the_same_as_leaving_tokens_out(shape, seed):
    x = normal(3, *shape, seed=seed)
    mask = normal(3, shape[0], seed=seed + 1) > -0.5
    mask[:, 0] = True
    padded = x.masked_fill(~mask[..., None], torch.nan)
    for norm in ("fro", "spectral"):
        got = input_convergence(padded, norm=norm, mask=mask)
        expected = torch.stack([input_convergence(a[m], norm=norm) for a, m in zip(x, mask, strict=True)])
        torch.testing.assert_close(got, expected)
    assert (hfc(padded, mask=mask)[~mask] == 0).all()
    assert (lfc(padded, mask=mask)[~mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype):
    x = (normal(64, 32) + 3).to(dtype)
    assert input_convergence(x).dtype == hfc(x).dtype == torch.float32
    torch.testing.assert_close(input_convergence(x).double(), input_convergence(x.double()), rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales_neither_overflow_nor_underflow(scale):
    x = normal(8, 4).float()
    torch.testing.assert_close(input_convergence(x * scale), input_convergence(x))


def test_equal_tokens_give_exactly_zero_even_where_the_mean_rounds():
    x = normal(1, 16).float().expand(37, 16)
    assert input_convergence(x) == 0
    assert input_convergence(x, norm="spectral") == 0


def test_defined_behaviour_at_the_edges():
    assert input_convergence(normal(1, 4)) == 0  # one token
    assert input_convergence(torch.tensor([[1.0], [-1.0]])).isinf()  # mean token zero
    assert input_convergence(torch.zeros(3, 2)).isnan()
    assert input_convergence(torch.ones(3, 2), mask=torch.zeros(3, dtype=torch.bool)).isnan()
    assert input_convergence(torch.ones(0, 2)).isnan()
    assert input_convergence(torch.tensor([[1.0], [torch.nan]])).isnan()
    assert (lfc(torch.ones(3, 2), mask=torch.zeros(3, dtype=torch.bool)) == 0).all()
    batch = torch.stack([torch.ones(2, 2), torch.full((2, 2), torch.nan)])
    assert input_convergence(batch).isnan().tolist() == [False, True]  # one bad array leaves the others alone


def test_it_can_serve_as_a_training_penalty():
    x = normal(5, 3).requires_grad_()
    for norm in ("fro", "spectral"):
        assert torch.autograd.gradcheck(lambda x, norm=norm: input_convergence(x, norm=norm), x)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: hfc(torch.ones(3)), r"\(3,\)"),
        (lambda: hfc(torch.ones(3, 2, dtype=torch.int64)), "int64"),
        (lambda: hfc(torch.ones(3, 2), mask=torch.ones(2, dtype=torch.bool)), r"\(2,\)"),
        (lambda: hfc(torch.ones(3, 2), mask=torch.ones(3)), "float32"),
        (lambda: input_convergence(torch.ones(3, 2), norm="max"), "'max'"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()


@given(seeds)
def test_each_notion_implies_the_next_and_none_the_one_before(seed):
    """Input convergence ⇒ angle convergence ⇒ rank collapse, along sequences that converge in one sense only."""
    token, signs = normal(1, 6, seed=seed), torch.tensor([[1.0], [-1.0], [1.0], [1.0], [-1.0]]).double()
    lengths = torch.tensor([[1.0], [2.0], [3.0], [0.5], [1.5]]).double()
    noise = normal(5, 6, seed=seed + 1)
    same, parallel, line = token.expand(5, 6), lengths * token, signs * lengths * token
    for x, input_holds, angle_holds in ((same, True, True), (parallel, False, True), (line, False, False)):
        x = x + 1e-6 * noise
        assert (input_convergence(x) < 1e-4) == input_holds
        assert (cosine(x) > 1 - 1e-4) == angle_holds
        assert cosine(x, absolute=True) > 1 - 1e-4
        assert sigma_ratio(x) < 1e-4
