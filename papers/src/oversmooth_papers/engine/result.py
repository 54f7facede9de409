"""The settings of a training run, its progress, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from oversmooth_papers.engine.recipe import BaseRecipe, Scores
from oversmooth_papers.engine.smoothing import MakesWatcher, SmoothingProbe

OnNan = Literal["stop", "retry"]


@dataclass(frozen=True)
class WatchSettings:
    """When a run is tested, recorded and saved; nothing here changes a weight."""

    evaluate: int | None = None  # epochs between tests; None: 20 tests in all; 0: only after the last epoch
    monitor: int = 50  # steps between snapshots of smoothing; 0: none
    watcher: MakesWatcher = SmoothingProbe  # takes the snapshots; `smoothing.MonitorWatcher` records more
    save: float = 60.0  # seconds between checkpoints, besides one after the first step and when a run stops
    tensorboard: bool = False


@dataclass(frozen=True)
class Progress:
    """The state of a run, for a progress bar."""

    step: int
    steps: int
    epoch: int
    epochs: int
    speed: float  # units per second
    unit: str
    seconds_left: float
    loss: float | None
    scores: str  # of the last evaluation, in words


@dataclass(frozen=True)
class RunSettings:
    """How a recipe is run. Only `on_nan` can change the result."""

    device: str | torch.device | None = None  # by default the GPU if there is one
    folder: str | Path | None = None  # for logs, the checkpoint and the model; without one nothing is written
    resume: bool = False  # continue from the checkpoint in the folder, or begin if there is none
    minutes: float | None = None  # stop at a checkpoint after this time
    watch: WatchSettings = field(default_factory=WatchSettings)
    compiled: bool | None = None  # by default on a GPU
    on_nan: OnNan = "stop"
    """When a step is not finite. "stop" raises an error that names the first such layer. "retry" returns to the last
    checkpoint, or the beginning, and continues with other random numbers, at most three times; log and result list it.
    """
    force: bool = False  # take the folder over even from a process that is still writing there
    on_progress: Callable[[Progress], None] | None = None
    on_message: Callable[[str], None] = lambda _line: None  # receives sentences for the user


@dataclass
class Result:
    recipe: BaseRecipe
    why: str  # finished, interrupted, preempted, or out of time
    step: int
    steps: int
    scores: Scores  # after the last epoch, not the best one; empty if the run is not finished
    epochs: list[dict[str, Any]] = field(repr=False)  # the log's lines
    smoothing: list[dict[str, Any]] = field(repr=False)
    seconds: float  # of all processes that advanced the run: training, evaluation and monitoring, without compiling
    folder: Path | None
    model: torch.nn.Module = field(repr=False)
    retries: list[dict[str, Any]] = field(default_factory=list, repr=False)  # from which step, to which, and why
    machines: list[dict[str, Any]] = field(default_factory=list, repr=False)  # the hardware, and from which step

    @property
    def finished(self) -> bool:
        return self.why == "finished"
