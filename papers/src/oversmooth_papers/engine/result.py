"""The settings of a training run, its progress, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.recipe import BaseRecipe, Scores
from oversmooth_papers.engine.smoothing import MakesWatcher, SmoothingProbe

OnNan = Literal["stop", "retry"]
"""When a step is not finite: stop with an error, or return to the last checkpoint and use other random numbers."""
ON_NAN: tuple[OnNan, ...] = ("stop", "retry")


@dataclass(frozen=True)
class WatchSettings:
    """When a run is tested, recorded and saved; nothing here changes a weight."""

    evaluate: int | None = None
    """Epochs between tests; there is always one after the last epoch. None: 20 tests in all; 0: only the last."""
    monitor: int = 50
    """Steps between snapshots of smoothing; 0: none."""
    watcher: MakesWatcher = SmoothingProbe
    """Takes the snapshots. The default records token metrics; `smoothing.MonitorWatcher` records more."""
    save: float = 60.0
    """Seconds between checkpoints; one is also written after the first step, and when a run stops."""
    tensorboard: bool = False


@dataclass(frozen=True)
class Progress:
    """The state of a run, for a progress bar."""

    step: int
    steps: int
    epoch: int
    epochs: int
    speed: float
    """Units per second."""
    unit: str
    seconds_left: float
    loss: float | None
    scores: str
    """Of the last evaluation, in words."""


@dataclass(frozen=True)
class RunSettings:
    """How a recipe is run. Only `on_nan` can change the result."""

    device: str | torch.device | None = None
    """By default the GPU if there is one."""
    folder: str | Path | None = None
    """For logs, the checkpoint and the model; without one nothing is written."""
    resume: bool = False
    """Continue from the checkpoint in the folder, or begin if there is none."""
    minutes: float | None = None
    """Stop at a checkpoint after this time."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    compiled: bool | None = None
    """By default on a GPU."""
    on_nan: OnNan = "stop"
    """When a step is not finite. "stop" raises an error that names the first such layer. "retry" returns to the last
    checkpoint, or the beginning, and continues with other random numbers, at most three times; log and result list it.
    """
    force: bool = False
    """Take the folder over even from a process that is still writing there."""
    on_progress: Callable[[Progress], None] | None = None
    on_message: Callable[[str], None] | None = None
    """Receives sentences for the user, such as that compiled code is not used."""

    def __post_init__(self) -> None:
        if self.on_nan not in ON_NAN:
            raise InputError(f"on_nan is {self.on_nan!r}; choose 'stop' or 'retry'")
        if self.minutes is not None and not self.minutes >= 0:
            raise InputError(f"minutes is {self.minutes}; give 0 or more")


@dataclass
class Result:
    """The result of a run."""

    recipe: BaseRecipe
    why: str
    """finished, interrupted, preempted, or out of time."""
    step: int
    steps: int
    scores: Scores
    """After the last epoch, not the best one; empty if the run is not finished."""
    epochs: list[dict[str, Any]] = field(repr=False)
    """The log's lines."""
    smoothing: list[dict[str, Any]] = field(repr=False)
    seconds: float
    """Of all processes that advanced the run: training, evaluation and monitoring, without compiling."""
    folder: Path | None
    model: torch.nn.Module = field(repr=False)
    retries: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Each return to a checkpoint: from which step, to which, and why."""
    machines: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """The hardware and the step from which it was used; several if the run was stopped and resumed."""

    @property
    def finished(self) -> bool:
        return self.why == "finished"

    @property
    def accuracy(self) -> float | None:
        """On the test set, from 0 to 1; None if the task measures something else."""
        return self.scores.get("accuracy")
