"""Filling a table: the cells that are missing, run one by one or several at once.

A results directory has one writer at a time. What is interrupted goes on from its checkpoint next time.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import oversmooth
from oversmooth.reproduce.cells import Folder, cell_path, folder_name, missing, model_path, work_folder, write
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import whole_file
from oversmooth.train.engine import lock, loop
from oversmooth.train.engine.parallel_runs import Job, run_many
from oversmooth.train.engine.recipe import BaseRecipe
from oversmooth.train.engine.result import OnNan, WatchSettings
from oversmooth.train.tasks.registry import task_of

_LOOKS = 20  # times that smoothing was looked at, kept of all


@dataclass(frozen=True)
class Running:
    """How missing cells are run; nothing here changes a figure."""

    data: str = ""
    """What was loaded, by name or folder, for processes that load it themselves."""
    at_once: int = 1
    """So many together, each in a process of its own."""
    minutes: float | None = None
    device: str | None = None
    on_nan: OnNan = "retry"
    force: bool = False
    """Even where another process fills cells of this directory."""
    on_message: Callable[[str], None] = lambda _line: None
    on_progress: Callable[..., None] | None = None
    """A training run's `Progress`; of a table that tests models: which, how much is done, of how much, what is next."""


@dataclass(frozen=True)
class Filled:
    """Whether all cells are there, which is its truth; or why not: out of time, interrupted, preempted."""

    why: str

    def __bool__(self) -> bool:
        return self.why == "finished"


def fill(recipes: Sequence[BaseRecipe], data: Any, results: Path, folder: Folder, running: Running) -> Filled:
    """Run the cells that are missing; whether all are there now, or why not."""
    end = None if running.minutes is None else time.monotonic() + 60 * running.minutes
    with one_writer(results, running):
        _tidy(recipes, results, folder)
        jobs = [Job(recipe, work_folder(results, recipe)) for recipe in missing(recipes, results, folder)]
        if running.at_once > 1 and len(jobs) > 1:
            return _fill_at_once(jobs, data, results, folder, running)
        reuse = loop.Reuse()
        for job in jobs:
            title = job.recipe.title
            running.on_message(f"{title}: begins")
            result = loop.train(
                task_of(job.recipe, data),
                device=running.device,
                folder=job.folder,
                resume=True,
                minutes=None if end is None else max(0.0, (end - time.monotonic()) / 60),
                watch=WatchSettings(),
                progress=running.on_progress,
                on_nan=running.on_nan,
                force=running.force,
                on_message=running.on_message,
                reuse=reuse,
            )
            for retry in result.retries:
                back = f"went back to step {retry['back_to_step']:,}, with other draws: {retry['said']}"
                running.on_message(f"{title}: {back}")
            if not result.finished:
                running.on_message(f"{title}: {result.why} after {result.step:,} of {result.steps:,} steps")
                return Filled(result.why)
            _keep(job, data, results, folder, running.device)
            running.on_message(f"{title}: {job.recipe.describe(result.scores)}")
    return Filled("finished")


def _fill_at_once(jobs: Sequence[Job], data: Any, results: Path, folder: Folder, running: Running) -> Filled:
    outcomes = run_many(
        jobs,
        running.data,
        at_once=running.at_once,
        minutes=running.minutes,
        device=running.device,
        on_nan=running.on_nan,
        force=running.force,
        on_message=running.on_message,
    )
    for outcome in outcomes:
        if outcome.job.finished:
            _keep(outcome.job, data, results, folder, running.device)
    if failed := [outcome for outcome in outcomes if outcome.failed]:
        first = failed[0]
        raise InputError(f"{len(failed)} of {len(jobs)} runs failed; {first.job.recipe.title} {first.said}")
    stopped = next((outcome.why for outcome in outcomes if outcome.why), "out of time")
    return Filled(stopped if missing([job.recipe for job in jobs], results, folder) else "finished")


@contextmanager
def one_writer(results: Path, running: Running) -> Iterator[None]:
    """A results directory, made if it is not there, with this process as its one writer."""
    with lock.held(results, force=running.force, on_message=running.on_message):
        yield


def _tidy(recipes: Iterable[BaseRecipe], results: Path, folder: Folder) -> None:
    """Remove what a killed process left: of the files it was writing, and runs whose cells are there."""
    for recipe in recipes:
        cell = cell_path(results, folder, recipe)
        for final in (cell, model_path(results, recipe)):
            for left in final.parent.glob(f".{final.stem}*{final.suffix}"):
                left.unlink(missing_ok=True)
        if cell.is_file():
            shutil.rmtree(work_folder(results, recipe), ignore_errors=True)


def _keep(job: Job, data: Any, results: Path, folder: Folder, device: str | None) -> None:
    """The finished run as a cell and a model, and no run any more."""
    task = task_of(job.recipe, data)
    result = loop.train(task, folder=job.folder, device=device, resume=True)  # over: read from its files
    model = model_path(results, job.recipe)
    with whole_file(model) as temporary:
        shutil.copyfile(job.folder / loop.MODEL, temporary)
    per_s = f"{job.recipe.unit}_per_s"
    speeds = [row[per_s] for row in result.epochs if per_s in row]
    step = max(1, math.ceil(len(result.smoothing) / _LOOKS))
    cell = {
        "table": folder_name(folder, job.recipe),
        "title": job.recipe.title,
        **result.scores,
        "seed": job.recipe.seed,
        **task.facts(),
        "seconds": round(result.seconds, 1),
        per_s: round(statistics.median(speeds), 1) if speeds else None,
        "recipe": job.recipe.to_dict(),
        **provenance(device),
        **({"retries": result.retries} if result.retries else {}),
        "epochs": [{k: row[k] for k in ("epoch", "loss", "lr", *result.scores) if k in row} for row in result.epochs],
        "smoothing": result.smoothing[::-1][::step][::-1],
    }
    write(cell_path(results, folder, job.recipe), cell)
    shutil.rmtree(job.folder, ignore_errors=True)


def provenance(device: str | None = None) -> dict[str, Any]:
    """Versions, hardware and the day."""
    used = loop.device_named(device)
    on_gpu = used.type == "cuda"
    hardware = torch.cuda.get_device_name(used) if on_gpu else f"{_processor()}, {os.cpu_count()} cores"
    versions = {"oversmooth": oversmooth.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"hardware": hardware, "versions": versions, "day": time.strftime("%Y-%m-%d", time.gmtime())}


def _processor() -> str:
    return platform.processor() or platform.machine()
