"""What goes into a training run and what comes out of it: the data, how it is watched, where it is, what it came to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from oversmooth.train.tasks.images import data
from oversmooth.train.tasks.images.data import Images
from oversmooth.train.tasks.images.data.parquet import OnRows
from oversmooth.train.tasks.images.recipe import Recipe

OnNan = Literal["stop", "retry"]
"""What to do when a step is not finite: stop with a sentence, or go back to the last checkpoint with other draws."""
ON_NAN: tuple[OnNan, ...] = ("stop", "retry")


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on, whole (the recipe says which share is used), and to test on."""

    train: Images
    test: Images


@dataclass(frozen=True)
class WatchSettings:
    """How a run is looked at and when it is saved; nothing here changes a weight."""

    evaluate: int | None = None
    """Test every so many epochs, and after the last; None for 20 times in all, 0 for the last alone."""
    monitor: int = 50
    """Look at smoothing every so many steps; 0 for never."""
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
    images_per_s: float
    seconds_left: float
    loss: float | None
    accuracy: float | None


@dataclass
class Result:
    """What a run came to."""

    recipe: Recipe
    finished: bool
    why: str
    """finished, interrupted, preempted, or out of time."""
    step: int
    steps: int
    accuracy: float | None
    """On the test images after the last epoch, a share."""
    epochs: list[dict[str, Any]] = field(repr=False)
    """The log's lines."""
    smoothing: list[dict[str, Any]] = field(repr=False)
    seconds: float
    """Of training, over all pieces, evaluation and monitoring included, compiling not."""
    folder: Path | None
    model: torch.nn.Module = field(repr=False)
    retries: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Each time it went back to a checkpoint: from which step, to which, and why."""


def load_splits(what: str | Path, on_message: OnRows | None = None, folder: Path | None = None) -> Splits:
    """Both splits of a data set, by name or from its folder."""
    train, test = (data.load(what, split, progress=on_message, folder=folder) for split in ("train", "test"))
    return Splits(train, test)


def first_of_test(splits: Splits, count: int) -> Splits:
    """To test on fewer images, where figures may be rough."""
    test = splits.test
    return Splits(splits.train, replace(test, images=test.images[:count], labels=test.labels[:count]))
