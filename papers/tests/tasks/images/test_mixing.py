"""Mixup and CutMix: shares, boxes and targets, against scipy and timm."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import timm_models

from oversmooth_papers.tasks.images import mixing

UNIT = st.floats(0, 1, exclude_max=True, width=32)
BOTH = (1.0, 0.8)


def drawn(uniform, alphas=BOTH, height=32, width=32):
    tables = torch.stack([mixing.beta_table(alpha) for alpha in alphas])
    return mixing.draw_mix(torch.tensor(uniform, dtype=torch.float32), tables, alphas, height, width)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 2.0, 30.0])
def test_the_table_inverts_the_beta_distribution(alpha):
    scipy = pytest.importorskip("scipy.special")
    u = torch.linspace(0, 1, 4001)[:-1]
    found = mixing.beta_quantile(u, mixing.beta_table(alpha), alpha)
    assert np.abs(found.numpy() - scipy.betaincinv(alpha, alpha, u.double().numpy())).max() < 3e-5
    assert found.diff().min() >= 0


def test_mixup_keeps_the_same_share_everywhere():
    mix = drawn([0.7, 0.3, 0.1, 0.9])  # 0.5 and above is Mixup; Beta(1, 1) is uniform
    assert mix.label.item() == pytest.approx(0.3, abs=1e-5)
    assert (mix.kept == mix.label).all()
    x = torch.rand(6, 3, 32, 32)
    torch.testing.assert_close(mix.images(x), 0.3 * x + 0.7 * x.flip(0))


@given(UNIT, UNIT, UNIT)
def test_the_box_has_the_area_that_the_labels_say(share, down, across):
    mix = drawn([0.2, share, down, across], height=32, width=24)
    assert set(mix.kept.unique().tolist()) <= {0.0, 1.0}
    assert mix.label.item() == pytest.approx(mix.kept.mean().item(), abs=1e-6)
    taken = mix.kept == 0
    rows, columns = taken.any(1), taken.any(0)
    assert torch.equal(taken, rows[:, None] & columns)  # a box
    assert all(side.int().diff().abs().sum() <= 2 for side in (rows, columns))  # and in one piece


@given(st.lists(UNIT, min_size=4, max_size=4), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.floats(0, 1))
def test_targets_sum_to_one_and_name_two_classes(uniform, labels, smoothing):
    mix = drawn(uniform)
    targets = mix.targets(torch.tensor(labels), 10, smoothing)
    assert targets.shape == (len(labels), 10)
    torch.testing.assert_close(targets.sum(1), torch.ones(len(labels)))
    assert ((targets - smoothing / 10).abs() < 1e-6).sum(1).min() >= 8
    assert targets.min() >= 0


@pytest.mark.parametrize("which", [0.1, 0.9])
def test_one_alone_is_always_that_one_and_none_leaves_all_as_it_is(which):
    for alphas, boxed in (((0.0, 0.8), True), ((0.5, 0.0), False)):
        mix = drawn([which, 0.4, 0.5, 0.5], alphas)
        assert ((mix.kept == 0) | (mix.kept == 1)).all() == boxed
    mix, x = drawn([which, 0.4, 0.5, 0.5], (0.0, 0.0)), torch.rand(4, 3, 32, 32)
    assert torch.equal(mix.images(x), x)
    assert torch.equal(mix.targets(torch.tensor([1, 2, 3, 0]), 4, 0.0), torch.eye(4)[[1, 2, 3, 0]])


def test_each_is_drawn_half_the_time_and_shares_follow_their_distribution():
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    tables = torch.stack([mixing.beta_table(alpha) for alpha in BOTH])
    mixes = [mixing.draw_mix(torch.rand(4, generator=generator), tables, BOTH, 32, 32) for _ in range(2000)]
    plain = [mix.label.item() for mix in mixes if (mix.kept == mix.label).all()]
    assert abs(len(plain) - 1000) < 90
    assert stats.kstest(plain, "uniform").pvalue > 1e-3
    assert (
        stats.kstest(mixing.beta_quantile(torch.rand(5000), tables[1], 0.8).numpy(), "beta", (0.8, 0.8)).pvalue > 1e-3
    )


@pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
@pytest.mark.parametrize("seed", range(8))
def test_batches_and_targets_are_timms(seed, monkeypatch):
    timm_models.timm()
    from timm.data import mixup as theirs

    generator = torch.Generator().manual_seed(seed)
    which, chance, down, across = uniform = torch.rand(4, generator=generator).tolist()
    mix = drawn(uniform)
    share = {True: 0.8, False: 1.0}[which < 0.5]
    share = mixing.beta_quantile(torch.tensor(chance), mixing.beta_table(share), share).item()
    places = iter([int(down * 32), int(across * 32)])
    monkeypatch.setattr(np.random, "rand", lambda: which)
    monkeypatch.setattr(np.random, "beta", lambda *_: share)
    monkeypatch.setattr(np.random, "randint", lambda *_, **__: next(places))
    x, labels = torch.rand(6, 3, 32, 32, generator=generator), torch.arange(6)
    expected = theirs.Mixup(1.0, 0.8, switch_prob=0.5, label_smoothing=0.1, num_classes=10)(x.clone(), labels)
    torch.testing.assert_close(mix.images(x), expected[0])
    torch.testing.assert_close(mix.targets(labels, 10, 0.1), expected[1])
