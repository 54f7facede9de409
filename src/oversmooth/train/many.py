"""Several runs at once on one machine, each `oversmooth train` in a process of its own, within a span of time.

For a GPU that one small model does not fill, and for machines with a time limit: what is not done in time is at a
checkpoint, and the next call goes on from there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oversmooth.train import checkpoint
from oversmooth.train.loop import MODEL
from oversmooth.train.recipe import Recipe
from oversmooth.train.runs import OnNan

OUTPUT = "output.txt"
"""What a run's process printed, in its folder."""
_LEAST = 45.0  # seconds: less is spent before the first step, on starting and compiling
_SPARE = 15.0  # seconds kept at the end for starting late and for the checkpoint
_STOPPED = (0, 130, -15)  # at its end or out of time; by Ctrl-C; by a polite kill
_GRACE = 60.0  # seconds after the end in which a process may still write its checkpoint


@dataclass(frozen=True)
class Job:
    """A run and where it lives."""

    recipe: Recipe
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / MODEL).is_file() and not (self.folder / checkpoint.NAME).is_file()


@dataclass(frozen=True)
class Outcome:
    """What became of a job: finished, out of time, not begun, or why it failed."""

    job: Job
    said: str
    failed: bool = False


def run_many(
    jobs: Sequence[Job],
    data: str,
    *,
    at_once: int,
    minutes: float | None = None,
    device: str | None = None,
    on_nan: OnNan = "stop",
    told: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """All jobs, so many at once, in order; told: a line whenever one begins or ends."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    waiting, running, outcomes = list(jobs), dict[Job, subprocess.Popen[bytes]](), list[Outcome]()

    def finish(job: Job, said: str, failed: bool = False) -> None:
        outcomes.append(Outcome(job, said, failed))
        if told is not None:
            told(f"{job.recipe.title}: {said}")

    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                left = None if end is None else end - time.monotonic() - _SPARE
                if left is not None and left < _LEAST:
                    finish(job, "not begun, as time is up")
                    continue
                running[job] = _start(job, data, left, device, on_nan)
                if told is not None:
                    told(f"{job.recipe.title}: begins")
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    finish(job, _said(job, process.returncode), failed=process.returncode not in _STOPPED)
                elif end is not None and time.monotonic() > end + _GRACE:
                    process.terminate()
            time.sleep(0.2)
    except BaseException:
        for process in running.values():
            process.terminate()  # each leaves a checkpoint
        for process in running.values():
            process.wait()
        raise
    return outcomes


def _start(job: Job, data: str, seconds: float | None, device: str | None, on_nan: OnNan) -> subprocess.Popen[bytes]:
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / "recipe.json"
    path.write_text(job.recipe.to_json(), encoding="utf-8")
    command = [sys.executable, "-m", "oversmooth", "train", "--recipe", str(path), "--data", data]
    command += ["--output", str(job.folder), "--resume", "--on-nan", on_nan]
    command += [] if seconds is None else ["--minutes", f"{seconds / 60:.3f}"]
    command += [] if device is None else ["--device", device]
    with (job.folder / OUTPUT).open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def _said(job: Job, code: int) -> str:
    if code == 0:
        return "finished" if job.finished else "out of time, at a checkpoint"
    lines = (job.folder / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"stopped with code {code}: {lines[-1] if lines else 'it said nothing'}"
