"""Images in the hub's parquet layout: ``img`` or ``image`` as encoded bytes, ``label`` or ``fine_label``.

Not for reading the files: that is inputs/parquet.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oversmooth.inputs.parquet import Table, readable
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.images.data.images import Images, class_names
from oversmooth_papers.tasks.images.data.known import Known, known

OnRows = Callable[[int, int], None]
"""Told how many images are read, and of how many."""
_AT_ONCE = 500
_MOST_CLASSES = 1_000_000


def files(folder: Path, split: str) -> list[Path]:
    """``train-*.parquet`` here, or in the one folder below that has some, as in a copy of the hub's repository."""
    here = _plain(folder, f"{split}-*.parquet")
    below = {file.parent for file in _plain(folder, f"*/{split}-*.parquet") if not file.parent.name.startswith(".")}
    if here or not below:
        return here
    if len(below) > 1:
        names = ", ".join(sorted(folder_below.name for folder_below in below))
        raise InputError(f"{folder} holds several data sets: {names}; name one of them")
    return _plain(below.pop(), f"{split}-*.parquet")


def _plain(folder: Path, pattern: str) -> list[Path]:
    """Without pipes and devices, which may never end."""
    return sorted(file for file in folder.glob(pattern) if file.is_file())


def read(files: Sequence[Path], name: str, *, coarse: bool = False, progress: OnRows | None = None) -> Images:
    """All rows of these files, in order. CIFAR-100 is told by its ``fine_label``; ``coarse`` takes its 20 classes."""
    labels_in = ("coarse_label",) if coarse else ("fine_label", "label")
    whole = Table(Source(files[0].parent, "parquet", tuple(files)), ("img", "image"), labels_in, whole=True)
    column = whole.columns[1]
    tables = whole.whole_files()
    encoded = [data for file, table in zip(files, tables, strict=True) for data in _bytes(table, file)]
    pixels = _Decoder(encoded, [f"row {row} of {file}" for file, row in _rows(files, tables)])(progress)
    labels = np.concatenate([_labels(table, file) for file, table in zip(files, tables, strict=True)])
    if labels.max() >= _MOST_CLASSES:
        raise InputError(
            f"{files[0].parent} has a label of {labels.max():,}; labels count classes from 0, and at most "
            f"{_MOST_CLASSES:,} are taken: number them again"
        )
    cifar100 = column in ("fine_label", "coarse_label")
    name = "cifar100" if cifar100 else name
    classes = _classes(tables[0], column, files[0].parent, known(name), int(labels.max()) + 1)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), classes, name)


def _rows(files: Sequence[Path], tables: Sequence[Any]) -> Iterator[tuple[Path, int]]:
    for file, table in zip(files, tables, strict=True):
        yield from ((file, row) for row in range(table.num_rows))


def _bytes(table: Any, file: Path) -> Iterator[Any]:
    with readable(file):
        for chunk in table.column(0).chunks:
            kind = str(chunk.type)
            yield from (chunk.field("bytes") if kind.startswith("struct<") and "bytes:" in kind else chunk).to_pylist()


def _labels(table: Any, file: Path) -> NDArray[np.int64]:
    column = table.column(1)
    whole = import_library("pyarrow.types", f"reading {file}").is_integer(column.type)
    if column.null_count or not whole:
        raise InputError(
            f"{file} has a label column of {column.type} with {column.null_count} empty; labels must be whole numbers"
        )
    return column.to_numpy().astype(np.int64)


def _classes(table: Any, column: str, folder: Path, kind: Known | None, least: int) -> list[str]:
    """Names from the hub's note in the file, from a text file beside it, as published, or else plain numbers."""
    try:
        note = json.loads((table.schema.metadata or {})[b"huggingface"])
        names = note["info"]["features"][column]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        listed = folder / f"{column}s.txt"
        names = class_names(listed) if listed.is_file() else None
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    if kind is not None and kind.labels:
        return list(kind.labels)
    count = {"fine_label": 100, "coarse_label": 20}.get(column, least)
    return [str(number) for number in range(max(count, 1))]


class _Decoder:
    """Encoded images as ``(n, c, h, w)`` bytes; the first decides on the size and on one channel or three."""

    def __init__(self, encoded: Sequence[Any], where: Sequence[str]) -> None:
        self._pil = import_library("PIL.Image", "decoding images")
        self._encoded, self._where = encoded, where
        # Once the format is known, only its decoder is tried: Pillow asks seven first, and half the time is theirs.
        self._formats: tuple[str, ...] | None = None
        image = self._open(0)
        self._formats = (image.format,)
        self._mode, self._size = "L" if image.mode in ("1", "L") else "RGB", image.size
        width, height = image.size
        size = len(encoded) * height * width * len(self._mode)
        check_fits(2 * size, f"decoding {len(encoded):,} images of {width:,} by {height:,}", "give smaller ones")
        self._pixels = np.empty((len(encoded), height * width * len(self._mode)), np.uint8)

    def __call__(self, progress: OnRows | None) -> NDArray[np.uint8]:
        total, done = len(self._encoded), 0
        some = [range(first, min(first + _AT_ONCE, total)) for first in range(0, total, _AT_ONCE)]
        with ThreadPoolExecutor() as pool:  # the decoders themselves let go of the interpreter's lock
            for count in pool.map(self._some, some):
                done += count
                if progress is not None:
                    progress(done, total)
        width, height = self._size
        pixels = self._pixels.reshape(total, height, width, len(self._mode))
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def _some(self, places: range) -> int:
        for index in places:
            image = self._open(index)
            if image.size != self._size:
                width, height = self._size
                raise InputError(
                    f"{self._where[index]} is {image.width} by {image.height} and the first is {width} by {height}; "
                    f"images must all have one size"
                )
            try:
                right = image if image.mode == self._mode else image.convert(self._mode)
                self._pixels[index] = np.frombuffer(right.tobytes(), np.uint8)
            except Exception as error:  # decoders raise whatever they like on broken files
                raise InputError(
                    f"{self._where[index]} does not decode ({reason(error)}); fetch the file again"
                ) from error
        return len(places)

    def _open(self, index: int) -> Any:
        data = self._encoded[index]
        if not isinstance(data, bytes):
            raise InputError(f"{self._where[index]} has no image bytes; fetch the file again")
        for formats in (self._formats, None):
            try:
                return self._pil.open(io.BytesIO(data), formats=formats)
            except self._pil.UnidentifiedImageError:
                continue  # perhaps of another format than the first
            except Exception as error:
                raise InputError(
                    f"{self._where[index]} does not decode ({reason(error)}); fetch the file again"
                ) from error
        raise InputError(f"{self._where[index]} does not decode (no known image format); fetch the file again")
