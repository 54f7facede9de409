"""Images with a class each, from folders, from parquet or painted; transformed as timm does, and read by workers."""

from __future__ import annotations

import functools
import io
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from oversmooth.inputs.parquet import Table, readable
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth.safety.processes import number
from oversmooth_papers.tasks.common import data_home, decoded_image

Sample = tuple[str | bytes, int]  # a file, or an encoded image, and its class
Transform = Callable[[Any], Tensor]  # from one of Pillow's images to (3, side, side)
FORMS = ("disc", "square", "triangle", "ring")
_COLOURS = ((200, 80, 60), (60, 150, 90), (80, 100, 200), (200, 180, 80))
_FOLDERS = ("imagenet", "imagenet-1k", "ILSVRC2012", "ILSVRC")
_LAYOUTS = "train/CLASS/*.JPEG with val/CLASS/*.JPEG, or train-*.parquet with validation-*.parquet"


def library(module: str) -> Any:
    """timm or Pillow, or one sentence that names the extra to install."""
    return import_library(module, "training at ImageNet's size", "oversmooth-papers[imagenet]")


class Splits(NamedTuple):
    """Images to train on and to test on."""

    train: Sequence[Sample]
    test: Sequence[Sample]
    classes: Sequence[str]
    name: str


def load_splits(what: str | Path) -> Splits:
    """By name, imagenet (looked for in OVERSMOOTH_DATA) or painted; or from a folder.

    Folders: ``train/CLASS/*`` and ``val/CLASS/*``. Parquet: ``train-*.parquet`` and ``validation-*.parquet``, here or
    in ``data/``, with ``image`` and ``label``.
    """
    if str(what) == "painted":
        return painted()
    remedy = f"give painted, or a folder that has {_LAYOUTS}"
    home = data_home(what, _FOLDERS if str(what) == "imagenet" else (), remedy)
    name = "imagenet" if home.resolve().name in _FOLDERS else home.resolve().name
    for inside in (home, home / "data"):
        files = [sorted(inside.glob(f"{split}*.parquet")) for split in ("train", "val")]
        if all(files):
            train, test = (ParquetImages(tuple(some)) for some in files)
            return Splits(train, test, [str(label) for label in range(max(train.labels + test.labels) + 1)], name)
    readers = []
    for folder in (home / "train", home / "val" if (home / "val").is_dir() else home / "validation"):
        try:
            readers.append(library("timm.data").ImageDataset(str(folder)).reader)
        except (RuntimeError, AssertionError) as error:  # it is empty, or not there
            raise InputError(f"{folder} has no images; {remedy}") from error
    numbers, theirs = (reader.class_to_idx for reader in readers)
    if unknown := sorted(theirs.keys() - numbers.keys()):
        raise InputError(f"{home} has no images of {unknown[0]!r} to train on, and some to test on; {remedy}")
    ours = [numbers[label] for label in theirs]
    return Splits(readers[0].samples, [(file, ours[label]) for file, label in readers[1].samples], list(numbers), name)


class ParquetImages(Sequence[Sample]):
    """Rows of parquet files. To read one means to read its group of rows."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self.files = files
        _table(files)  # which looks at the files
        with readable(files[0]):
            table = import_library("pyarrow.parquet", f"reading {files[0]}").read_table([*files], columns=["label"])
            self.labels = table["label"].to_pylist()
        if wrong := [label for label in self.labels if not isinstance(label, int) or label < 0]:
            raise InputError(f"{files[0].parent} has the label {wrong[0]!r}; give whole numbers, 0 or more")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        table = _table(self.files)
        encoded = next(table.rows([index])).encoded(table.column)
        return encoded if isinstance(encoded, bytes) else b"", self.labels[index]


@functools.cache
def _table(files: tuple[Path, ...]) -> Table:
    """Not kept by `ParquetImages`, which workers may have to pickle."""
    return Table(Source(files[0].parent, "parquet", files), ("image", "img"))


def painted(train: int = 800, test: int = 200, *, size: int = 48) -> Splits:
    """Forms on grainy ground, as JPEGs in memory: for trials that need no files.

    Every picture is fixed by its number, and none is in both parts. The class is the form; its colour only hints at it.
    """
    images = [(_picture(number, size), number % len(FORMS)) for number in range(train + test)]
    return Splits(images[:train], images[train:], FORMS, "painted")


def _picture(number: int, size: int) -> bytes:
    draws, form = np.random.default_rng([15, number]), number % len(FORMS)
    height, width = draws.integers(size, size + size // 3 + 1, 2)
    radius = draws.uniform(0.25, 0.42) * min(height, width)
    y, x = np.mgrid[:height, :width]
    v, u = ((axis - length * draws.uniform(0.45, 0.55)) / radius for axis, length in ((y, height), (x, width)))
    distance, square = np.hypot(u, v), np.maximum(abs(u), abs(v)) < 1
    pixels = draws.normal(draws.uniform(60, 190, 3), 12, (height, width, 3))
    inside = (distance < 1, square, square & (2 * abs(u) < 1 + v), (distance < 1) & (distance > 2 / 3))[form]
    pixels[inside] = draws.normal(_COLOURS[form], 45)
    buffer = io.BytesIO()
    library("PIL.Image").fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def transform_of(settings: dict[str, Any]) -> Transform:
    """timm's, by the recipe's `augmentation` or `preprocessing`."""
    timm = library("timm.data")
    transform = timm.create_transform(**settings)
    for part in transform.transforms:
        for operation in getattr(part, "ops", ()):  # RandAugment's
            if operation.aug_fn is timm.auto_augment.posterize:
                operation.aug_fn = posterized
    return transform


def posterized(image: Any, bits: int, **_settings: Any) -> Any:
    """timm's operation, which asks for 0 bits at the highest magnitude: black, and since Pillow 13 an error."""
    return library("timm.data").auto_augment.posterize(image, bits) if bits else image.point(lambda _value: 0)


class Transformed(Dataset[tuple[Tensor, int] | InputError]):
    """``transformed[place]``: the image at this place of an order, and its class.

    All that is drawn for it follows from the seed and the place: neither the number of workers nor where a run goes on
    changes an image.
    """

    def __init__(
        self, samples: Sequence[Sample], transform: Transform, order: Sequence[int] | Tensor, seed: int = 0
    ) -> None:
        self.samples, self.transform, self.order, self.seed = samples, transform, order, seed

    def __getitem__(self, place: int) -> tuple[Tensor, int] | InputError:
        """An image that does not decode gives its error: raised by a worker, that would come inside a traceback."""
        index = int(self.order[place])
        random.seed(f"{self.seed} {place}")
        np.random.seed(random.getrandbits(32))  # noqa: NPY002 (timm draws from numpy's global state)
        torch.default_generator.manual_seed(random.getrandbits(63))
        source, label = self.samples[index]
        try:
            if isinstance(source, str):
                image = decoded_image(Path(source), source)
            else:
                image = decoded_image(source, f"image {index}")
        except InputError as error:
            return error
        return self.transform(image.convert("RGB")), label


def batches(
    transformed: Transformed, places: Sequence[int], size: int, workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images ``(size, 3, side, side)`` and classes ``(size,)`` for a device. Workers end when it is closed."""
    how: dict[str, Any] = dict(collate_fn=_joined, worker_init_fn=_ignore_signals, pin_memory=device.type == "cuda")
    for batch in DataLoader(transformed, size, sampler=places, num_workers=workers, **how):
        if isinstance(batch, InputError):
            raise batch
        yield batch


def _joined(samples: list[Any]) -> Any:
    return next((sample for sample in samples if isinstance(sample, InputError)), None) or default_collate(samples)


def _ignore_signals(_worker: int) -> None:
    """Signals to stop go to all processes of a terminal or a job: the run saves first, and then ends its workers."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def worker_count() -> int:
    """OVERSMOOTH_WORKERS for each process, or the cores shared between those of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = number("LOCAL_WORLD_SIZE", number("WORLD_SIZE", 1))
    return number("OVERSMOOTH_WORKERS", max(1, cores // processes))
