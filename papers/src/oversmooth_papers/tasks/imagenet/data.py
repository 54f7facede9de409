"""Images with a class each, to be read one by one.

Folders are read as timm reads them, parquet files are first unpacked into such folders, and ``painted`` needs no files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oversmooth.inputs.parquet import Table
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import cache_folder, data_folder, data_place, whole_folder
from oversmooth.safety.libraries import import_library

Sample = tuple[str | bytes, int]
"""A file, or an encoded image, and its class."""
IMAGENET, PAINTED = "imagenet", "painted"
FORMS = ("disc", "square", "triangle", "ring")
_COLOURS = ((200, 80, 60), (60, 150, 90), (80, 100, 200), (200, 180, 80))
_HINT = 45  # spread about a class's own colour, of 255
_FOLDERS = ("imagenet", "imagenet-1k", "ILSVRC2012", "ILSVRC")
_LAYOUTS = "train/CLASS/*.JPEG with val/CLASS/*.JPEG, or train-*.parquet with validation-*.parquet"
EXTRA = "oversmooth-papers[imagenet]"


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on and to test on."""

    train: Sequence[Sample]
    test: Sequence[Sample]
    classes: Sequence[str]
    name: str


def load_splits(what: str | Path) -> Splits:
    """By name, imagenet or painted; or from a folder that holds images.

    imagenet is looked for in OVERSMOOTH_DATA, in ``data/`` or not. Folders: ``train/CLASS/*.JPEG`` and ``val/CLASS/*``.
    Parquet: ``train-*.parquet`` and ``validation-*.parquet``, here or in ``data/``, with ``image`` and ``label``.
    """
    if str(what) == PAINTED:
        return painted()
    home = Path(what) if Path(what).is_dir() else data_folder(*_FOLDERS) if str(what) == IMAGENET else None
    if home is None:
        where = f"not in {data_place()}" if str(what) == IMAGENET else "no folder"
        raise InputError(f"{what} is {where}; give {PAINTED}, or a folder that has {_LAYOUTS}")
    name = IMAGENET if home.resolve().name in _FOLDERS else home.resolve().name
    for inside in (home, home / "data"):
        files = {split: sorted(inside.glob(f"{split}*.parquet")) for split in ("train", "val")}
        if all(files.values()):
            home = _unpacked(files)
    folders = [home / "train", home / "val" if (home / "val").is_dir() else home / "validation"]
    if not all(folder.is_dir() for folder in folders):
        raise InputError(f"{home} does not hold images to train on and to test on; give {_LAYOUTS}")
    readers = []
    for folder in folders:
        try:
            readers.append(timm_data().ImageDataset(str(folder)).reader)
        except RuntimeError as error:
            raise InputError(f"{folder} has no images; give {_LAYOUTS}") from error
    train, test = readers
    if unknown := sorted(test.class_to_idx.keys() - train.class_to_idx.keys()):
        raise InputError(f"{folders[1]} has the class {unknown[0]!r}, which {folders[0]} has not; give both the same")
    ours = {number: train.class_to_idx[name] for name, number in test.class_to_idx.items()}
    tested = [(file, ours[label]) for file, label in test.samples]
    return Splits(train.samples, tested, list(train.class_to_idx), name)


def _unpacked(files: dict[str, list[Path]]) -> Path:
    """A folder in the cache with the images of parquet files, written once: ``train/LABEL/ROW.JPEG``.

    A parquet file is read by groups of rows, a hundred photographs or so: to read them in any order, every image would
    cost a hundred.
    """
    every = [file for parts in files.values() for file in parts]
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in every]
    home = cache_folder() / f"pictures-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}"
    with _alone(home.with_suffix(".lock")):
        if not home.is_dir():
            with whole_folder(home) as temporary:
                for split, parts in files.items():
                    _unpack(parts, temporary / split)
    return home


def _unpack(parts: list[Path], folder: Path) -> None:
    table = Table(Source(parts[0].parent, "parquet", tuple(parts)), ("image", "img"), ("label",))
    for place, row in enumerate(table.rows()):
        encoded, label = row.encoded(table.column), row.values.get("label")
        if not isinstance(encoded, bytes) or not isinstance(label, int):
            raise InputError(f"{row.where} is no image with a number as label; give columns image and label")
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / str(label) / f"{place}.JPEG").write_bytes(encoded)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Of the processes that torchrun starts at once one unpacks, and the others wait for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise InputError(
            f"{path.parent} cannot be written ({error.strerror or error}); set OVERSMOOTH_CACHE to a folder that can"
        ) from error
    with lock:
        with contextlib.suppress(ImportError, OSError):  # where there is none, each unpacks for itself
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def painted(train: int = 800, test: int = 200, *, size: int = 48) -> Splits:
    """Forms on grainy ground, as JPEGs in memory: for trials that need no files.

    Every picture is fixed by its number, and none is in both parts. The class is the form; its colour only hints at it.
    """
    images = [(_picture(number, size), number % len(FORMS)) for number in range(train + test)]
    return Splits(images[:train], images[train:], FORMS, PAINTED)


def _picture(number: int, size: int) -> bytes:
    pil, drawing = (import_library(f"PIL.{module}", "painting images", EXTRA) for module in ("Image", "ImageDraw"))
    random = np.random.default_rng([15, number])
    width, height = (int(length) for length in random.integers(size, size + size // 3 + 1, 2))
    ground = random.normal(random.uniform(60, 190, 3), 12, (height, width, 3))
    image = pil.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
    radius = random.uniform(0.25, 0.42) * min(width, height)
    x, y = (random.uniform(0.45 * length, 0.55 * length) for length in (width, height))
    form = FORMS[number % len(FORMS)]
    colour = tuple(int(v) for v in random.normal(_COLOURS[number % len(FORMS)], _HINT).clip(0, 255))
    draw, box = drawing.Draw(image), (x - radius, y - radius, x + radius, y + radius)
    if form == "disc":
        draw.ellipse(box, fill=colour)
    elif form == "square":
        draw.rectangle(box, fill=colour)
    elif form == "triangle":
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=colour)
    else:
        draw.ellipse(box, outline=colour, width=max(2, int(radius / 3)))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def timm_data() -> Any:
    """The part of timm that makes batches."""
    return import_library("timm.data", "training at ImageNet's size", EXTRA)
