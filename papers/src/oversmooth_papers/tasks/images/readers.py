"""Readers of the layouts that data sets are published in: CIFAR's pickles and binaries, MNIST's idx files, parquet.

Nothing in a file is ever run.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import pickle
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oversmooth.inputs.parquet import Table, readable
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_bytes
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.common import decoded_image

LAYOUTS = "train-*.parquet, CIFAR's python or binary version (train, train.bin), train-images-idx3-ubyte[.gz]"
_PIXELS = 3 * 32 * 32  # of a CIFAR image
_THREADS = 16  # that decode
_MOST_CLASSES = 1_000_000
_REMEDY = "fetch it again"


class Read(NamedTuple):
    """What the files of a split hold."""

    images: NDArray[np.uint8]  # (n, c, h, w)
    labels: NDArray[np.int64]  # (n,)
    classes: list[str]  # empty where the files name none
    name: str = ""  # of the data set, where its layout shows it


def find(folder: Path, split: str) -> tuple[list[Path], Callable[[list[Path]], Read]] | None:
    """The files of this split in this folder, and what reads them; None where it is in no known layout."""
    if found := _parquet_files(folder, split):
        return found, read_parquet
    batches = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    idx = [f"{'train' if split == 'train' else 't10k'}-{part}-ubyte" for part in ("images-idx3", "labels-idx1")]
    layouts: tuple[tuple[list[str], Callable[[list[Path]], Read]], ...] = (
        ([split], read_pickles),
        (batches, read_pickles),
        ([f"{split}.bin"], read_binary),
        ([f"{name}.bin" for name in batches], read_binary),
        (idx, read_idx),
        ([f"{name}.gz" for name in idx], read_idx),
    )
    for names, read in layouts:
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return files, read
    return None


def _listed(file: Path) -> list[str]:
    """Class names from a text file, a word each; none where there is no such file."""
    return read_bytes(file, "remove it").decode("utf-8", "replace").split() if file.is_file() else []


# --- CIFAR's own: of CIFAR-100 `train` and `test`, of CIFAR-10 batches ------------------------------------------------


def _is_100(files: list[Path]) -> bool:
    return files[0].stem in ("train", "test")


def _cifar(files: list[Path], pixels: NDArray[Any], labels: NDArray[Any], classes: list[str]) -> Read:
    images = np.ascontiguousarray(pixels).reshape(-1, 3, 32, 32)
    return Read(images, labels.astype(np.int64), classes, "cifar100" if _is_100(files) else "cifar10")


def read_binary(files: list[Path]) -> Read:
    """One label byte (CIFAR-100: two, coarse and fine) and 3,072 pixel bytes a row."""
    row = _PIXELS + 1 + _is_100(files)
    for file in files:
        if (size := file.stat().st_size) % row:
            raise InputError(f"{file} has {size:,} bytes, not a whole number of rows of {row:,}; {_REMEDY}")
    table = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, row) for file in files])
    classes = _listed(files[0].parent / ("fine_label_names.txt" if _is_100(files) else "batches.meta.txt"))
    return _cifar(files, table[:, -_PIXELS:], table[:, -_PIXELS - 1], classes)


class _Note:
    """Stands for something of numpy's in a pickle: what it was to be called with, and the state it was given."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):  # of Python's own: the other makes room for whatever place a pickle names
    """A pickle is a program: this one may only name what arrays are written with, and none of that is called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.lstrip("_"), name) == ("codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, _codec: text.encode("latin1")
        if module.startswith("numpy") and name in ("_reconstruct", "_frombuffer", "ndarray", "dtype"):
            return type(name, (_Note,), {})
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_pickles(files: list[Path]) -> Read:
    """CIFAR's "python version": dictionaries of an array and of labels."""
    kind, meta = ("fine_label", "meta") if _is_100(files) else ("label", "batches.meta")
    pixels, labels = (np.concatenate(column) for column in zip(*(_batch(f, f"{kind}s") for f in files), strict=True))
    names: Any = []
    if (file := files[0].parent / meta).is_file():
        names = _unpickled(file).get(f"{kind}_names")
        if not isinstance(names, list):
            raise InputError(f"{file} has no list {kind}_names; {_REMEDY}")
    return _cifar(files, pixels, labels, [_text(name) for name in names])


def _batch(file: Path, key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """``(n, 3072)`` pixels and ``(n,)`` labels."""
    found = _unpickled(file)
    with contextlib.suppress(Exception):  # whatever is there instead
        note, labels = found["data"], found[key]
        if type(note).__name__ == "_frombuffer":
            raw, dtype, shape, order = note.arguments
        else:
            _, shape, dtype, by_column, raw = note.state
            order = "F" if by_column else "C"
        pixels = np.frombuffer(raw, np.uint8).reshape(-1, _PIXELS)
        good = _text(dtype.arguments[0]) == "u1" and _text(order) == "C" and shape == pixels.shape
        if good and len(labels) == len(pixels) and {type(label) for label in labels} == {int}:
            return pixels, np.array(labels, np.int64)
    wanted = f"needs `data`, an array of bytes (n, {_PIXELS}), and `{key}`, as many whole numbers"
    raise InputError(f"{file} {wanted}; {_REMEDY}")


def _unpickled(file: Path) -> dict[str, Any]:
    """The pickled dictionary, with notes in the place of arrays."""
    try:
        found = dict(_Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load())
    except Exception as error:  # a broken pickle makes its reader stumble on anything
        wanted = "no pickled dictionary of numbers, text and arrays alone"
        raise InputError(f"{file} is {wanted} ({reason(error)}); {_REMEDY}") from error
    return {_text(key): value for key, value in found.items()}


def _text(value: Any) -> str:
    """Python 2 pickles text as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


# --- MNIST's idx files, plain or gzipped, as Debian's dataset-fashion-mnist has them ----------------------------------


def read_idx(files: list[Path]) -> Read:
    """The image file and the label file; they do not say whether they show digits or clothes."""
    images, labels = _idx_array(files[0], 3), _idx_array(files[1], 1)
    return Read(images[:, None], labels.astype(np.int64), [])


def _idx_array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Two zeros, 8 for bytes, the number of dimensions, each of them as four bytes, and the array."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            start = opened.read(4 + 4 * dimensions)
            if len(start) < 4 + 4 * dimensions or start[:4] != bytes([0, 0, 8, dimensions]):
                raise InputError(f"{file} does not begin as an idx file of bytes in {dimensions} dimensions; {_REMEDY}")
            shape = tuple(int(size) for size in np.frombuffer(start, ">u4", offset=4))
            wanted = math.prod(shape)
            check_fits(3 * wanted, f"{file} says it has {wanted:,} bytes {shape}, which", _REMEDY)
            data = bytearray(opened.read(wanted + 1))  # no more than that, however much is packed in it
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} is not a readable gzip file ({reason(error)}); {_REMEDY}") from error
    if len(data) != wanted:
        raise InputError(f"{file} says it has {wanted:,} bytes {shape} and has more or fewer; {_REMEDY}")
    return np.frombuffer(data, np.uint8).reshape(shape)


# --- Parquet in the hub's layout: `img` or `image` as encoded bytes, `label` or `fine_label` --------------------------


def _parquet_files(folder: Path, split: str) -> list[Path]:
    """``train-*.parquet`` here, or in the one folder below that has some, as in a copy of the hub's repository."""
    found: dict[Path, list[Path]] = {}
    for file in (*folder.glob(f"{split}-*.parquet"), *folder.glob(f"[!.]*/{split}-*.parquet")):
        if file.is_file():  # no pipe or device, which may never end
            found.setdefault(file.parent, []).append(file)
    if len(found) > 1 and folder not in found:
        names = ", ".join(sorted(below.name for below in found))
        raise InputError(f"{folder} holds several data sets: {names}; name one of them")
    return sorted(found.get(folder) or next(iter(found.values()), []))


def read_parquet(files: list[Path]) -> Read:
    """All rows of these files, in order. A ``fine_label`` means CIFAR-100.

    Class names are the hub's note in the file, or stand in a text file beside it.
    """
    folder = files[0].parent
    whole = Table(Source(folder, "parquet", tuple(files)), ("img", "image"), ("fine_label", "label"), whole=True)
    with readable(files[0]):
        table = import_library("pyarrow", f"reading {folder}").concat_tables(whole.whole_files())
        encoded = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in table.column(0).to_pylist()]
    column, labels = table.column(1), table.column(1).to_numpy()  # with some missing, whole numbers come as floats
    if not np.issubdtype(labels.dtype, np.integer) or labels.max() >= _MOST_CLASSES:
        has, remedy = f"{column.type}, {column.null_count} empty", f"give whole numbers from 0, below {_MOST_CLASSES:,}"
        raise InputError(f"{folder} has labels of {has}; {remedy}")
    names: Any = None
    with contextlib.suppress(KeyError, ValueError, TypeError, RecursionError):
        names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"][whole.extra]["names"]
    classes = [str(name) for name in names] if isinstance(names, list) else _listed(folder / f"{whole.extra}s.txt")
    name = "cifar100" if whole.extra == "fine_label" else ""
    return Read(decoded(encoded, folder), labels.astype(np.int64), classes, name)


def decoded(encoded: Sequence[Any], folder: Path) -> NDArray[np.uint8]:
    """``(n, c, h, w)``; the first image decides on the size and on one channel or three."""

    def pixels(index: int, mode: str = "") -> NDArray[np.uint8]:
        image = decoded_image(encoded[index], f"row {index} of {folder}")
        image = image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
        return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)

    channels, height, width = shape = pixels(0).shape
    what = f"decoding {len(encoded):,} images of {width:,} by {height:,}"
    check_fits(2 * len(encoded) * math.prod(shape), what, "give smaller ones")
    out = np.empty((len(encoded), *shape), np.uint8)

    def fill(index: int) -> None:
        image = pixels(index, "L" if channels == 1 else "RGB")
        if image.shape != shape:
            sizes = f"{image.shape[2]} by {image.shape[1]} and the first is {width} by {height}"
            raise InputError(f"row {index} of {folder} is {sizes}; images must all have one size")
        out[index] = image

    with ThreadPoolExecutor(_THREADS) as pool:  # the decoders themselves let go of the interpreter's lock
        list(pool.map(fill, range(len(encoded))))
    return out
