"""Numbers by site: over passes, batches and padding, fetched at once; and the public metrics say the same."""

import numpy as np
import pytest
import torch
from support.oracles import normal, token_metrics

from oversmooth import metrics
from oversmooth.trace import DepthMetrics
from oversmooth.trace.reducers import sites as kernel
from oversmooth.trace.reducers.base import Together, fetch
from oversmooth.trace.reducers.sites import SiteMetrics

RANKS = ("stable_rank", "sigma_ratio", "rank_one_distance", "effective_rank")


def expected(x, mask=None):
    ratio = metrics.input_convergence(x, mask=mask)
    found = {"log_hfc_lfc": ratio.log(), "cos": metrics.cosine(x, mask=mask)}
    found["abs_cos"] = metrics.cosine(x, absolute=True, mask=mask)
    return found | {name: getattr(metrics, name)(x, mask=mask) for name in RANKS}


def arrays(*shape, seed=0):
    return (normal(*shape, seed=seed) * torch.linspace(3, 0.2, shape[-1]) + 0.3).float()


@pytest.mark.parametrize("at_once", [1, 400, 10**6])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("directions", [False, True])
def test_over_passes_and_parts_of_batches(monkeypatch, at_once, masked, directions):
    monkeypatch.setitem(kernel._AT_ONCE, "cpu", at_once)
    numbers, seen = SiteMetrics(ranks=3, directions=directions), {}
    for batch in range(2):
        mask = torch.ones(4, 20, dtype=torch.bool)
        mask[batch, 9:] = not masked
        for site in ("enter", "leave"):
            x = arrays(4, 20, 14, seed=batch + 10 * len(site))
            given = x.masked_fill(~mask[..., None], torch.nan)
            numbers.update(site, given, mask if masked else None)
            given.zero_()  # blocks write over what they passed on
            seen.setdefault(site, []).append((x, mask))
    for site, found in numbers.finish().items():
        x, mask = (torch.cat(parts) for parts in zip(*seen[site], strict=True))
        assert found.count.tolist() == mask.sum(-1).tolist()
        assert (found.errors["sigma_ratio"] > 0).tolist() == [False] * 3 + [True] * 5 * directions
        assert not (found.errors["sigma_ratio"] > 1e-3).any()
        for name, values in expected(x, mask).items():
            few = 3 if name == "effective_rank" or (name in RANKS and not directions) else 8
            assert len(found.tokens[name]) == few
            torch.testing.assert_close(found.tokens[name], values[:few].double(), rtol=1e-3, atol=1e-5)
            if name in RANKS:  # of the first inputs by singular values
                torch.testing.assert_close(found.tokens[name][:3], values[:3].double(), rtol=1e-6, atol=0)


def test_exact_takes_no_shortcut():
    x = arrays(3, 30, 24)
    numbers = SiteMetrics(ranks=3, directions=True, exact=True)
    numbers.update(0, x)
    found = numbers.finish()[0]
    for name, values in expected(x).items():
        torch.testing.assert_close(found.tokens[name], values.double(), rtol=1e-5, atol=1e-6)
    assert not any(error.any() for error in found.errors.values())


def test_what_is_sketched_says_so():
    numbers = SiteMetrics(ranks=1)
    x = torch.stack([arrays(1100, 1050, seed=seed) for seed in range(2)])
    numbers.update(0, x)
    found = numbers.finish()[0]
    assert found.errors["effective_rank"].tolist() == [0.05]
    s = torch.linalg.svdvals(x.double())
    exact = metrics.ranks_of(s)
    assert float(found.tokens["effective_rank"]) == pytest.approx(float(exact["effective_rank"][0]), rel=0.05)
    off = torch.stack([(found.tokens[name] / exact[name][:1] - 1).abs() for name in RANKS[:3]]).amax(0)
    assert ((off < 1e-3) | (found.errors["sigma_ratio"] > 1e-3)).all()
    assert [len(found.tokens[name]) for name in RANKS] == [1, 1, 1, 1]


@pytest.mark.parametrize(("directions", "known"), [(False, 5), (True, 6)])
def test_inputs_that_are_sketched_and_inputs_that_are_not_stay_in_order(monkeypatch, directions, known):
    """Texts of several lengths: each rank and its error are those of its own input."""
    monkeypatch.setattr(kernel, "EXACT_RANKS", 16)
    monkeypatch.setitem(kernel._AT_ONCE, "cpu", 1)
    numbers = SiteMetrics(ranks=5, directions=directions)
    given = [arrays(1, 12, 24), arrays(2, 20, 24, seed=1), arrays(3, 14, 24, seed=2)]
    for x in given:
        numbers.update(0, x)
    found = numbers.finish()[0]
    truth = {name: torch.cat([getattr(metrics, name)(x) for x in given]).double() for name in RANKS}
    for name in RANKS[:3]:
        torch.testing.assert_close(found.tokens[name], truth[name][:known], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.tokens["effective_rank"], truth["effective_rank"][:5], rtol=0.05, atol=0)
    assert found.errors["effective_rank"].tolist() == pytest.approx([0, 0.05, 0.05, 0, 0])
    assert (found.errors["sigma_ratio"] > 0).tolist() == [False, True, True, False, False, True][:known]


def test_massive_tokens_by_input_and_position():
    x = arrays(3, 40, 8) + 3
    x[1, 7] *= 100
    x[2, :18] *= 50
    numbers = SiteMetrics()
    numbers.update("a", x[:1])
    numbers.update("a", x[1:])
    found = numbers.finish()["a"]
    assert found.massive_count.tolist() == [0, 1, 18]
    assert (found.massive[0][0], found.massive[0][1]) == (1, 7)
    norms = x[1].norm(dim=-1)
    assert found.massive[0][2] == pytest.approx(float(norms[7] / norms.sort().values[19]), rel=1e-5)
    assert [one for one, _, _ in found.massive[1:]] == [2] * 16  # the longest are listed, all are counted
    rest = torch.ones(40, dtype=torch.bool)
    rest[7] = False
    for name in ("log_hfc_lfc", "cos", "abs_cos"):
        value = expected(x[1][rest])[name]
        assert float(found.without_massive[name][1]) == pytest.approx(float(value), rel=1e-4)
        assert found.without_massive[name][0] == found.tokens[name][0]


def test_inputs_with_fewer_than_two_valid_tokens_have_no_number():
    mask = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]).bool()
    numbers = SiteMetrics()
    numbers.update(0, arrays(3, 4, 5), mask)
    found = numbers.finish()[0]
    for name in ("log_hfc", "log_hfc_lfc", "cos", "abs_cos"):
        assert found.tokens[name].isnan().tolist() == [True, True, False]


def test_directions_begin_anew_with_each_pass(monkeypatch):
    """Another batch of the same shape has nothing to do with the one before."""
    monkeypatch.setattr(kernel, "EXACT_RANKS", 16)
    x, y = arrays(2, 40, 30), arrays(2, 40, 30, seed=5).flip(-1)
    both, alone = SiteMetrics(ranks=4), SiteMetrics(ranks=2)
    for numbers, given in ((both, (x, y)), (alone, (y,))):
        for one in given:
            numbers.update("a", one)
            numbers.update("b", one + 1)
    for site in ("a", "b"):
        for name in RANKS[:3]:
            assert torch.equal(both.finish()[site].tokens[name][2:], alone.finish()[site].tokens[name])


def test_one_copy_by_dtype_fetches_everything(monkeypatch):
    tensors = [torch.randn(3, 2), torch.arange(4), torch.tensor(1.5), torch.randn(0, 2), torch.ones(2).double()]
    copies, cpu = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: copies.append(x.dtype) or cpu(x))
    for found, given in zip(fetch(tensors), tensors, strict=True):
        assert torch.equal(found, given)
        assert found.dtype == given.dtype
    assert sorted(copies, key=str) == [torch.float32, torch.float64, torch.int64]
    assert fetch([]) == []


def by_hand(x, mask=None):
    rows = [token_metrics(tokens if mask is None else tokens[mask[i]]) for i, tokens in enumerate(x)]
    return {name: np.array([row[name] for row in rows]) for name in ("effective_rank", "stable_rank", "sigma_ratio")}


def test_arrays_of_several_shapes_and_masks():
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    samples = [
        (torch.randn(2, 4, 6), None),
        (torch.randn(2, 4, 6), mask),
        (torch.randn(2, 5, 3), None),
        (torch.randn(2, 4, 6), None),
        (torch.randn(2, 4, 6), mask.flip(0)),
        (torch.randn(2, 4, 6).double(), None),
    ]
    together, rows = Together(kernel.exact_ranks, {"cpu": 10**6}), [{} for _ in samples]
    for row, (x, counted) in zip(rows, samples, strict=True):
        together.add(row, x, counted)
    assert not any(rows)  # until all are there
    together.finish()
    for (x, counted), ranks in zip(samples, rows, strict=True):
        for name, values in by_hand(x, counted).items():
            np.testing.assert_allclose(ranks[name].numpy(), values, rtol=1e-6)


def test_ranks_by_depth_are_sketched_above_a_thousand_tokens_and_features():
    """As a monitor takes them of every snapshot, where all singular values would take longer than the pass."""
    torch.manual_seed(0)
    decay = torch.arange(1, 1041).float() ** -0.7
    arrays = [torch.randn(2, 1040, 1040) * decay @ torch.randn(1040, 1040) for _ in range(2)]
    sketched, exact = DepthMetrics(ranks=1), DepthMetrics(ranks=1, exact=True)
    for depths in (sketched, exact):
        for depth, x in enumerate(arrays):
            depths.numbers.update(depth, x)
        depths.finish()
    for depth, x in enumerate(arrays):
        truth, first = by_hand(x[:1]), sketched.by_input(depth)
        assert len(first["effective_rank"]) == len(exact.by_input(depth)["effective_rank"]) == 1
        for name, rel in (("effective_rank", 0.05), ("stable_rank", 1e-3), ("sigma_ratio", 1e-3)):
            np.testing.assert_allclose(first[name].numpy(), truth[name], rtol=rel)
            np.testing.assert_allclose(exact.by_input(depth)[name].numpy(), truth[name], rtol=1e-6)
        assert float(abs(first["effective_rank"] - exact.by_input(depth)["effective_rank"])) > 0  # it was sketched


@pytest.mark.parametrize("room", [0, 700, 10**6])
def test_what_waits_is_what_is_computed_at_once(monkeypatch, room):
    """Over several passes, whatever waits, and though blocks write over what they passed on."""
    monkeypatch.setitem(kernel._WAITING, "cpu", room)
    torch.manual_seed(0)
    passes = [[torch.randn(3, 4, 6) for _ in range(5)] for _ in range(2)]
    seen = DepthMetrics(ranks=4)
    for one in passes:
        for depth, x in enumerate(one):
            given = x.clone()
            seen.numbers.update(depth, given)
            given.zero_()
    seen.finish()
    means = seen.means(["effective_rank", "stable_rank", "cos"])
    for depth in range(5):
        first = by_hand(torch.cat([one[depth] for one in passes])[:4])
        assert means["effective_rank"][depth] == pytest.approx(first["effective_rank"].mean(), rel=1e-6)
        np.testing.assert_allclose(seen.by_input(depth)["stable_rank"].numpy(), first["stable_rank"], rtol=1e-6)
