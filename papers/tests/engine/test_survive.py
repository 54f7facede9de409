"""Runs that survive: a clock that saves, a full disk, another writer."""

import errno
import json
import os
from dataclasses import replace

import pytest
from support.runs import QUIET, assert_same_models
from support.train_example import RECIPE, splits, train

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint, lock, logs, loop
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.step import Step


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    train(RECIPE, splits(), folder=folder, watch=QUIET)
    return folder


class Clock:
    """Seven seconds per step."""

    def __init__(self, monkeypatch):
        self.now, self.saved = 0.0, []
        body, save = Step.body, checkpoint.save

        def step(this):
            self.now += 7
            body(this)

        def kept(folder, recipe, arrays, facts):
            self.saved.append(int(arrays["position"]))
            return save(folder, recipe, arrays, facts)

        monkeypatch.setattr(Step, "body", step)
        monkeypatch.setattr(checkpoint, "save", kept)
        monkeypatch.setattr(loop.time, "monotonic", lambda: self.now)


def test_checkpoints_belong_to_the_clock(tmp_path, monkeypatch):
    """One epoch of 40 steps: the first, ten seconds later, and one per minute, though no epoch ends."""
    clock = Clock(monkeypatch)
    recipe = replace(RECIPE, epochs=1, warmup=0)
    train(recipe, splits(320), folder=tmp_path, watch=QUIET)
    assert clock.saved == [1, 3, 12, 21, 30, 39]
    assert WatchSettings().save <= 300


def full(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("what", ["checkpoint", "log", "model"])
def test_a_disk_that_stays_full_stops_the_run_with_everything_kept(tmp_path, monkeypatch, whole, what):
    train(RECIPE, splits(), folder=tmp_path, minutes=0, watch=QUIET)
    if what == "checkpoint":
        monkeypatch.setattr(checkpoint, "save_file", full)
    elif what == "log":
        opened = logs.Path.open
        monkeypatch.setattr(
            logs.Path, "open", lambda p, *a, **k: full() if p.name == "log.jsonl" else opened(p, *a, **k)
        )
    else:
        monkeypatch.setattr(os, "fsync", lambda _handle: full() if checkpoint_is_over() else None)
    steps = []
    step = Step.run
    monkeypatch.setattr(Step, "run", lambda self: (step(self), steps.append(self.done)))

    def checkpoint_is_over():
        return bool(steps) and steps[-1] == 20

    with pytest.raises(InputError, match=r"cannot be written.*No space left on device\)?; free space"):
        train(RECIPE, splits(), folder=tmp_path, resume=True, watch=replace(QUIET, save=0))
    monkeypatch.undo()
    assert not list(tmp_path.rglob(".*"))
    assert not (tmp_path / loop.MODEL).exists()
    assert train(RECIPE, splits(), folder=tmp_path, resume=True, watch=QUIET).finished
    assert_same_models(whole, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]


def test_one_writer_a_run(tmp_path):
    with lock.held(tmp_path):
        with pytest.raises(InputError, match="is being written by process"):
            train(RECIPE, splits(), folder=tmp_path, resume=True)
        on_message = []
        result = train(
            RECIPE, splits(), device="cpu", folder=tmp_path, resume=True, force=True, on_message=on_message.append
        )
    assert result.finished
    assert "by force" in on_message[0]


def test_a_run_that_was_taken_over_writes_no_more(tmp_path, monkeypatch):
    body = Step.body

    def taken(self):
        if self.done == 7:
            (tmp_path / lock.NAME).unlink()
            stack.append(lock.held(tmp_path))
            stack[-1].__enter__()
        body(self)

    stack = []
    monkeypatch.setattr(Step, "body", taken)
    with pytest.raises(InputError, match=r"was taken over by process .* this one stops, and what it had saved is"):
        train(RECIPE, splits(), folder=tmp_path, watch=replace(QUIET, save=0))
    assert int(checkpoint.load(tmp_path, RECIPE).arrays["position"]) == 7
    assert (tmp_path / lock.NAME).is_file()  # the other's
    stack[-1].__exit__(None, None, None)


def test_lines_of_a_log_that_are_none_of_ours_are_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    good = {"epoch": 1, "step": 5, "images_per_s": 1.0}
    for bad in ("[]", "3", '{"epoch": ', "[" * 100_000, "\udcff"):
        path.write_bytes((json.dumps(good) + "\n" + bad + "\n").encode("utf-8", "surrogateescape"))
        assert logs.read(path) == [good], bad
