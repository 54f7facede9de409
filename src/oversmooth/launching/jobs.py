"""Sends one job per missing cell, waits for the cells, and sends again what vanished.

A cell is a file that is there or not, so only the file decides: a job that ends without it, for whatever reason, is
sent again, three times in all. A job that is asked to stop saves what it can. Before a time limit (SIGUSR2) it is
requeued by submitit and goes on; after SIGTERM, which preemption and scancel send, it ends, and SLURM or this process
starts it anew.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oversmooth.launching import queue
from oversmooth.launching.queue import NOT_QUEUED, Sent
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library

TRIES = 3
_GRACE = 60.0  # seconds in which local jobs may save, once asked to stop
_PREEMPTED = 75  # EX_TEMPFAIL
_TIME_OUTS = 1000  # each goes on from a checkpoint, so that they do not count as tries
_OURS = ("array", "error", "job-name", "open-mode", "output", "signal")  # options of sbatch


@dataclass(frozen=True)
class Cell:
    """A file, and what makes it.

    run: pickled; returns "finished", "out of time" if it is to go on in a requeued job, or why else it stopped.
    """

    title: str
    path: Path
    run: Callable[[], str]


@dataclass(frozen=True)
class JobSettings:
    """How jobs are sent. slurm: long options of sbatch without dashes; time is in minutes."""

    launcher: Literal["local", "slurm"]
    at_once: int | None = None  # by default one on this machine, and as many as SLURM lets run
    slurm: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None  # between looks at the queue; by default 0.5 on this machine and 10 on SLURM

    def __post_init__(self) -> None:
        for name, value in self.slurm.items():
            if not re.fullmatch("[a-z][a-z-]*", name) or name in _OURS:
                raise InputError(f"--slurm has {name!r}, which cannot be set; name another option of sbatch")
            if name == "time" and not (value.isdecimal() and int(value)):
                raise InputError(f"--slurm time={value} is not a number of minutes; give one, such as time=60")


class Work:
    """What a job does. submitit calls `checkpoint` when it requeues it, and the same work begins again."""

    def __init__(self) -> None:
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # local jobs would see no GPU

    def __call__(self, cell: Cell) -> None:
        # While a run that can save receives signals itself, its handlers are in place of this and of submitit's.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_PREEMPTED))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ |= {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}
        try:
            why = cell.run()
        except InputError as error:
            print(f"oversmooth: {error}", file=sys.stderr)
            sys.exit(2)
        if why == "out of time":
            signal.raise_signal(signal.SIGUSR2)  # submitit requeues the job, and exits
        if why != "finished":
            print(f"oversmooth: {why}", file=sys.stderr)
            sys.exit(_PREEMPTED)

    def checkpoint(self, cell: Cell) -> Any:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # requeueing sends one to a process that is leaving already
        return import_library("submitit", "a job").helpers.DelayedSubmission(self, cell)


def launch(
    cells: Sequence[Cell], folder: Path, settings: JobSettings, on_message: Callable[[str], None] = lambda _line: None
) -> dict[str, str]:
    """Run the cells whose files are missing; returns the titles of those that failed, with the reason.

    folder: receives the jobs' files, and must be the user's alone. Jobs of an earlier call that still wait or run on
    SLURM are waited for, not sent again. If this process is stopped, local jobs stop at a checkpoint; SLURM's go on.
    """
    todo = [cell for cell in cells if not cell.path.is_file()]
    return Launch(todo, folder.absolute(), settings, on_message).go() if todo else {}


class Launch:
    """One call of `launch`."""

    def __init__(
        self, todo: list[Cell], folder: Path, settings: JobSettings, on_message: Callable[[str], None]
    ) -> None:
        self.todo, self.folder, self.settings, self.on_message = todo, folder, settings, on_message
        self.is_local = settings.launcher == "local"
        self.sent: dict[Path, tuple[Cell, Sent]] = {}
        self.local: dict[str, Any] = {}
        self.tries, self.failed, self.said = Counter[Path](), dict[str, str](), ""
        self.executor = self._executor()

    def _executor(self) -> Any:
        submitit = import_library("submitit", "--launcher", "oversmooth[cluster]")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        if not self.is_local and shutil.which("sbatch") is None:
            raise InputError("--launcher slurm finds no sbatch on this machine; use a login node, or --launcher local")
        queue.check_private(self.folder)
        options = dict(self.settings.slurm)
        minutes = int(options.pop("time", 60))
        executor = submitit.AutoExecutor(self.folder, cluster=self.settings.launcher, slurm_max_num_timeout=_TIME_OUTS)
        place = shlex.quote(str(self.folder))
        executor.update_parameters(
            name="oversmooth",
            timeout_min=60 * 24 * 365 if self.is_local else minutes,
            slurm_array_parallelism=self.settings.at_once or 1_000_000,
            slurm_signal_delay_s=min(90, 15 * minutes),
            slurm_additional_parameters=options,
            slurm_setup=[
                f'[ "$(stat -c %u:%a {place})" = "$(id -u):700" ] || {{ echo "{place} is not private" >&2; exit 2; }}',
                "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",  # which srun takes from nowhere else since 22.05
            ],
        )
        return executor

    def go(self) -> dict[str, str]:
        if not self.is_local:
            self._adopt(queue.slurm_states() or {})
        seconds = self.settings.seconds or (0.5 if self.is_local else 10.0)
        try:
            while self.todo or self.sent:
                self._send()
                time.sleep(seconds)
                self._collect()
        finally:
            self._leave()
        return self.failed

    def _adopt(self, states: dict[str, str]) -> None:
        """Wait for jobs that an earlier call sent."""
        for cell in list(self.todo):
            if (sent := queue.recorded(self.folder, str(cell.path))) and sent["job"] in states:
                self.sent[cell.path] = (cell, sent)
                self.todo.remove(cell)
                self.on_message(f"{cell.title}: is job {sent['job']} already")

    def _send(self) -> None:
        """Local jobs as others end; to SLURM all at once, in arrays that are as large as it takes."""
        if self.is_local:
            parts = [self.todo[: max(0, (self.settings.at_once or 1) - len(self.sent))]]
        else:
            most = queue.most_in_array() if self.todo else 1
            parts = [self.todo[first : first + most] for first in range(0, len(self.todo), most)]
            if self.settings.at_once is not None:  # which limits the jobs of one array
                parts = [] if self.sent else parts[:1]
        for part in filter(None, parts):
            queue.check_private(self.folder)
            # Ctrl-C reaches all processes of a terminal, and submitit would kill jobs a second later: they ignore it.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    jobs = self.executor.map_array(Work(), part)
            except (OSError, RuntimeError) as error:  # submitit's errors are RuntimeErrors
                if self.sent:  # a limit on jobs of one user, perhaps: when some have ended, it takes more
                    return
                why = reason(error, 200).removeprefix("sbatch: error: ")
                raise InputError(f"no job can be sent ({why}); change --slurm, or see to the queue") from error
            finally:
                signal.signal(signal.SIGINT, before)
            for cell, job in zip(part, jobs, strict=True):
                sent = Sent(title=cell.title, cell=str(cell.path), launcher=self.settings.launcher, job=job.job_id)
                self.sent[cell.path], self.local[job.job_id] = (cell, sent), job
                queue.record(self.folder, sent)
                self.tries[cell.path] += 1
                self.todo.remove(cell)
                self.on_message(f"{cell.title}: sent as job {job.job_id}")

    def _collect(self) -> None:
        """Take note of cells that are there, and of jobs that ended without."""
        states = {} if self.is_local else queue.slurm_states()
        queue.check_private(self.folder)
        if states is None:
            return  # SLURM does not answer now
        waiting = Counter[str]()
        for cell, sent in list(self.sent.values()):
            state = queue.state_of(sent, states)
            if self.is_local:
                state = NOT_QUEUED if self.local[sent["job"]].done() else state
            if state != NOT_QUEUED:
                waiting[state] += 1
                continue
            del self.sent[cell.path]
            if cell.path.is_file():
                self.on_message(f"{cell.title}: finished")
                queue.forget(self.folder, sent)
            else:
                self._try_again(cell, sent)
        said = ", ".join(f"{count} {state}" for state, count in sorted(waiting.items()))
        if said not in ("", self.said) and not self.is_local:
            self.on_message(said)
        self.said = said

    def _try_again(self, cell: Cell, sent: Sent) -> None:
        watcher = import_library("submitit", "--launcher").SlurmJob.watcher  # asks sacct, if there is a database
        state = "" if self.is_local else str(watcher.get_info(sent["job"], mode="force").get("State", ""))
        why = last_line(self.folder, sent["job"]) or state or "it said nothing"
        if state == f"CANCELLED by {os.getuid()}":
            self.failed[cell.title] = "its job was cancelled; the same command sends it again"
        elif self.tries[cell.path] >= TRIES:
            self.failed[cell.title] = f"failed {TRIES} times, last with: {why}"
        else:
            self.todo.append(cell)
        what = self.failed.get(cell.title) or f"job {sent['job']} ended without a result ({why}); it is sent again"
        self.on_message(f"{cell.title}: {what}")

    def _leave(self) -> None:
        """Stop local jobs, each at a checkpoint, if this process is stopped; SLURM's stay."""
        if self.is_local:
            processes = [self.local[sent["job"]]._process for _, sent in self.sent.values()]
            for process in processes:
                process.terminate()
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
        elif self.sent:
            jobs = sorted({sent["job"].partition("_")[0] for _, sent in self.sent.values()})
            self.on_message(
                f"{len(self.sent)} cells stay in the queue; the same command waits for them, and scancel "
                f"{' '.join(jobs)} cancels them"
            )
        if not any(self.folder.glob("cell-*.json")):
            shutil.rmtree(self.folder, ignore_errors=True)


def last_line(folder: Path, job: str) -> str:
    """The last line that a job wrote on stderr, of its own or SLURM's."""
    path = folder / f"{job}_0_log.err"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("srun: ")] or lines  # srun has the last word, on exit codes
    return reason(ValueError(lines[-1].removeprefix("oversmooth: ")), 200) if lines else ""
