"""Whole runs of segmentation: what they write, and how they go on when stopped."""

import json
from dataclasses import replace

import pytest
import torch
from support.nightly import some
from support.segmentation_example import RECIPE, splits, train

from oversmooth.steering import steering_of
from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.saved_model import load_model, notes_of
from oversmooth_papers.tasks.segmentation.model import plain_model_of

EVERY_EPOCH = WatchSettings(evaluate=1, monitor=3, save=0)


def arrays_of(folder):
    return read_file(folder / loop.MODEL)[0]


def lines(path):
    """Of a log, without what a clock says."""
    return [
        {name: value for name, value in json.loads(line).items() if name not in ("seconds", "images_per_s")}
        for line in path.read_text().splitlines()
    ]


def assert_same(one, other):
    ours, theirs = arrays_of(one), arrays_of(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    for name in ("log.jsonl", "smoothing.jsonl"):
        assert lines(one / name) == lines(other / name)


@pytest.mark.parametrize("variant", some(["neutreno:strength=0.6", "sharpen"], 2))
def test_a_run_out_of_time_goes_on_bit_for_bit(tmp_path, variant):
    """It stops after every single step, inside epochs too."""
    recipe = replace(RECIPE, variant=variant)
    whole = train(recipe, splits(), device="cpu", folder=tmp_path / "whole", watch=EVERY_EPOCH)
    assert whole.finished
    assert whole.step == whole.steps == 12
    assert set(whole.epochs[0]) >= {"loss", "lr", "miou_val", "pixel_accuracy_val", "images_per_s"}
    assert whole.scores == {name: whole.epochs[-1][name] for name in whole.scores}
    pieces, result = 0, None
    while result is None or not result.finished:
        result = train(
            recipe, splits(), device="cpu", folder=tmp_path / "cut", resume=True, minutes=0, watch=EVERY_EPOCH
        )
        pieces += 1
    assert pieces == 12
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert result.scores == whole.scores


def test_a_finished_run_leaves_a_model_that_comes_back(tmp_path):
    result = train(replace(RECIPE, epochs=1), splits(), device="cpu", folder=tmp_path)
    model, recipe = load_model(tmp_path / loop.MODEL, plain_model_of)
    assert recipe == result.recipe
    assert steering_of(model.encoder) is not None
    assert steering_of(model.decoder) is not None
    x = torch.randn(2, 3, 16, 16)
    result.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), result.model(x), rtol=0.05, atol=0.1)  # bf16 weights
    assert notes_of(tmp_path / loop.MODEL)["miou"] == result.scores["miou"]
    again = train(replace(RECIPE, epochs=1), splits(), device="cpu", folder=tmp_path, resume=True)
    assert again.scores == result.scores
    assert steering_of(again.model.decoder) is not None
