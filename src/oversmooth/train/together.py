"""Several runs at once in one process, each in a thread and, on a GPU, on a stream of its own.

A step of ViT-Ti with 96 images does not fill an H200 (PAPERS: 11,981 images/s, against 16,897 with batches of 1,024).
Kernels of other streams fill it; those of other processes take turns, unless MPS runs. Runs are built one after the
other, as capturing a graph wants the GPU to itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from oversmooth.errors import InputError
from oversmooth.train import loop
from oversmooth.train.many import Job, Outcome
from oversmooth.train.ranks import Ranks
from oversmooth.train.recipe import Recipe
from oversmooth.train.runs import Progress, Result, Splits, Watch
from oversmooth.train.stopping import interruptible

_Built = tuple[loop.Run, Any]
"""A run and its stream."""


def train_together(
    jobs: Sequence[Job],
    splits: Splits,
    *,
    at_once: int,
    minutes: float | None = None,
    device: str | torch.device | None = None,
    watch: Watch | None = None,
    told: Callable[[str], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:
    """All jobs, in groups of so many; each goes on from its checkpoint. progress is that of a group's first run.

    A run that fails leaves the others alone.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    place = loop.device_named(device)
    say = told or (lambda line: None)
    outcomes: list[Outcome] = []
    waiting = []
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        if loop.finished_run(job.recipe, job.folder, resume=True) is not None:
            outcomes.append(Outcome(job, "finished"))
        else:
            waiting.append(job)
    spare: list[_Built] = []
    with loop.float32_products(place), interruptible() as interrupted:
        while waiting:
            group, waiting = waiting[:at_once], waiting[at_once:]
            if interrupted or (end is not None and time.monotonic() >= end):
                outcomes += [Outcome(job, "not begun, as time is up") for job in group]
                continue
            said, spare = _group(group, splits, place, end, watch or Watch(), interrupted, say, progress, spare)
            for job, words in zip(group, said, strict=True):
                outcomes.append(Outcome(job, words))
                say(f"{job.recipe.title}: {words}")
    return outcomes


def _group(
    jobs: Sequence[Job],
    splits: Splits,
    device: torch.device,
    end: float | None,
    watch: Watch,
    interrupted: list[int],
    say: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
    spare: list[_Built],
) -> tuple[list[str], list[_Built]]:
    """What became of each, and what was built for it; spare: what was built for runs that are over."""
    said = ["not begun"] * len(jobs)
    threads, built = [], []
    for place, job in enumerate(jobs):
        fits = next((one for one in spare if _same_but_seed(one[0].recipe, job.recipe)), None)
        if fits is not None:
            spare.remove(fits)
        before, stream = fits or (None, _stream(device))
        try:
            with stream:
                job.recipe.check_fits(splits.train)
                told = progress if place == 0 else None
                run = loop.Run(job.recipe, splits, device, job.folder, Ranks(), watch, told, None, before)
        except InputError as error:
            said[place] = f"failed: {error}"
            continue
        built.append((place, run, stream))
        say(f"{job.recipe.title}: begins at step {run.step.done:,} of {run.step.total:,}")
        threads.append(threading.Thread(target=_go, args=(run, stream, device, end, interrupted, said, place)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # what was built on one stream is used on another from here
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # in pieces, so that Ctrl-C is heard
    # A failed one is left alone: looking for the cause took its graph's gradients away.
    return said, [(run, stream) for place, run, stream in built if not said[place].startswith("failed")]


def _same_but_seed(one: Recipe, other: Recipe) -> bool:
    return replace(one, seed=other.seed) == other


def _go(
    run: loop.Run,
    stream: Any,
    device: torch.device,
    end: float | None,
    interrupted: list[int],
    said: list[str],
    place: int,
) -> None:
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with stream:
            result: Result = run.go(end, interrupted)
        steps = f"after {result.step:,} of {result.steps:,} steps"
        said[place] = "finished" if result.finished else f"{result.why} {steps}, at a checkpoint"
    except InputError as error:
        said[place] = f"failed: {error}"
    except Exception as error:  # the others go on; this one is told of
        said[place] = f"failed: {type(error).__name__}: {error}"


def _stream(device: torch.device) -> Any:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
