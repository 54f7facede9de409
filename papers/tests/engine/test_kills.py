"""Killed at random moments by every signal, and started again: the result is that of a run nobody touched."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.interpreters import python
from support.nightly import NIGHTLY
from support.places import TEST_FOLDERS
from support.train_example import RECIPE

from oversmooth_papers.engine import parallel_runs as many
from oversmooth_papers.engine.result import RunSettings

_COMMON = """
import hashlib, os, random, signal, sys
from dataclasses import replace
from pathlib import Path
sys.path[:0] = {tests!r}
import torch._dynamo  # what the first step would import, in every child
from support.train_example import RECIPE, splits, train
from oversmooth_papers.tables.filling import Running, fill
from oversmooth_papers.engine.loop import WatchSettings

home = Path({folder!r})
RECIPES = [replace(RECIPE, epochs=1, variant=variant) for variant in ("plain", "sharpen")]

def one(folder):
    watch = WatchSettings(monitor=5, save=0)
    return train(RECIPES[0], splits(), folder=folder, resume=True, watch=watch).why

def table(folder):
    return fill(RECIPES, splits(), folder, "table2", Running(device="cpu"))

def child(work, folder, number=None, seconds=0.0):
    # After so many seconds of processor time it receives the signal: on a busy machine a clock runs ahead of the work.
    process = os.fork()  # what was imported need not be again
    if process:
        return process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the suite runs in the background
    if number is not None:
        # SIGPROF itself ends a process at once, as SIGKILL does.
        killed = signal.SIG_DFL if number == signal.SIGKILL else lambda *_: os.kill(os.getpid(), number)
        signal.signal(signal.SIGPROF, killed)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        code = {{"finished": 0, "interrupted": 130, "preempted": 75}}[work(folder)]
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        print(type(error).__name__, error)
        code = 1
    sys.stdout.flush()
    os._exit(code)

def left(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.name.endswith(".jsonl"))

def models(folder):
    return [hashlib.sha256(saved_arrays(file)).hexdigest() for file in sorted(folder.rglob("*.safetensors"))]

def saved_arrays(file):
    # Without the header, whose notes say how long it took.
    data = file.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little"):]

draw = random.Random(0)
for work in {works}:
    whole = home / work.__name__
    _, status, used = os.wait4(child(work, whole), 0)
    assert status == 0
    span = 0.7 * (used.ru_utime + used.ru_stime)  # later runs may be quicker
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        folder = home / f"{{work.__name__}}-{{number.name}}"
        codes = []
        for attempt in range(50):
            killed = (number, draw.uniform(0.01, span)) if attempt < 3 else ()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child(work, folder, *killed), 0)[1]))
            if codes[-1] == 0:
                break
        same = models(folder) == models(whole) and left(folder) == left(whole)
        print(work.__name__, number.name, "same" if same else f"{{left(folder)}} {{left(whole)}}", codes, flush=True)
"""


def test_killed_at_random_moments_it_comes_to_the_same(tmp_path):
    works = ["table", "one"] if NIGHTLY else ["table"]  # a table is runs, and more
    code = _COMMON.format(tests=TEST_FOLDERS, folder=str(tmp_path), works=f"({', '.join(works)},)")
    done = python("-c", code, OMP_NUM_THREADS=1)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(works), done.stdout
    allowed = {"SIGINT": {130}, "SIGTERM": {75, -signal.SIGTERM}, "SIGKILL": {-signal.SIGPROF}}
    killed = 0
    for line in lines:
        _, name, said, codes = line.split(" ", 3)
        assert said == "same", line
        *before, last = json.loads(codes)
        assert last == 0
        assert set(before) <= allowed[name], line
        killed += len(before)
    assert killed >= 3, done.stdout


_PARENT = """
import sys
sys.path[:0] = {tests!r}
from dataclasses import replace
from pathlib import Path
from oversmooth_papers.engine.parallel_runs import Job, run_many
from oversmooth_papers.engine.result import RunSettings
from oversmooth_papers.tasks.images.recipe import QUICK, Shape
from support.commands import make_cifar

home = Path({folder!r})
make_cifar(home / "cifar-100-binary")
recipe = replace(QUICK, share=1.0, epochs=100000, batch=20, shape=Shape(patch=8, width=16, depth=1, heads=2))
run_many([Job(recipe, home / "run")], str(home / "cifar-100-binary"), RunSettings(device="cpu"), at_once=1)
"""


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def epochs_in(log):
    return log.read_text().count("\n") if log.exists() else 0


def until(condition, what):
    end = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux lists them")
def test_a_child_ends_with_a_parent_that_was_killed(tmp_path):
    """It saves and leaves, though nobody could tell it to."""
    folder = tmp_path / "run"
    lock, saved, log = (folder / name for name in (".oversmooth-lock", "checkpoint.safetensors", "log.jsonl"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = _PARENT.format(tests=TEST_FOLDERS, folder=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        until(saved.exists, "the run did not begin")
        child, before = json.loads(lock.read_text())["pid"], saved.stat().st_mtime_ns
        epochs = epochs_in(log)
        until(lambda: epochs_in(log) > epochs, "the run does not go on")  # so that there is something to save
        parent.kill()
        until(lambda: not lives(child), "the child lives on")
        assert not lock.exists()
        assert saved.stat().st_mtime_ns > before
    finally:
        parent.kill()
        parent.wait()


def test_a_signal_to_the_parent_stops_all_children_at_checkpoints(tmp_path, monkeypatch):
    """Children that take no time to start stand for runs."""
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75));"
        "open(sys.argv[1], 'w').close(); time.sleep(600)"
    )
    jobs = [many.Job(replace(RECIPE, seed=seed), tmp_path / str(seed)) for seed in range(3)]

    def start(job, *_):
        job.folder.mkdir()
        return subprocess.Popen([sys.executable, "-c", code, str(job.folder / "begun")])

    def slept(_seconds, sleep=time.sleep):
        sleep(0.01)
        if len(list(tmp_path.glob("*/begun"))) == 2 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGUSR2))

    sent = []
    monkeypatch.setattr(many, "start_process", start)
    monkeypatch.setattr(many.time, "sleep", slept)
    outcomes = many.run_many(jobs, "", RunSettings(), at_once=2)
    assert sorted(outcome.message for outcome in outcomes) == [
        "not begun, as preempted", "preempted, at a checkpoint", "preempted, at a checkpoint",
    ]  # fmt: skip
    assert all(outcome.why == "preempted" and not outcome.failed for outcome in outcomes)


def test_a_child_that_does_not_listen_is_ended(monkeypatch):
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    monkeypatch.setattr(many, "GRACE", 0.05)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)
    process.stdout.readline()
    many.end_processes([process])
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
