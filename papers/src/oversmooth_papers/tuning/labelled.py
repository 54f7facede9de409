"""Labelled images for a classifier, read once and held in memory as the model takes them.

Labels are those of a parquet file or an .npz, or the folder that an image lies in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch
from torch import Tensor

from oversmooth.inputs.batches import Batch
from oversmooth.models import Loaded
from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth.trace.feed import class_count

_ALL = 10_000_000
_AT_ONCE = 32
_REMEDY = "give parquet with `image` and `label`, .npz with `images` and `labels`, or a folder for each class"


@dataclass(frozen=True)
class Labelled:
    """Images ``(n, channels, h, w)``, preprocessed, and their classes ``(n,)``; on the CPU."""

    images: Tensor
    labels: Tensor
    what: str
    """A sentence's worth on where they are from."""
    argument: str
    """What the model calls images."""
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def read_labelled(loaded: Loaded, source: Path, *, count: int | None = None) -> Labelled:
    """All images of a source, or ``count`` of them evenly spread, each with its label.

    Args:
        loaded: the classifier.
        source: labelled images, as `_REMEDY` says.
        count: at most so many; None: all.
    """
    if loaded.kind != "vision":
        raise InputError(f"{loaded.name} takes no images; give an image classifier")
    inputs = loaded.inputs(source, count=count or _ALL, batch=_AT_ONCE)
    assert loaded.preprocessing is not None
    size = math.prod(loaded.preprocessing.size) * len(loaded.preprocessing.mean)
    check_fits(2 * 4 * size * inputs.count, f"{inputs.count:,} images of {source}", "take fewer with --inputs")
    batches = list(inputs)
    images = torch.cat([batch.inputs[loaded.argument] for batch in batches])
    labels = _labels(loaded, source, batches)
    if (classes := class_count(loaded.model)) is not None:
        for name, label in zip((n for b in batches for n in b.names), labels.tolist(), strict=True):
            if not 0 <= label < classes:
                known = f"{loaded.name} knows the classes 0 to {classes - 1}"
                raise InputError(f"{name} of {source} has the label {label}, and {known}; give data of its classes")
    return Labelled(images, labels, inputs.what, loaded.argument, tuple(inputs.skipped))


def _labels(loaded: Loaded, source: Path, batches: Sequence[Batch]) -> Tensor:
    labels = [batch.labels for batch in batches if batch.labels is not None]
    if len(labels) == len(batches):
        return torch.cat(labels).long()
    folders = [PurePath(name).parts[:-1] for batch in batches for name in batch.names]
    if labels or not source.is_dir() or not all(folders):
        raise InputError(f"{source} has no labels, or not for all images; {_REMEDY}")
    by_name = _classes_by_name(loaded, source, sorted({parts[0] for parts in folders}))
    return torch.tensor([by_name[parts[0]] for parts in folders])


def _classes_by_name(loaded: Loaded, source: Path, folders: list[str]) -> dict[str, int]:
    """The class of each folder: by its name among the model's, by its number, or in the order of the alphabet."""
    config = getattr(loaded.model, "config", None)
    known = {str(name): int(index) for name, index in (getattr(config, "label2id", None) or {}).items()}
    if all(folder in known for folder in folders):
        return {folder: known[folder] for folder in folders}
    if all(folder.isascii() and folder.isdigit() for folder in folders):
        return {folder: int(folder) for folder in folders}
    classes = class_count(loaded.model)
    every = sorted(path.name for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
    if classes == len(every):
        return {folder: every.index(folder) for folder in folders}
    what = f"{source} has {len(every):,} folders that are no classes of {loaded.name} by name, number or count"
    raise InputError(f"{what} (it knows {classes}); name them by the numbers of the classes, from 0")
