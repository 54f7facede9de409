"""The one form in which training sees its data: encoded images that are read one by one, with a class each."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_bytes
from oversmooth.safety.libraries import import_library

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")  # one of ImageNet's is a PNG that is called JPEG
_MOST = 1 << 28  # bytes of one file
_REMEDY = "fetch it again"


class Source(Protocol):
    """Where encoded images lie. Workers have a copy: arrays, not a million strings, which each of them would touch."""

    def encoded(self, index: int) -> bytes:
        """All bytes of an image."""

    def where(self, index: int) -> str:
        """For people."""


@dataclass(frozen=True)
class Files:
    """``home/FOLDER/NAME``, a folder for each class."""

    home: Path
    folders: tuple[str, ...]
    numbers: NDArray[np.int32]  # (n,): which of the folders
    names: NDArray[np.bytes_]  # (n,)

    def encoded(self, index: int) -> bytes:
        return read_bytes(self._path(index), _REMEDY, _MOST)

    def where(self, index: int) -> str:
        return str(self._path(index))

    def _path(self, index: int) -> Path:
        return self.home / self.folders[self.numbers[index]] / os.fsdecode(bytes(self.names[index]))


@dataclass(frozen=True)
class OneFile:
    """Images one after another in one file, as `parquet.read` keeps them."""

    path: Path
    ends: NDArray[np.int64]  # (n,): where each ends
    origin: str
    """What it was made of, for people."""

    def encoded(self, index: int) -> bytes:
        begin = int(self.ends[index - 1]) if index else 0
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(int(self.ends[index]) - begin)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror or error}); start again") from error

    def where(self, index: int) -> str:
        return f"image {index:,} of {self.origin}"


@dataclass(frozen=True)
class InMemory:
    """A few, for trials."""

    images: Sequence[bytes]

    def encoded(self, index: int) -> bytes:
        return self.images[index]

    def where(self, index: int) -> str:
        return f"image {index:,}"


@dataclass(frozen=True, eq=False)
class Pictures:
    """Encoded images with a class each, checked when made; what they hold is seen as they are decoded."""

    source: Source
    labels: NDArray[np.int64]  # (n,), below len(classes)
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise InputError(f"{self.name} has no images; give data with some")
        if len(self.classes) < 2:
            raise InputError(f"{self.name} has one class, {self.classes[0]!r}; give at least 2 to tell apart")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise InputError(
                f"{self.name} has labels from {low} to {high} and {len(self.classes):,} classes to train on; labels go "
                f"from 0 to {len(self.classes) - 1:,}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Any:
        """Decoded, in colour, as Pillow has it."""
        pil = import_library("PIL.Image", "decoding images", "oversmooth[imagenet]")
        data = self.source.encoded(index)
        try:
            with pil.open(io.BytesIO(data), formats=_FORMATS) as opened:
                return opened.convert("RGB")
        except Exception as error:  # decoders raise whatever they like on broken files
            # Not what Pillow says of a file that it cannot name: the address of a buffer.
            why = "no known image format" if isinstance(error, pil.UnidentifiedImageError) else reason(error)
            raise InputError(f"{self.source.where(index)} does not decode ({why}); {_REMEDY}") from error


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on and to test on, with the same classes."""

    train: Pictures
    test: Pictures

    def __post_init__(self) -> None:
        if (self.train.name, self.train.classes) != (self.test.name, self.test.classes):
            raise InputError(
                f"{self.train.name} and {self.test.name} are not parts of one data set: names or classes differ"
            )

    @property
    def name(self) -> str:
        return self.train.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes
