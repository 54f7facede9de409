"""A run that takes over what another one built gives what it gives alone, bit for bit."""

from dataclasses import replace

import pytest
import torch
from support import language_example, segmentation_example
from support.nightly import nightly, some
from support.runs import train_task
from support.train_example import RECIPE, splits

from oversmooth.steering import steering_of
from oversmooth_papers.engine.loop import Reuse, WatchSettings
from oversmooth_papers.engine.smoothing import MonitorWatcher, SmoothingProbe
from oversmooth_papers.tasks.images.build import load_vit
from oversmooth_papers.tasks.images.task import ImagesTask
from oversmooth_papers.tasks.language.task import LanguageTask
from oversmooth_papers.tasks.segmentation.task import SegmentationTask

CASES = {
    "images": (ImagesTask, RECIPE, splits, SmoothingProbe),
    "images, NeuTRENO": (ImagesTask, replace(RECIPE, variant="neutreno:strength=0.4"), splits, SmoothingProbe),
    "images, FeatScale, monitored": (ImagesTask, replace(RECIPE, variant="featscale"), splits, MonitorWatcher),
    "language": (LanguageTask, language_example.RECIPE, language_example.counting, SmoothingProbe),
    "segmentation": (SegmentationTask, segmentation_example.RECIPE, segmentation_example.splits, SmoothingProbe),
}


def outcome(result):
    losses = [row["loss"] for row in result.epochs]
    weights = {name: value.clone() for name, value in result.model.state_dict().items()}
    return weights, (losses, result.scores, result.smoothing)


def assert_same(ours, theirs):
    assert ours[1] == theirs[1]
    assert all(torch.equal(ours[0][name], value) for name, value in theirs[0].items())


@pytest.mark.parametrize("name", some(CASES, 3))
def test_a_second_seed_is_what_it_is_alone(name):
    task, recipe, data, watcher = CASES[name]
    data, reuse = data(), Reuse()
    settings = {"device": "cpu", "watch": WatchSettings(monitor=3, watcher=watcher)}
    tasks = [task(replace(recipe, epochs=1, seed=seed), data) for seed in (0, 5, 0)]
    together = [outcome(train_task(one, reuse=reuse, **settings)) for one in tasks]
    assert reuse.reused == 2
    alone = [outcome(train_task(one, **settings)) for one in tasks[:2]]
    for ours, theirs in zip(together, (*alone, alone[0]), strict=True):
        assert_same(ours, theirs)
    assert any(not torch.equal(value, alone[1][0][name]) for name, value in alone[0][0].items())


STRENGTHS = {
    "NeuTRENO": [f"neutreno:strength={s}" for s in (0.4, 1.5)],
    "two methods": [f"neutreno:strength={s} + featscale" for s in (0.6, 0.2)],
    "both with a strength": [f"centred:strength={a} + valueresidual:strength={b}" for a, b in ((0.3, 0.5), (0.7, 0.2))],
}


@pytest.mark.parametrize("name", some(STRENGTHS, 3))
@pytest.mark.parametrize("ramp", [0.0, 0.5])
def test_another_strength_is_what_it_is_alone(name, ramp, tmp_path):
    """Figures, weights and the file that is written, which says the strength."""
    data, reuse = splits(), Reuse()
    for number, variant in enumerate(STRENGTHS[name]):
        task = ImagesTask(replace(RECIPE, variant=variant, epochs=1, seed=number, ramp=ramp), data)
        settings = {"device": "cpu", "watch": WatchSettings(monitor=3)}
        shared = outcome(train_task(task, folder=tmp_path / str(number), reuse=reuse, **settings))
        assert_same(shared, outcome(train_task(task, **settings)))
        written, _ = load_vit(tmp_path / str(number) / "model.safetensors")
        assert steering_of(written).methods == task.recipe.methods()
    assert reuse.reused == len(STRENGTHS[name]) - 1


def test_what_differs_in_more_is_built_anew():
    data, reuse = splits(), Reuse()
    changed = [
        RECIPE,
        replace(RECIPE, lr=1e-3),
        replace(RECIPE, variant="neutreno:strength=0.4", ramp=0.5),
        replace(RECIPE, variant="neutreno:strength=0.4", ramp=0.25),
        replace(RECIPE, variant="neutreno:strength=0.4"),
        replace(RECIPE, variant="neutreno:strength=0"),  # nothing is computed there
        replace(RECIPE, variant="neutreno:strength=0.5"),
        replace(RECIPE, variant="neutreno:strength=0.5,learned"),
        replace(RECIPE, variant="neutreno:strength=0.4,learned"),
        replace(RECIPE, variant="valueresidual:strength=0.4"),
        replace(RECIPE, variant="sharpen"),
        replace(RECIPE, variant="sharpen", seed=1),  # its start is drawn with the seed, and is one of its settings
    ]
    tasks = [ImagesTask(replace(recipe, epochs=1, warmup=0), data) for recipe in changed]
    tasks.append(ImagesTask(tasks[-1].recipe, splits()))  # other data
    for task in tasks:
        train_task(task, reuse=reuse, minutes=0)  # one step
    train_task(tasks[-1], reuse=reuse, minutes=0, watch=WatchSettings(watcher=MonitorWatcher))
    assert reuse.reused == 0


@pytest.mark.parametrize("ramp", [0.0, 0.5])
def test_after_a_run_that_stopped_and_with_a_checkpoint(tmp_path, ramp):
    """The next run begins where its own checkpoint is, also after one that stopped while its strengths rose."""
    data, reuse = splits(), Reuse()
    own, other = (
        ImagesTask(replace(RECIPE, variant=f"neutreno:strength={s}", ramp=ramp, seed=seed, epochs=1), data)
        for seed, s in ((0, 0.6), (1, 0.9))
    )
    whole = outcome(train_task(own))
    train_task(other, folder=tmp_path / "other", minutes=0, reuse=reuse)
    train_task(own, folder=tmp_path / "own", minutes=0)
    result = train_task(own, folder=tmp_path / "own", resume=True, reuse=reuse)
    assert reuse.reused == 1
    assert all(torch.equal(value, whole[0][name]) for name, value in result.model.state_dict().items())


@nightly
@pytest.mark.filterwarnings("ignore")  # of torch, about gradients it looks for itself
@pytest.mark.parametrize("variants", [("plain", "plain"), ("neutreno:strength=0.4", "neutreno:strength=0.9")])
def test_nothing_is_compiled_again(variants):
    from torch._dynamo.utils import counters

    data, reuse = splits(), Reuse()
    recipes = [replace(RECIPE, variant=variant, seed=seed, epochs=1) for seed, variant in enumerate(variants)]
    task = [ImagesTask(recipe, data) for recipe in recipes]
    train_task(task[0], compiled=True, reuse=reuse)
    before = dict(counters["stats"])
    assert before["unique_graphs"] > 0
    train_task(task[1], compiled=True, reuse=reuse)
    assert dict(counters["stats"]) == before
