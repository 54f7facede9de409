"""Whole runs of every task: stopped after every step they resume bit for bit, and two processes compute the gradients
of one.
"""

from dataclasses import replace

import pytest
import torch
from support import imagenet_example, language_example, segmentation_example, timm_models, train_example, two_processes
from support.nightly import nightly
from support.runs import EVERY_EPOCH, assert_same_runs, rows, train_task

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
        return ImagenetTask(imagenet_example.RECIPE, data, workers)

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


_WORK = """
from dataclasses import replace
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.registry import task_of
from support import imagenet_example, language_example, segmentation_example, timm_models
from support.nightly import NIGHTLY
from support.runs import EVERY_EPOCH

def tasks():
    for name, recipe in (("causal", language_example.RECIPE), ("masked", language_example.masked_recipe())):
        shape = replace(recipe.shape, dropout=0.0)
        yield name, language_example.task_of(replace(recipe, variant="neutreno:strength=0.4", shape=shape))
    yield "segmentation", task_of(segmentation_example.RECIPE, segmentation_example.splits())
    if timm_models.available():
        pictures = imagenet_example.splits(imagenet_example.write_folders(folder / "pictures"))
        yield "imagenet", ImagenetTask(replace(imagenet_example.RECIPE, drop_path=0.0), pictures, 1)

def work(ranks, name):
    for kind, task in tasks() if NIGHTLY else ():  # their gradients are compared at night
        step = Step(task, task.model(), cpu, ranks)
        kept, update = [], step._update
        def keep(bad):
            kept.append({name: p.grad.clone() for name, p in step.named.items()})
            update(bad)
        step._update = keep
        step.begin_epoch()
        for _ in range(3):
            step.run()
        torch.save(kept, folder / f"{kind}-{name}.pt")
    if ranks.world == 2:
        for which in ("whole", "cut"):
            settings = dict(resume=True, minutes=0) if which == "cut" else {}
            watch = WatchSettings(evaluate=1, monitor=3, save=0)
            while not language_example.train(
                language_example.RECIPE, folder=folder / which, watch=watch, **settings
            ).finished:
                pass
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return two_processes.run(_WORK, lambda: tmp_path_factory.mktemp("two"), "oversmooth_papers.engine.ranks")


@nightly
@pytest.mark.parametrize("kind", ["causal", "masked", "segmentation", pytest.param("imagenet", marks=needs_timm)])
def test_two_processes_give_the_gradients_of_one(both, kind):
    """A masked batch or one of crops has another number of targets in each part, and counts each once."""
    files = (both / f"{kind}-{name}.pt" for name in ("one", "two0", "two1"))
    one, first, second = (torch.load(file, weights_only=True) for file in files)
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, rtol=1e-3, atol=1e-5)
            assert torch.equal(first[step][name], second[step][name])


def test_a_run_of_two_that_is_cut_ends_bit_for_bit(both):
    """With dropout, which each process draws for itself."""
    assert_same_runs(both / "whole", both / "cut")
    assert len(rows(both / "whole" / "log.jsonl")) == 3
