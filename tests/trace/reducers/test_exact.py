"""Ranks of many depths at once are those of each by itself, by numpy's singular values."""

import numpy as np
import pytest
import torch

from oversmooth.trace import DepthMetrics
from oversmooth.trace.reducers import exact
from oversmooth.trace.reducers.exact import ranks_together


def by_hand(x, mask=None):
    means = {"effective_rank": [], "stable_rank": []}
    for index, tokens in enumerate(x.double().numpy()):
        kept = tokens if mask is None else tokens[mask[index].numpy().astype(bool)]
        s = np.linalg.svd(kept, compute_uv=False)
        share = s / s.sum()
        means["effective_rank"].append(np.exp(-(share * np.log(share)).sum()))
        means["stable_rank"].append((s**2).sum() / s[0] ** 2)
    return {name: np.array(values) for name, values in means.items()}


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
    for (x, counted), ranks in zip(samples, ranks_together(samples), strict=True):
        for name, values in by_hand(x, counted).items():
            np.testing.assert_allclose(ranks[name].numpy(), values, rtol=1e-6)


@pytest.mark.parametrize("room", [0, 700, 10**6])
def test_what_waits_is_what_is_computed_at_once(monkeypatch, room):
    """Over several passes, whatever waits, and though blocks write over what they passed on."""
    monkeypatch.setitem(exact._WAITING, "cpu", room)
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
