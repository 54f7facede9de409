"""Several runs at once on one machine, each `oversmooth train` in a process of its own, within a span of time.

For a GPU that one small model does not fill, and for machines with a time limit: what is not done in time is at a
checkpoint, and the next call goes on from there. The processes end with this one, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth.safety.files import write_text
from oversmooth_papers.engine import checkpoint
from oversmooth_papers.engine.loop import MODEL
from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.result import RunSettings
from oversmooth_papers.engine.stopping import EXIT_CODES, PARENT, interruptible, reason

OUTPUT = "output.txt"  # what a run's process printed, in its folder
_LEAST = 45.0  # seconds: less is spent before the first step, on starting and compiling
_SPARE = 15.0  # seconds kept at the end for starting late and for the checkpoint
# Finished or out of time; asked to stop; asked before there was a run to save.
_STOPPED = (0, *EXIT_CODES.values(), 128 + signal.SIGTERM, -signal.SIGTERM)
GRACE = 60.0  # seconds after the end, or SIGTERM, in which a process may still write its checkpoint


@dataclass(frozen=True)
class Job:
    recipe: BaseRecipe
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / MODEL).is_file() and checkpoint.newest(self.folder) is None


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job: finished, out of time, not begun, or why it failed."""

    job: Job
    message: str
    failed: bool = False
    why: str = ""  # interrupted or preempted, if that ended it


def run_many(
    jobs: Sequence[Job],
    data: str,
    settings: RunSettings,
    *,
    at_once: int,
    on_finished: Callable[[Job], None] = lambda _job: None,
) -> list[JobOutcome]:
    """All jobs, so many at once, in order. Ctrl-C, SIGTERM and SIGUSR2 stop them all, each at a checkpoint.

    settings: of each, its minutes those of all together; its messages say when a job begins and ends. on_finished:
    receives a job as soon as its model is there, while others still run, so that its result can be kept even if this
    process is killed later.
    """
    end = None if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    waiting, running, outcomes = list(jobs), dict[Job, subprocess.Popen[bytes]](), list[JobOutcome]()
    asked = False

    def finish(job: Job, message: str, failed: bool = False) -> None:
        outcomes.append(JobOutcome(job, message, failed, reason(received, None)))
        settings.on_message(f"{job.recipe.title}: {message}")
        if job.finished:
            on_finished(job)

    with interruptible() as received:
        try:
            while waiting or running:
                if received and not asked:
                    asked, end = True, time.monotonic()
                    for process in running.values():
                        process.terminate()  # each leaves a checkpoint
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    left = None if end is None else end - time.monotonic() - _SPARE
                    if received or (left is not None and left < _LEAST):
                        finish(job, f"not begun, as {reason(received, None) or 'time is up'}")
                        continue
                    running[job] = start_process(job, data, left, settings)
                    settings.on_message(f"{job.recipe.title}: begins")
                for job, process in list(running.items()):
                    if process.poll() is not None:
                        del running[job]
                        finish(job, _outcome(job, process.returncode), failed=process.returncode not in _STOPPED)
                    elif end is not None and time.monotonic() > end + GRACE:
                        process.terminate()
                time.sleep(0.2)
        finally:
            end_processes(running.values())
    return outcomes


def end_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """All of them, whatever happened here: politely, and then with all that they started."""
    for process in processes:
        process.terminate()
    last = time.monotonic() + GRACE
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, last - time.monotonic()))
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_process(job: Job, data: str, seconds: float | None, settings: RunSettings) -> subprocess.Popen[bytes]:
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / "recipe.json"
    write_text(path, job.recipe.to_json())
    command = [sys.executable, "-m", "oversmooth_papers", "train", "--recipe", str(path), "--data", data]
    command += ["--output", str(job.folder), "--resume", "--on-nan", settings.on_nan]
    command += [] if seconds is None else ["--minutes", f"{seconds / 60:.3f}"]
    command += [] if settings.device is None else ["--device", str(settings.device)]
    command += ["--force"] if settings.force else []
    with (job.folder / OUTPUT).open("ab") as output:
        streams: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        # In a group of its own: Ctrl-C in a terminal is received once, here.
        return subprocess.Popen(command, env={**os.environ, PARENT: str(os.getpid())}, process_group=0, **streams)


def _outcome(job: Job, code: int) -> str:
    if code == 0 and job.finished:
        return "finished"
    if (why := {0: "out of time", **{code: why for why, code in EXIT_CODES.items()}}.get(code)) is not None:
        return f"{why}, at a checkpoint"
    lines = (job.folder / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"stopped with code {code}: {lines[-1] if lines else 'it said nothing'}"
