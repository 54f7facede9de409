"""Depths ranked: errors against loops, the probe against refitting, and models in which the best depth is known."""

import numpy as np
import pytest
import torch
from scipy import stats
from support.oracles import normal
from torch import nn

import oversmooth
from oversmooth import InputError
from oversmooth.diagnosis.ranking import _labels, _ranked, _t, jackknife, probe, spearman
from oversmooth.metrics import effective_rank
from oversmooth.trace.reducers.vectors import TOKENS, DepthVectors


def depth_of(pooled):
    inputs = len(pooled)
    tokens = pooled[:, None] + 0.1 * normal(inputs, TOKENS, pooled.shape[1], seed=7)
    entropy, curvature = (normal(inputs, seed=seed).abs() for seed in (8, 9))
    return DepthVectors(pooled, tokens, entropy, curvature)


def test_the_jackknife_leaves_out_one_group_at_a_time():
    depths = [depth_of(normal(60, 3, seed=i) + i) for i in range(2)]
    found = _ranked(depths, None, 0, sequences=True)
    assert found.groups == 20
    group = torch.randperm(60, generator=torch.Generator().manual_seed(0)) % 20
    for depth, one in enumerate(depths):
        left = [float(effective_rank(one.pooled[group != g])) for g in range(20)]
        error = np.sqrt(19 / 20 * np.sum((left - np.mean(left)) ** 2))
        column = found.measures["rankme"]
        assert column.values[depth] == pytest.approx(float(effective_rank(one.pooled)), rel=1e-6)
        assert column.errors[depth] == pytest.approx(error, rel=1e-3)
    # Of a mean it is the standard error of the mean.
    values = normal(200)
    left = torch.stack([values[torch.arange(200) != i].mean() for i in range(200)])
    assert float(jackknife(left)) == pytest.approx(float(values.std() / 200**0.5), rel=1e-9)
    assert _t(19) == pytest.approx(stats.t.ppf(0.975, 19), rel=1e-3)


def test_the_interval_of_rankme_contains_it():
    inside = 0
    truth = np.mean([float(effective_rank(normal(80, 8, seed=1000 + i))) for i in range(100)])
    for seed in range(60):
        column = _ranked([depth_of(normal(80, 8, seed=seed))], None, seed, sequences=False).measures["rankme"]
        inside += abs(column.values[0] - truth) <= _t(19) * column.errors[0]
    assert inside >= 52  # 57 expected; fewer than 52 of 60 have a chance below 1%


def test_the_probe_leaves_out_each_input_in_turn():
    classes = torch.arange(40) % 3
    x = normal(40, 5) + 1.5 * nn.functional.one_hot(classes, 5)
    centred = (x - x.mean(0)).numpy()
    y = np.eye(3)[classes.numpy()]
    scale = (np.linalg.svd(centred, compute_uv=False) ** 2).mean()
    best = None
    for power in range(-5, 3):
        guesses = []
        for i in range(40):
            rest = np.arange(40) != i
            a, b = x.numpy()[rest], y[rest]
            mean_a, mean_b = a.mean(0), b.mean(0)
            gram = (a - mean_a).T @ (a - mean_a) + 10.0**power * scale * np.eye(5)
            weights = np.linalg.solve(gram, (a - mean_a).T @ (b - mean_b))
            guesses.append(mean_b + (x.numpy()[i] - mean_a) @ weights)
        error = ((np.array(guesses) - y) ** 2).sum()
        if best is None or error < best[0]:
            best = error, np.array(guesses).argmax(1) == classes.numpy()
    assert probe(x, classes).tolist() == best[1].tolist()
    assert 0.4 < best[1].mean() < 1.0


def test_rank_correlation_is_scipys():
    x, y = normal(30).round(decimals=1), normal(30, seed=1)
    assert float(spearman(x, y)) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_labels_find_the_depth_that_was_made_the_best():
    classes = torch.arange(60) % 2
    signal = nn.functional.one_hot(classes, 4) * 3.0
    depths = [depth_of(normal(60, 4, seed=i) + signal * strength) for i, strength in enumerate((0.0, 1.0, 0.2))]
    found = _ranked(depths, _labels(classes, 60), 0, sequences=True)
    probed = found.measures["probe"]
    assert probed.best == 1
    assert 0 not in probed.as_good
    assert set(found.agreement) == {"anisotropy_tokens", "anisotropy", "rankme", "token_entropy", "curvature"}
    for name, one in found.agreement.items():
        assert one.loss == pytest.approx(probed.values[1] - probed.values[found.measures[name].best], abs=1e-3)
    assert any("depth 1 is best" in sentence for sentence in found.verdict)


def test_a_model_and_pairs_of_inputs():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    inputs = [torch.randn(10, 6, 8) for _ in range(4)]
    labels = torch.rand(20)
    found = oversmooth.layers(model, inputs, labels)
    assert found.depths == ["embedding", "layers.0", "layers.1"]
    assert found.inputs == 40
    pooled = torch.cat(inputs).mean(1)
    cosines = torch.cosine_similarity(pooled[::2], pooled[1::2], dim=-1)
    expected = stats.spearmanr(cosines, labels).statistic
    assert found.measures["similarity"].values[0] == pytest.approx(expected, abs=1e-6)
    assert "curvature" not in found.measures  # of no sequence
    assert found.cka[1][1] == pytest.approx(1.0)
    assert found.to_dict()["measures"]["anisotropy"]["values"] == found.measures["anisotropy"].values
    few = oversmooth.layers(model, torch.randn(16, 6, 8))
    assert few.remarks == ["RankMe is left out: N too small (16 inputs; it needs 4 per feature, 32)"]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.arange(7), "for 40 inputs"),
        (torch.ones(40), "all labels are equal"),
        (torch.rand(40), "give classes"),
        (torch.full((20,), torch.nan), "NaN"),
    ],
)
def test_labels_that_mean_nothing_are_refused(labels, said):
    with pytest.raises(InputError, match=said):
        _labels(labels, 40)


def test_too_few_inputs_are_refused():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    with pytest.raises(InputError, match="there are 3 inputs; give at least 8"):
        oversmooth.layers(model, torch.randn(3, 6, 8))
