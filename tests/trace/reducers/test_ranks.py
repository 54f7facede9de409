"""Followed directions, the sketch of the effective rank, and what they flag, against singular values in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth.metrics import ranks_of
from oversmooth.metrics.moments import scaled
from oversmooth.trace.reducers.directions import Directions, orthonormal, ranks_of_directions
from oversmooth.trace.reducers.sketch import SKETCH_ERROR, effective_rank_of, quadrature

RANKS = ("stable_rank", "sigma_ratio", "rank_one_distance")

LIMIT = 1e-3
"""Relative error of σ₁ or σ₂ that is expected at most, or else announced."""


def exact(x):
    return ranks_of(torch.linalg.svdvals(x.double()))


def squares(tokens):
    return (torch.linalg.vector_norm(tokens.x, dim=-1) * tokens.share).square().sum(-1)


def followed(x, directions=None, mask=None):
    tokens = scaled(x, mask)
    return ranks_of_directions((directions or Directions()).update(tokens), squares(tokens))


def decaying(*shape, power=1.0, seed=0):
    """Singular values that fall as those of trained models do."""
    n, d = shape[-2:]
    m = min(n, d)
    u, v = (torch.linalg.qr(normal(*shape[:-2], rows, m, seed=seed + i)).Q for i, rows in enumerate((n, d)))
    return (u * torch.arange(1, m + 1).double() ** -power) @ v.mT


def error(found, expected):
    return torch.stack([(found[name] / expected[name] - 1).abs() for name in RANKS]).amax(0)


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.0, 2.0), st.integers(0, 1000), st.booleans())
def test_what_is_off_is_flagged(n, d, power, seed, flat):
    """Whatever the spectrum; the error that is stated is at most a third of the real one."""
    x = (normal(2, n, d, seed=seed) if flat else decaying(2, n, d, power=power, seed=seed)).float()
    found = followed(x)
    real = error(found, exact(x)).nan_to_num(0.0)
    assert ((real < LIMIT) | (3 * found["directions_error"] >= real)).all()
    if max(n, d) > 1 and min(n, d) <= 16 and power < 1.5:
        assert (real < LIMIT).all()  # all directions are followed


def test_over_sites_that_change():
    """Warm starts, between arrays that differ by a fifth."""
    x, directions = decaying(3, 90, 70, power=0.7), Directions()
    for site in range(6):
        found = followed(x.float(), directions)
        assert (found["directions_error"] < LIMIT).all()
        assert (error(found, exact(x)) < LIMIT).all()
        x = x + 0.2 * x.norm() / 80 * decaying(3, 90, 70, power=0.3, seed=site + 7)


@pytest.mark.parametrize("dead", ["zeros", "equal", "NaN", "infinite", "other shape"])
def test_a_site_without_directions_does_not_spoil_the_next(dead):
    x, directions = decaying(2, 30, 20).float(), Directions()
    first = {
        "zeros": torch.zeros_like(x),
        "equal": x[:, :1].expand_as(x),
        "NaN": torch.full_like(x, torch.nan),
        "infinite": torch.full_like(x, torch.inf),
        "other shape": x[:1, :7],
    }[dead]
    before = followed(first, directions)
    if dead in ("zeros", "NaN", "infinite"):
        assert before["sigma_ratio"].isnan().all()
    if dead == "equal":
        assert (before["directions_error"] > LIMIT).all()
        torch.testing.assert_close(before["stable_rank"], torch.ones(2).double(), rtol=1e-6, atol=0)
    assert (error(followed(x, directions), exact(x)) < LIMIT).all()


def test_padding_and_size_change_nothing():
    x = decaying(2, 30, 20).float()
    mask = torch.ones(2, 37, dtype=torch.bool)
    mask[:, 30:] = False
    padded = torch.cat([x, torch.full((2, 7, 20), torch.nan)], 1)
    assert (error(followed(padded, mask=mask), exact(x)) < LIMIT).all()
    for size in (1e30, 1e-30):
        assert (error(followed(x * size), exact(x)) < LIMIT).all()


@pytest.mark.parametrize("power", [1, 2, 3, 4, 5, 6, 7])
def test_near_rank_one(power):
    """What float32 cannot resolve is flagged."""
    small = normal(50, 40, seed=1)
    x = torch.outer(normal(50, seed=2), normal(40, seed=3))
    x = (x / x.norm() + 10.0**-power * small / torch.linalg.matrix_norm(small, 2))[None].float()
    found, expected = followed(x), exact(x)
    assert float(found["directions_error"]) > LIMIT or float(error(found, expected)) < LIMIT
    assert float(found["directions_error"]) < LIMIT or power > 1


@pytest.mark.parametrize("spread", [0.0, 3.0, 5.0])
def test_columns_become_orthonormal(spread):
    """Also as parallel ones as a first step gives."""
    v = (normal(2, 60, 12) + 10**spread * normal(2, 60, 1, seed=1)).float()
    basis = orthonormal(v).double()
    torch.testing.assert_close(basis.mT @ basis, torch.eye(12).double().expand(2, 12, 12), rtol=0, atol=1e-4)


def sketched(x, mask=None):
    tokens, directions = scaled(x, mask), Directions()
    grams = directions.update(tokens)
    count = tokens.valid.sum(-1)
    side = count if x.shape[1] < x.shape[2] else torch.full_like(count, x.shape[2])
    return effective_rank_of(
        quadrature(tokens.x, tokens.share[..., None], tokens.valid, directions.used), grams, squares(tokens), side
    )


@pytest.mark.parametrize("shape", [(1, 1100, 1300), (1, 1500, 1040)])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_sketch_of_large_arrays(shape, power):
    x = (decaying(*shape, power=power) if power else normal(*shape)).float()
    expected = exact(x)["effective_rank"]
    assert ((sketched(x) / expected - 1).abs() < SKETCH_ERROR).all()


@pytest.mark.parametrize("n", [120, 260])
def test_the_sketch_with_padding(n):
    x = decaying(2, n, 200, power=0.5).float()
    mask = torch.ones(2, n + 30, dtype=torch.bool)
    mask[:, n:] = False
    padded = torch.cat([x, torch.full((2, 30, 200), torch.nan)], 1)
    assert ((sketched(padded, mask) / exact(x)["effective_rank"] - 1).abs() < SKETCH_ERROR).all()


def test_the_sketch_of_what_has_no_rank():
    assert sketched(torch.full((1, 40, 50), torch.nan)).isnan().all()
    x = decaying(1, 40, 8).float()
    torch.testing.assert_close(sketched(x), exact(x)["effective_rank"], rtol=1e-4, atol=0)
