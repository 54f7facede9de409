"""Our own trainer with the monitor that everybody has: the training is as without, and the history as everywhere."""

import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from support import language_example, segmentation_example
from support.nightly import some
from support.runs import train_task
from support.train_example import RECIPE, splits
from support.watched import same

import oversmooth
from oversmooth.monitor import MonitorWarning, weights
from oversmooth.monitor.names import LABELS, TOKENS
from oversmooth.monitor.probe import Probe
from oversmooth_papers.engine import logs, smoothing
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.smoothing import MonitorWatcher, SmoothingProbe
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.images.task import ImagesTask
from oversmooth_papers.tasks.segmentation.task import SegmentationTask

CPU = torch.device("cpu")
NEVER, ALWAYS = WatchSettings(monitor=0, evaluate=0), WatchSettings(monitor=1, evaluate=0, watcher=MonitorWatcher)
SPECTRA = {"negative_share", "rho_smooth", "asymmetry"}
RARE = {*SPECTRA, "smoothing_share", "sink_rate", "sink_attention", "change_attention", "change_mlp"}


DATA = splits()


def images(**changes):
    return ImagesTask(replace(RECIPE, epochs=1, **changes), DATA)


def segmentation(**changes):
    return SegmentationTask(replace(segmentation_example.RECIPE, epochs=2, **changes), segmentation_example.splits())


TASKS = {
    "images, sharpened": (lambda: images(variant="sharpen"), {"room", "verified"}),
    "images": (images, set()),
    "images, NeuTRENO": (lambda: images(variant="neutreno:strength=0.4"), {"strength"}),
    "language, with dropout": (lambda: language_example.task_of(language_example.RECIPE), set()),
    "segmentation": (segmentation, {"strength"}),  # NeuTRENO
    "segmentation, steered in the decoder": (lambda: segmentation(steer="decoder"), set()),
}


@pytest.fixture
def often(monkeypatch):
    """Looks that see everything, a few steps apart."""
    monkeypatch.setattr(smoothing, "RARELY", 3)


def outcome(result):
    return [row["loss"] for row in result.epochs], result.smoothing


@pytest.mark.parametrize("name", some(TASKS, 3))
def test_bit_for_bit(name):
    make, steered = TASKS[name]
    plain = train_task(make(), watch=NEVER)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        seen = train_task(make(), watch=ALWAYS)
    assert not [one for one in said if one.category is MonitorWarning]
    assert torch.equal(torch.get_rng_state(), before)
    assert same(plain.model, seen.model)
    assert outcome(plain)[0] == outcome(seen)[0]
    assert [row["step"] for row in seen.smoothing] == list(range(1, seen.steps + 1))
    rare = [row["step"] for row in seen.smoothing if row.keys() >= SPECTRA]
    assert rare == [step for step in (1, 11) if step <= seen.steps]
    blocks = len(make().probe(seen.model, CPU).blocks)
    for row in seen.smoothing:
        always, sometimes = {*steered} & {"strength"}, {*steered, *RARE}
        assert row.keys() == {"step", *TOKENS, *always, *(sometimes if row["step"] in rare else ())}
        assert row.keys() - {"step"} <= LABELS.keys()
        for metric in row.keys() - {"step", "verified"}:
            assert len(row[metric]) == blocks + (metric in TOKENS)
            assert all(value is None or math.isfinite(value) for value in row[metric])


def test_a_row_is_that_of_a_monitor_of_ones_own():
    task = images(variant="smooth")
    result = train_task(task, watch=ALWAYS)
    probe = task.probe(result.model, CPU)
    monitor = oversmooth.Monitor(result.model, probe.inputs, tokens=TOKENS, parts=1, spectra=1, dominance=1)
    row = monitor.snapshot(result.steps)
    last = result.smoothing[-1]
    assert result.smoothing[0]["verified"] == 1.0
    assert last == {name: row[name] for name in last}


def test_tokens_are_those_of_the_looks_that_cost_less():
    for task in (images(), segmentation()):
        model = task.model()
        cheap, whole = (maker(task, model, CPU, 1).snapshot(1) for maker in (SmoothingProbe, MonitorWatcher))
        for metric in ("hfc_lfc", "cos", "abs_cos"):
            assert whole[metric] == pytest.approx(cheap[metric], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("variant", ["sharpen", "neutreno:strength=0.4", "featscale"])
def test_every_tensor_stays_where_it_is(variant):
    """A CUDA graph of the step knows weights and buffers by their address."""
    task = images(variant=variant)
    model = task.model()

    def tensors():
        named = [*model.named_parameters(), *model.named_buffers()]
        return {name: (id(value), value.data_ptr()) for name, value in named}

    watcher = MonitorWatcher(task, model, CPU, 1)
    before, values = tensors(), {name: value.clone() for name, value in model.state_dict().items()}
    assert watcher.snapshot(1) is not None
    assert tensors() == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not watcher.monitor.failures


@pytest.mark.usefixtures("often")
def test_what_is_due_is_decided_by_the_step():
    """A run that goes back to a checkpoint looks again."""
    task = images()
    watcher = MonitorWatcher(task, task.model(), CPU, 2)
    seen = {step: watcher.snapshot(step) for step in (1, 2, 4, 6, 8)}
    assert [step for step, row in seen.items() if row.keys() >= SPECTRA] == [1, 6]
    assert {step: watcher.snapshot(step) for step in (6, 2, 1, 8, 4)} == seen
    assert len(watcher.monitor.history) == 1  # the trainer keeps them


@pytest.mark.usefixtures("often")
def test_a_run_that_goes_on_after_an_error_with_the_log_ahead_has_one_history(tmp_path, monkeypatch):
    task, watch = images(variant="sharpen"), replace(ALWAYS, monitor=2)
    whole = train_task(task, folder=tmp_path / "whole", watch=watch)
    cut = {"device": "cpu", "folder": tmp_path / "cut", "resume": True, "watch": watch}
    step = Step.run

    def dies(self):
        step(self)
        if self.done == 7:
            raise ValueError("killed")

    monkeypatch.setattr(Step, "run", dies)
    with pytest.raises(ValueError, match="killed"):
        train_task(task, **cut)
    monkeypatch.setattr(Step, "run", step)
    assert oversmooth.monitor.History.load(tmp_path / "cut").steps == [1, 2, 4, 6]  # the checkpoint is of step 1
    result = train_task(task, **cut)
    assert same(whole.model, result.model)
    assert outcome(whole) == outcome(result)
    files = [(tmp_path / run / logs.SMOOTHING).read_text() for run in ("whole", "cut")]
    assert files[0] == files[1]
    assert [json.loads(line)["step"] for line in files[0].splitlines()] == [1, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("where", "what", "left"), [(Probe, "tokens", set()), (weights, "spectra", {"cos", "smoothing_share"})]
)
def test_a_snapshot_that_fails_warns_once_and_the_training_goes_on(monkeypatch, where, what, left):
    plain = train_task(images(), watch=NEVER)

    def fails(*_):
        raise RuntimeError("no sight")

    monkeypatch.setattr(where, what, fails)
    monkeypatch.setattr(smoothing, "RARELY", 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = train_task(images(), watch=ALWAYS)
    assert [str(one.message) for one in said if one.category is MonitorWarning] == [
        "a snapshot failed and is left out: no sight"
    ]
    assert same(plain.model, result.model)
    assert len(result.smoothing) == (result.steps if left else 0)
    assert all(left <= row.keys() and "negative_share" not in row for row in result.smoothing)
