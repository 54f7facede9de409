"""Whole runs of segmentation: what they write, how they go on when stopped or killed, and on two processes."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from support import two_processes
from support.nightly import nightly, some
from support.places import TEST_FOLDERS
from support.segmentation_example import RECIPE, splits, train

from oversmooth.steering import steering_of
from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.saved_model import load_model, notes_of
from oversmooth_papers.tasks.segmentation.build import plain_model_of

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


_RUN = """
import sys
sys.path[:0] = {tests!r}
import torch._dynamo  # what the first step would import, in every child
from oversmooth_papers.engine.loop import WatchSettings
from support.segmentation_example import RECIPE, splits, train

def run():
    watch = WatchSettings(evaluate=1, monitor=3, save=0)
    train(RECIPE, splits(), device="cpu", folder={folder!r}, resume=True, watch=watch)
"""

_KILL = """
import os, signal
from pathlib import Path
from oversmooth_papers.engine import checkpoint, step
folder = Path({folder!r})

def logged():
    return (folder / "log.jsonl").read_text().count("\\n") if (folder / "log.jsonl").exists() else 0

def killed_at(place, name, epochs, after):
    # Whatever watched from outside could miss the moment: the process is killed by its own hand.
    before = getattr(place, name)
    def killed(*given):
        if after:
            before(*given)
        if logged() >= epochs:
            os.kill(os.getpid(), signal.SIGKILL)
        return None if after else before(*given)
    setattr(place, name, killed)

moments = [
    ("a half-written checkpoint", (checkpoint, "_write", 1, True)),
    ("a log that is ahead", (checkpoint, "save", 1, False)),
    ("a step done since", (step.Step, "run", 2, True)),
]
while not (folder / "model.safetensors").exists():
    said, moment = moments.pop(0) if moments else ("", None)
    process = os.fork()
    if not process:
        try:
            if moment:
                killed_at(*moment)
            run()
        finally:
            os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL:
        print("killed with " + said)
"""


def started(code):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)


@nightly
def test_killed_at_any_moment_it_goes_on_bit_for_bit(tmp_path):
    """Beside a run in another fresh process: what a process did before can decide which kernels a CPU uses."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    done = started(_RUN.format(tests=TEST_FOLDERS, folder=str(killed)) + _KILL.format(folder=str(killed)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "killed with a half-written checkpoint", "killed with a log that is ahead", "killed with a step done since",
    ]  # fmt: skip
    done = started(_RUN.format(tests=TEST_FOLDERS, folder=str(whole)) + "\nrun()\n")
    assert done.returncode == 0, done.stderr
    assert_same(killed, whole)


_WORK = """
from oversmooth_papers.engine import loop
from oversmooth_papers.tasks.segmentation.build import model_of
from support.segmentation_example import RECIPE, splits, step_of, train

def gradients(ranks):
    step = step_of(RECIPE, model_of(RECIPE), splits(), cpu, ranks)
    kept, update = [], step._update
    def keep(bad):
        kept.append({name: p.grad.clone() for name, p in step.named.items()})
        update(bad)
    step._update = keep
    step.begin_epoch()
    for _ in range(3):
        step.run()
    return kept

def work(ranks, name):
    torch.save(gradients(ranks), folder / f"{name}.pt")
    train(RECIPE, splits(), device="cpu", folder=folder / name.rstrip("01"), watch=loop.WatchSettings(evaluate=1))
"""


@nightly
def test_two_processes_give_the_gradients_and_the_run_of_one(tmp_path_factory):
    folder = two_processes.run(_WORK, lambda: tmp_path_factory.mktemp("segmentation"))
    one, first, second = (torch.load(folder / f"{name}.pt", weights_only=True) for name in ("one", "two0", "two1"))
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, rtol=1e-3, atol=1e-5)
            assert torch.equal(first[step][name], second[step][name])
    for ours, theirs in zip(lines(folder / "one" / "log.jsonl"), lines(folder / "two" / "log.jsonl"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-3)
        assert ours["miou"] == pytest.approx(theirs["miou"], abs=0.05)
