"""Whole runs of every task: stopped after every step they resume bit for bit."""

from dataclasses import replace

import pytest
import torch
from support import imagenet_example, language_example, segmentation_example, timm_models, train_example
from support.nightly import nightly
from support.runs import EVERY_EPOCH, assert_same_runs, train_task

from oversmooth_papers.engine import loop, smoothing
from oversmooth_papers.engine.saved_model import notes_of
from oversmooth_papers.engine.smoothing import MonitorWatcher
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.registry import load_trained, task_of

needs_timm = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
WITH_MONITOR = replace(EVERY_EPOCH, watcher=MonitorWatcher)


def images(**changes):
    return lambda _folder: task_of(replace(train_example.RECIPE, epochs=1, **changes), train_example.splits())


def language(recipe):
    return lambda _folder: language_example.task_of(recipe)


def segmentation(**changes):
    recipe = replace(segmentation_example.RECIPE, **changes)
    return lambda _folder: task_of(recipe, segmentation_example.splits())


def imagenet(workers):
    """Reads its files each time."""

    def task(folder):
        home = folder / "pictures"
        data = imagenet_example.splits(home if home.is_dir() else imagenet_example.write_folders(home))
        return ImagenetTask(replace(imagenet_example.RECIPE, epochs=2), data, workers)

    return task


SHARPENED, RISING = images(variant="sharpen"), images(variant="neutreno:strength=0.6", ramp=0.5)
CAUSAL, MASKED = language(language_example.RECIPE), language(language_example.masked_recipe())
STEERED = language(replace(language_example.RECIPE, variant="neutreno:strength=0.4"))
SEGMENTED, BOUND = segmentation(), segmentation(variant="sharpen")


@pytest.mark.parametrize(
    ("whole", "cut", "score", "watch"),
    [
        pytest.param(SHARPENED, SHARPENED, "accuracy", WITH_MONITOR, id="images, sharpened, with a monitor"),
        pytest.param(RISING, RISING, "accuracy", EVERY_EPOCH, id="images, rising strengths"),
        pytest.param(CAUSAL, CAUSAL, "test_perplexity", EVERY_EPOCH, id="causal"),
        pytest.param(MASKED, MASKED, "test_perplexity", EVERY_EPOCH, id="masked"),
        pytest.param(STEERED, STEERED, "test_perplexity", EVERY_EPOCH, id="causal, steered"),
        pytest.param(SEGMENTED, SEGMENTED, "miou", EVERY_EPOCH, id="segmentation"),
        pytest.param(BOUND, BOUND, "miou", EVERY_EPOCH, id="segmentation, sharpened", marks=nightly),
        pytest.param(imagenet(0), imagenet(2), "accuracy_ema", EVERY_EPOCH, id="imagenet", marks=needs_timm),
    ],
)
def test_a_run_out_of_time_resumes_bit_for_bit(tmp_path, monkeypatch, whole, cut, score, watch):
    """It stops after every single step, inside epochs too. Of ImageNet's runs one has no workers, the other two."""
    monkeypatch.setattr(smoothing, "RARELY", 2)
    result = train_task(whole(tmp_path), folder=tmp_path / "whole", watch=watch)
    assert result.finished
    assert result.scores == {name: result.epochs[-1][name] for name in result.scores}
    pieces, again = 0, None
    while again is None or not again.finished:
        again = train_task(cut(tmp_path), folder=tmp_path / "cut", resume=True, minutes=0, watch=watch)
        pieces += 1
        assert again.finished or (again.why, again.step, again.scores) == ("out of time", pieces, {})
    assert pieces == result.steps
    assert [machine["from_step"] for machine in again.machines] == list(range(pieces))
    assert again.scores == result.scores
    assert_same_runs(tmp_path / "whole", tmp_path / "cut")
    model, recipe = load_trained(tmp_path / "cut" / loop.MODEL)
    assert recipe == result.recipe
    assert notes_of(tmp_path / "cut" / loop.MODEL)[score] == result.scores[score]
    for (name, ours), theirs in zip(model.named_parameters(), result.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.01, atol=1e-3, msg=name)  # bf16 in the file
