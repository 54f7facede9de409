"""Both splits of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from oversmooth_papers.tasks.images.data.images import Images
from oversmooth_papers.tasks.images.data.loading import load
from oversmooth_papers.tasks.images.data.parquet import OnRows


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on, whole (the recipe says which share is used), and to test on."""

    train: Images
    test: Images


def load_splits(what: str | Path, on_message: OnRows | None = None, folder: Path | None = None) -> Splits:
    """By name or from its folder."""
    train, test = (load(what, split, progress=on_message, folder=folder) for split in ("train", "test"))
    return Splits(train, test)


def first_of_test(splits: Splits, count: int) -> Splits:
    """To test on fewer images, where figures may be rough."""
    test = splits.test
    return Splits(splits.train, replace(test, images=test.images[:count], labels=test.labels[:count]))
