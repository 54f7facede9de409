"""Images with a class each, read one by one and transformed by timm in worker processes.

Folders are read as timm reads them, parquet files are first unpacked into such folders, and ``painted`` needs no files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from oversmooth.inputs.parquet import Table
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import cache_folder, data_folder, data_place, whole_folder
from oversmooth.safety.libraries import import_library
from oversmooth_papers.engine.ranks import number
from oversmooth_papers.tasks.imagenet.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

Sample = tuple[str | bytes, int]
"""A file, or an encoded image, and its class."""
Transform = Callable[[Any], Tensor]
"""From one of Pillow's images to ``(3, side, side)``."""
IMAGENET, PAINTED = "imagenet", "painted"
FORMS = ("disc", "square", "triangle", "ring")
_COLOURS = ((200, 80, 60), (60, 150, 90), (80, 100, 200), (200, 180, 80))
_HINT = 45  # spread about a class's own colour, of 255
_FOLDERS = ("imagenet", "imagenet-1k", "ILSVRC2012", "ILSVRC")
_LAYOUTS = "train/CLASS/*.JPEG with val/CLASS/*.JPEG, or train-*.parquet with validation-*.parquet"
_EXTRA = "oversmooth-papers[imagenet]"
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")  # one of ImageNet's is a PNG that is called JPEG


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
    pil, drawing = (import_library(f"PIL.{module}", "painting images", _EXTRA) for module in ("Image", "ImageDraw"))
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
    return import_library("timm.data", "training at ImageNet's size", _EXTRA)


def training_transform(recipe: Recipe) -> Transform:
    """Crop, mirror, RandAugment, normalise, erase: each image by itself."""
    data = timm_data()
    transform = data.create_transform(
        recipe.shape.image,
        is_training=True,
        color_jitter=None,  # which timm leaves out with RandAugment, and so do we without it
        auto_augment=recipe.rand_augment or None,
        interpolation=recipe.interpolation,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        re_prob=recipe.erasing,
        re_mode="pixel",
        re_count=1,
    )
    for part in transform.transforms:
        for operation in getattr(part, "ops", ()):  # RandAugment's
            if operation.aug_fn is data.auto_augment.posterize:
                operation.aug_fn = posterized
    return transform


def posterized(image: Any, bits: int, **_settings: Any) -> Any:
    """timm's operation, which asks for 0 bits at the highest magnitude: black, and since Pillow 13 an error."""
    if bits < 1:
        return image.point([0] * 256 * len(image.getbands()))
    return timm_data().auto_augment.posterize(image, bits)


def testing_transform(recipe: Recipe) -> Transform:
    """Resize and crop the middle: 256 and 224."""
    return timm_data().create_transform(
        recipe.shape.image,
        is_training=False,
        interpolation=recipe.interpolation,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop_pct=recipe.crop_ratio,
    )


Key = tuple[int, int]
"""A seed, and which image."""


class Transformed(Dataset[tuple[Tensor, int] | InputError]):
    """``transformed[seed, index]``: an image and its class; all that is drawn for it follows from the seed alone.

    So neither the number of workers nor where a run goes on changes an image.
    """

    def __init__(self, samples: Sequence[Sample], transform: Transform) -> None:
        self.samples, self.transform = samples, transform

    def __getitem__(self, key: Key) -> tuple[Tensor, int] | InputError:
        """An image that does not decode gives its error: raised by a worker, that would come inside a traceback."""
        seed, index = key
        source, label = self.samples[index]
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (timm draws from numpy's global state)
        torch.default_generator.manual_seed(seed >> 1)
        pil = import_library("PIL.Image", "decoding images", _EXTRA)
        try:
            with pil.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as opened:
                image = opened.convert("RGB")
        except Exception as error:  # decoders raise whatever they like on broken files
            # Not what Pillow says of a file that it cannot name: the address of a buffer.
            why = "no known image format" if isinstance(error, pil.UnidentifiedImageError) else reason(error)
            return InputError(f"{source if isinstance(source, str) else index} does not decode ({why}); fetch it again")
        return self.transform(image), label


def batches(
    transformed: Transformed, keys: Sequence[Key], size: int, workers: int, *, pinned: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images ``(size, 3, side, side)`` and classes ``(size,)``. Closed early, it ends its workers."""
    loader: Any = DataLoader(
        transformed,
        batch_size=size,
        sampler=keys,
        num_workers=workers,
        collate_fn=_joined,
        pin_memory=pinned,
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # what a loader draws for itself is not the caller's
    )
    for batch in loader:
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


def worker_count(world: int) -> int:
    """OVERSMOOTH_WORKERS for each process, or the cores shared between those of this machine."""
    if text := os.environ.get("OVERSMOOTH_WORKERS"):
        if not text.isdecimal() or int(text) > 1024:
            raise InputError(f"OVERSMOOTH_WORKERS is {text!r} in the environment; give a whole number, 0 to 1,024")
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // number("LOCAL_WORLD_SIZE", world))
