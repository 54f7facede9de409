"""How a training run is watched, where it is, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from oversmooth_papers.engine.recipe import BaseRecipe, Scores
from oversmooth_papers.engine.smoothing import MakesWatcher, SmoothingProbe

OnNan = Literal["stop", "retry"]
"""What to do when a step is not finite: stop with a sentence, or go back to the last checkpoint with other draws."""
ON_NAN: tuple[OnNan, ...] = ("stop", "retry")


@dataclass(frozen=True)
class WatchSettings:
    """How a run is watched and when it is saved; nothing here changes a weight."""

    evaluate: int | None = None
    """Test every so many epochs, and after the last; None for 20 times in all, 0 for the last alone."""
    monitor: int = 50
    """Take a snapshot of smoothing every so many steps; 0 for never."""
    watcher: MakesWatcher = SmoothingProbe
    """What takes it: by default of tokens alone; `smoothing.MonitorWatcher` sees more."""
    save: float = 60.0
    """Seconds between checkpoints; one is also written after the first step, and when a run stops."""
    tensorboard: bool = False


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

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


@dataclass
class Result:
    """What a run came to."""

    recipe: BaseRecipe
    why: str
    """finished, interrupted, preempted, or out of time."""
    step: int
    steps: int
    scores: Scores
    """After the last epoch, never of the best one; empty before."""
    epochs: list[dict[str, Any]] = field(repr=False)
    """The log's lines."""
    smoothing: list[dict[str, Any]] = field(repr=False)
    seconds: float
    """Of training, over all pieces, evaluation and monitoring included, compiling not."""
    folder: Path | None
    model: torch.nn.Module = field(repr=False)
    retries: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Each time it went back to a checkpoint: from which step, to which, and why."""
    machines: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """What it ran on, from which step, by the log in its folder; several where it was stopped and went on."""

    @property
    def finished(self) -> bool:
        return self.why == "finished"

    @property
    def accuracy(self) -> float | None:
        """On the test set, a share, where that is what the task measures."""
        return self.scores.get("accuracy")
