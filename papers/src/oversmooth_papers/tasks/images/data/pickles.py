"""CIFAR's "python version": pickles, read without running anything that is in them.

A pickle is a program. This one may only name the few things that numpy's arrays are written with, and none of those
is called: each is replaced by a note of what was to be called with what, from which the pixels are taken afterwards.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.images.data.images import Images
from oversmooth_papers.tasks.images.data.known import KNOWN

_SIDE, _PIXELS = 32, 3072
_ARRAYS = {
    (f"numpy{core}{module}", name)
    for core, module, name in (
        (".core", ".multiarray", "_reconstruct"),
        ("._core", ".multiarray", "_reconstruct"),
        (".core", ".numeric", "_frombuffer"),
        ("._core", ".numeric", "_frombuffer"),
        ("", "", "ndarray"),
        ("", "", "dtype"),
    )
} | {("_codecs", "encode"), ("codecs", "encode")}


class _Note:
    """Stands for something of numpy's: what it was called with, and the state it was given."""

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name, self.arguments, self.state = name, arguments, ()

    def __call__(self, *arguments: Any) -> Any:
        if self.name == "encode":  # how Python 3 writes bytes for Python 2
            text, codec = arguments
            if codec not in ("latin1", b"latin1"):
                raise pickle.UnpicklingError(f"asks for the codec {codec!r}")
            return text.encode("latin1")
        return _Note(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"asks for {module}.{name}")
        return _Note(name)


def files(folder: Path, split: str) -> list[Path]:
    """CIFAR-100's ``train`` or ``test``, or CIFAR-10's batches; none if they are not all there."""
    wanted = [folder / split] if (folder / "meta").is_file() else []
    if not wanted:
        names = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
        wanted = [folder / name for name in names]
    return wanted if all(file.is_file() for file in wanted) else []


def read(files: list[Path], *, coarse: bool = False) -> Images:
    """All images of these files, in order."""
    cifar100 = files[0].name in ("train", "test")
    key = ("coarse_labels" if coarse else "fine_labels") if cifar100 else "labels"
    parts = [_part(file, key) for file in files]
    pixels = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, _SIDE, _SIDE)
    labels = torch.tensor([label for _, labels in parts for label in labels], dtype=torch.int64)
    name = "cifar100" if cifar100 else "cifar10"
    return Images(torch.from_numpy(pixels), labels, _names(files[0].parent, cifar100, coarse), name)


def _part(file: Path, key: str) -> tuple[NDArray[np.uint8], list[int]]:
    held = _load(file)
    missing = [name for name in ("data", key) if name not in held]
    if missing:
        raise InputError(f"{file} has {', '.join(map(str, held)) or 'nothing'}; it needs {' and '.join(missing)}")
    pixels, labels = _pixels(file, held["data"]), held[key]
    whole = isinstance(labels, list) and all(type(label) is int and abs(label) < 2**62 for label in labels)
    if not whole or len(labels) != len(pixels):
        raise InputError(
            f"{file} has {len(pixels):,} images and {key} that are not as many whole numbers; fetch it again"
        )
    return pixels, labels


def _load(file: Path) -> dict[str, Any]:
    """The pickled dictionary, with notes in the place of arrays."""
    check_fits(4 * check_plain(file, "fetch it again"), f"reading {file}", "fetch it again")
    try:
        data = file.read_bytes()
        _check_places(data)
        held = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file} is no pickle of images: it {error}; only numbers, text and arrays are read"
            if str(error).startswith("asks for")
            else f"{file} is not a readable pickle ({error}); fetch it again"
        ) from error
    except Exception as error:  # the machine that runs pickles raises whatever a broken one makes it stumble on
        raise InputError(f"{file} is not a readable pickle ({reason(error)}); fetch it again") from error
    if not isinstance(held, dict):
        raise InputError(f"{file} holds a {type(held).__name__}; a CIFAR file holds a dictionary")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in held.items()}


def _check_places(data: bytes) -> None:
    """Refuse a pickle that keeps something at place 4,000,000,000 of its list, which would be made that long."""
    for operation, argument, _ in pickletools.genops(data):
        slot = int(argument or 0) if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") else 0
        if slot > len(data):
            raise pickle.UnpicklingError(f"asks for place {slot:,}")


def _pixels(file: Path, note: Any) -> NDArray[np.uint8]:
    """``(n, 3072)`` from the note that stands for the array."""
    shape: Any = None
    if isinstance(note, _Note) and note.name == "_reconstruct" and len(note.state) == 5:
        _, shape, kind, by_column, raw = note.state
    elif isinstance(note, _Note) and note.name == "_frombuffer" and len(note.arguments) == 4:
        raw, kind, shape, order = note.arguments
        by_column = order not in ("C", b"C")
    good = (
        isinstance(shape, tuple)
        and len(shape) == 2
        and all(type(size) is int for size in shape)
        and isinstance(kind, _Note)
        and kind.arguments[:1] in ((b"u1",), ("u1",))
        and not by_column
        and isinstance(raw, bytes | bytearray)
        and shape[1] == _PIXELS
        and len(raw) == shape[0] * _PIXELS
    )
    if not good:
        raise InputError(f"{file} has `data` that is no array of bytes (n, {_PIXELS}); fetch it again")
    return np.frombuffer(bytearray(raw), np.uint8).reshape(-1, _PIXELS)


def _names(folder: Path, cifar100: bool, coarse: bool) -> list[str]:
    file = folder / ("meta" if cifar100 else "batches.meta")
    key = ("coarse_label_names" if coarse else "fine_label_names") if cifar100 else "label_names"
    if not file.is_file():
        return list(KNOWN["cifar10"].labels)
    names = _load(file).get(key)
    if not isinstance(names, list):
        raise InputError(f"{file} has no list {key}; fetch it again")
    return [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names]
