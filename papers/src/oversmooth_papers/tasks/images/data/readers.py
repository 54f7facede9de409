"""Readers of the layouts that data sets are published in: CIFAR's pickles and binaries, MNIST's idx files, parquet.

Each layout is a pair: which files of a folder hold a split, and what they hold. Nothing in a file is ever run.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import pickle
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oversmooth.inputs.parquet import Table, readable
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_bytes
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.images.data.images import KNOWN, Images, known

_PIXELS = 3 * 32 * 32  # of a CIFAR image
_AT_ONCE = 500  # images that a thread decodes
_MOST_CLASSES = 1_000_000
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Of images in parquet files; Pillow tries them in this order, and no others."""
_REMEDY = "fetch it again"


def _all_of(folder: Path, names: Sequence[str]) -> list[Path]:
    """These files, or none if they are not all there."""
    files = [folder / name for name in names]
    return files if all(file.is_file() for file in files) else []


def _class_names(file: Path) -> list[str]:
    """From a text file, a word each."""
    remedy = "give the names of the classes as text, or remove it"
    try:
        return read_bytes(file, remedy).decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start:,}); {remedy}") from error


# --- CIFAR's own ------------------------------------------------------------------------------------------------------


def cifar_files(folder: Path, split: str, ending: str) -> list[Path]:
    """CIFAR-100's ``train`` or ``test``, or CIFAR-10's batches. ending: ``.bin`` of the binary version."""
    batches = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    return _all_of(folder, [f"{split}{ending}"]) or _all_of(folder, [f"{batch}{ending}" for batch in batches])


def _is_100(files: list[Path]) -> bool:
    return files[0].stem in ("train", "test")


def _cifar(files: list[Path], pixels: NDArray[Any], labels: NDArray[Any], names: list[str] | None, few: bool) -> Images:
    """few: coarse classes, of which there are 20."""
    name = "cifar100" if _is_100(files) else "cifar10"
    usual = list(KNOWN[name].labels) or [str(number) for number in range(20 if few else 100)]
    images = torch.from_numpy(np.ascontiguousarray(pixels)).view(-1, 3, 32, 32)
    return Images(images, torch.from_numpy(labels.astype(np.int64)), names or usual, name)


def read_binary(files: list[Path], *, coarse: bool = False) -> Images:
    """One or two label bytes and 3,072 pixel bytes a row."""
    of_100 = _is_100(files)
    row = _PIXELS + 1 + of_100
    sizes = [file.stat().st_size for file in files]
    for file, size in zip(files, sizes, strict=True):
        if size % row:
            raise InputError(f"{file} has {size:,} bytes, not a whole number of rows of {row:,}; {_REMEDY}")
    check_fits(3 * sum(sizes), f"reading {files[0].parent}", "give fewer images")  # read, joined, without labels
    table = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, row) for file in files])
    listed = ("coarse_label_names.txt" if coarse else "fine_label_names.txt") if of_100 else "batches.meta.txt"
    names = files[0].parent / listed
    classes = _class_names(names) if names.is_file() else None
    return _cifar(files, table[:, -_PIXELS:], table[:, 1 if of_100 and not coarse else 0], classes, coarse)


class _Note:
    """Stands for something of numpy's in a pickle: what it was to be called with, and the state it was given."""

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name, self.arguments, self.state = name, arguments, ()

    def __call__(self, *arguments: Any) -> Any:
        if self.name == "encode" and arguments[1] in ("latin1", b"latin1"):  # how Python 3 writes bytes for Python 2
            return arguments[0].encode("latin1")
        return _Note(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):  # of Python's own: the other makes room for whatever place a pickle names
    """A pickle is a program: this one may only name what arrays are written with, and none of that is called."""

    def find_class(self, module: str, name: str) -> Any:
        arrays = module.startswith("numpy") and name in ("_reconstruct", "_frombuffer", "ndarray", "dtype")
        if not arrays and (module.lstrip("_"), name) != ("codecs", "encode"):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Note(name)


def read_pickles(files: list[Path], *, coarse: bool = False) -> Images:
    """CIFAR's "python version": dictionaries of an array and of labels."""
    kind = ("coarse_label" if coarse else "fine_label") if _is_100(files) else "label"
    parts = [_batch(file, f"{kind}s") for file in files]
    classes, meta = None, files[0].parent / ("meta" if _is_100(files) else "batches.meta")
    if meta.is_file():
        names = _unpickled(meta).get(f"{kind}_names")
        if not isinstance(names, list):
            raise InputError(f"{meta} has no list {kind}_names; {_REMEDY}")
        classes = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names]
    pixels, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _cifar(files, pixels, labels, classes, coarse)


def _batch(file: Path, key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """``(n, 3072)`` pixels and ``(n,)`` labels."""
    held = _unpickled(file)
    try:
        note, labels = held["data"], held[key]
        if note.name == "_frombuffer":
            raw, dtype, shape, order = note.arguments
        else:
            _, shape, dtype, by_column, raw = note.state
            order = "F" if by_column else "C"
        pixels = np.frombuffer(raw, np.uint8).reshape(-1, _PIXELS)
        good = dtype.arguments[0] in ("u1", b"u1") and order in ("C", b"C") and shape == pixels.shape
        if good and len(labels) == len(pixels) and {type(label) for label in labels} == {int}:
            return pixels, np.array(labels, np.int64)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError, OverflowError):
        pass  # whatever is there instead
    raise InputError(
        f"{file} needs `data`, an array of bytes (n, {_PIXELS}), and `{key}`, as many whole numbers; {_REMEDY}"
    )


def _unpickled(file: Path) -> dict[str, Any]:
    """The pickled dictionary, with notes in the place of arrays."""
    check_fits(4 * file.stat().st_size, f"reading {file}", _REMEDY)
    try:
        held = dict(_Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load())
    except Exception as error:  # a broken pickle makes its reader stumble on anything
        raise InputError(
            f"{file} is no pickled dictionary of numbers, text and arrays alone ({reason(error)}); {_REMEDY}"
        ) from error
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in held.items()}


# --- MNIST's idx files, plain or gzipped, as Debian's dataset-fashion-mnist has them ----------------------------------


def idx_files(folder: Path, split: str) -> list[Path]:
    """The image file and the label file."""
    prefix = "train" if split == "train" else "t10k"
    names = [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]
    return _all_of(folder, names) or _all_of(folder, [f"{name}.gz" for name in names])


def read_idx(files: list[Path], name: str) -> Images:
    """``name`` says whether they are digits or clothes, which the files do not."""
    images, labels = _idx_array(files[0], 3), _idx_array(files[1], 1)
    classes = list(KNOWN["fashion-mnist" if "fashion" in name.lower() else "mnist"].labels)
    return Images(torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64)), classes, name)


def _idx_array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    header = 4 + 4 * dimensions
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            start = opened.read(header)
            if len(start) < header or start[:4] != bytes([0, 0, 8, dimensions]):  # 8 is idx's code for bytes
                raise InputError(f"{file} does not begin as an idx file of bytes in {dimensions} dimensions; {_REMEDY}")
            shape = tuple(int(size) for size in np.frombuffer(start, ">u4", dimensions, offset=4))
            wanted = math.prod(shape)
            check_fits(3 * wanted, f"{file} says it has {wanted:,} bytes {shape}, which", _REMEDY)
            data = bytearray(opened.read(wanted + 1))  # no more than that, however much is packed in it
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} is not a readable gzip file ({reason(error)}); {_REMEDY}") from error
    if len(data) != wanted:
        has = f"{len(data):,}" if len(data) < wanted else "more"
        raise InputError(f"{file} says it has {wanted:,} bytes {shape} and has {has}; {_REMEDY}")
    return np.frombuffer(data, np.uint8).reshape(shape)


# --- Parquet in the hub's layout: `img` or `image` as encoded bytes, `label` or `fine_label` --------------------------


def parquet_files(folder: Path, split: str) -> list[Path]:
    """``train-*.parquet`` here, or in the one folder below that has some, as in a copy of the hub's repository."""
    found: dict[Path, list[Path]] = {}
    for file in (*folder.glob(f"{split}-*.parquet"), *folder.glob(f"[!.]*/{split}-*.parquet")):
        if file.is_file():  # no pipe or device, which may never end
            found.setdefault(file.parent, []).append(file)
    if len(found) > 1 and folder not in found:
        names = ", ".join(sorted(below.name for below in found))
        raise InputError(f"{folder} holds several data sets: {names}; name one of them")
    return sorted(found.get(folder) or next(iter(found.values()), []))


def read_parquet(files: list[Path], name: str, *, coarse: bool = False) -> Images:
    """All rows of these files, in order. A ``fine_label`` means CIFAR-100; ``coarse`` takes its 20 classes."""
    labels_in = ("coarse_label",) if coarse else ("fine_label", "label")
    whole = Table(Source(files[0].parent, "parquet", tuple(files)), ("img", "image"), labels_in, whole=True)
    column, tables = whole.columns[1], whole.whole_files()
    integers = import_library("pyarrow.types", f"reading {files[0]}").is_integer
    encoded: list[Any] = []
    where: list[str] = []
    numbers: list[NDArray[np.int64]] = []
    for file, table in zip(files, tables, strict=True):
        with readable(file):
            for chunk in table.column(0).chunks:
                kind = str(chunk.type)
                inside = chunk.field("bytes") if kind.startswith("struct<") and "bytes:" in kind else chunk
                encoded += inside.to_pylist()
        where += [f"row {row} of {file}" for row in range(table.num_rows)]
        labels = table.column(1)
        if labels.null_count or not integers(labels.type):
            raise InputError(f"{file} has labels of {labels.type}, {labels.null_count} empty; give whole numbers")
        numbers.append(labels.to_numpy().astype(np.int64))
    labels = np.concatenate(numbers)
    if labels.max() >= _MOST_CLASSES:
        raise InputError(
            f"{files[0].parent} has a label of {labels.max():,}; labels count classes from 0, and at most "
            f"{_MOST_CLASSES:,} are taken: number them again"
        )
    name = name if column == "label" else "cifar100"
    classes = _parquet_classes(tables[0], column, files[0].parent, name, int(labels.max()) + 1)
    return Images(torch.from_numpy(_decoded(encoded, where)), torch.from_numpy(labels), classes, name)


def _parquet_classes(table: Any, column: str, folder: Path, name: str, least: int) -> list[str]:
    """Names from the hub's note in the file, from a text file beside it, as published, or else plain numbers."""
    names: Any = None
    with contextlib.suppress(KeyError, ValueError, TypeError, RecursionError):
        names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"][column]["names"]
    if names is None and (listed := folder / f"{column}s.txt").is_file():
        names = _class_names(listed)
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    published = known(name)
    count = {"fine_label": 100, "coarse_label": 20}.get(column, max(least, 1))
    return list(published.labels if published else ()) or [str(number) for number in range(count)]


def _decoded(encoded: Sequence[Any], where: Sequence[str]) -> NDArray[np.uint8]:
    """``(n, c, h, w)``; the first image decides on the size and on one channel or three."""
    pil = import_library("PIL.Image", "decoding images")

    def pixels(index: int, mode: str | None = None) -> Any:
        try:
            image = pil.open(io.BytesIO(encoded[index]), formats=_FORMATS)
            return np.asarray(image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB")))
        except Exception as error:  # decoders raise whatever they like on broken files
            formats = ", ".join(_FORMATS)
            raise InputError(f"{where[index]} does not decode as one of {formats}; fetch the file again") from error

    first = pixels(0)
    shape, mode = first.shape, "L" if first.ndim == 2 else "RGB"
    height, width = shape[:2]
    what = f"decoding {len(encoded):,} images of {width:,} by {height:,}"
    check_fits(2 * len(encoded) * first.size, what, "give smaller ones")
    out = np.empty((len(encoded), *shape), np.uint8)

    def some(places: range) -> None:
        for index in places:
            image = pixels(index, mode)
            if image.shape != shape:
                raise InputError(
                    f"{where[index]} is {image.shape[1]} by {image.shape[0]} and the first is {width} by {height}; "
                    "images must all have one size"
                )
            out[index] = image

    with ThreadPoolExecutor() as pool:  # the decoders themselves let go of the interpreter's lock
        starts = range(0, len(encoded), _AT_ONCE)
        list(pool.map(some, [range(start, min(start + _AT_ONCE, len(encoded))) for start in starts]))
    return np.ascontiguousarray(out.reshape(len(out), height, width, -1).transpose(0, 3, 1, 2))
