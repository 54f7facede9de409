"""Images in parquet files, copied once into a file of the cache from which each can be read alone.

A parquet file is read by groups of rows, a hundred photographs or so: to read them in any order, every image would cost
a hundred.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oversmooth.inputs.parquet import Table
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import cache_folder, whole_file
from oversmooth.safety.machine import in_words
from oversmooth_papers.tasks.imagenet.data.pictures import OneFile, Pictures, Splits

_VERSION = 1  # of what is stored: raise it when `_unpack` comes to write something else
_MOST_CLASSES = 1_000_000


def files(folder: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """``NAME-*.parquet`` and ``NAME.parquet``, of the first name that has some."""
    for name in names:
        both = (*folder.glob(f"{name}-*.parquet"), folder / f"{name}.parquet")
        if there := tuple(sorted(file for file in both if file.is_file())):
            return there
    return ()


def read(train: tuple[Path, ...], test: tuple[Path, ...], name: str) -> Splits:
    """Classes are numbered, as many as the labels to train on say."""
    (train_images, train_labels), (test_images, test_labels) = _unpacked(train), _unpacked(test)
    if (most := int(train_labels.max())) >= _MOST_CLASSES:
        raise InputError(
            f"{train[0].parent} has a label of {most:,}; labels count classes from 0, and at most {_MOST_CLASSES:,} "
            "are taken: number them again"
        )
    classes = tuple(str(number) for number in range(max(1, most + 1)))
    return Splits(
        Pictures(train_images, train_labels, classes, name), Pictures(test_images, test_labels, classes, name)
    )


def _unpacked(parts: tuple[Path, ...]) -> tuple[OneFile, NDArray[np.int64]]:
    facts = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in parts]
    key = hashlib.sha256(json.dumps([_VERSION, facts]).encode()).hexdigest()[:24]
    data = cache_folder() / f"pictures-{key}.bin"
    index = data.with_suffix(".npy")
    with _alone(data):
        ends_and_labels = _index(data, index)
        if ends_and_labels is None:
            needed, free = sum(size for _, size, _ in facts), shutil.disk_usage(data.parent).free
            if needed > free:
                raise InputError(
                    f"unpacking {parts[0].parent} needs {in_words(needed)} in {data.parent}, and {in_words(free)} are "
                    "free; make room, or set OVERSMOOTH_CACHE to a folder with more"
                )
            ends_and_labels = _unpack(parts, data)
            with whole_file(index) as temporary, temporary.open("wb") as file:
                np.save(file, ends_and_labels)
    ends, labels = ends_and_labels
    return OneFile(data, ends, str(parts[0].parent if len(parts) > 1 else parts[0])), labels


def _index(data: Path, index: Path) -> NDArray[np.int64] | None:
    """``(2, n)``: ends and labels, if both files are there and belong together."""
    with contextlib.suppress(OSError, ValueError, EOFError):
        both = np.load(index, allow_pickle=False)
        if both.dtype == np.int64 and both.ndim == 2 and both.shape[1] and data.stat().st_size == int(both[0, -1]):
            return both
    return None


def _unpack(parts: tuple[Path, ...], data: Path) -> NDArray[np.int64]:
    table = Table(Source(parts[0].parent, "parquet", parts), ("image", "img"), ("label",))
    if table.extra is None:
        raise InputError(f"{parts[0]} has no column named label; give images with their classes")
    ends, labels, end = [], [], 0
    with whole_file(data) as temporary, temporary.open("wb") as file:
        for row in table.rows():
            encoded, label = row.encoded(table.column), row.values[table.extra]
            if not isinstance(encoded, bytes):
                raise InputError(f"{row.where} has no image bytes; fetch the file again")
            if not isinstance(label, int):
                raise InputError(f"{row.where} has the label {label!r}; labels must be whole numbers")
            file.write(encoded)
            end += len(encoded)
            ends.append(end)
            labels.append(label)
    return np.array([ends, labels], dtype=np.int64)


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Of the processes that torchrun starts at once one unpacks, and the others wait for it."""
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        lock = data.with_suffix(".lock").open("w")
    except OSError as error:
        raise InputError(
            f"{data.parent} cannot be written ({error.strerror or error}); set OVERSMOOTH_CACHE to a folder that can"
        ) from error
    with lock:
        with contextlib.suppress(ImportError, OSError):  # where there is none, each unpacks for itself
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
