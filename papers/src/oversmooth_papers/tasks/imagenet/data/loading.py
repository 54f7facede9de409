"""Which files a name or a folder stands for: a folder for each class, parquet files, or painted pictures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from oversmooth.inputs.sources import IMAGES
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder, data_place
from oversmooth_papers.tasks.imagenet.data import parquet
from oversmooth_papers.tasks.imagenet.data.painted import NAME, painted
from oversmooth_papers.tasks.imagenet.data.pictures import Files, Pictures, Splits

IMAGENET = "imagenet"
_FOLDERS = ("imagenet", "imagenet-1k", "ILSVRC2012", "ILSVRC")
_PARTS = {"train": ("train",), "val": ("val", "validation")}
_LAYOUTS = "train/CLASS/*.JPEG with val/CLASS/*.JPEG, or train-*.parquet with validation-*.parquet"


def load_splits(what: str | Path) -> Splits:
    """By name, imagenet or painted; or from a folder that holds images.

    imagenet is looked for in OVERSMOOTH_DATA, in ``data/`` or not. Folders: ``train/CLASS/*.JPEG`` and ``val/CLASS/*``,
    classes in the order of their names. Parquet: ``train-*.parquet`` and ``validation-*.parquet``, here or in
    ``data/``, with ``image`` and ``label``; their images are copied once into the cache, where each can be read alone.
    """
    if str(what) == NAME:
        return painted()
    home = _home(what)
    name = IMAGENET if home.resolve().name in _FOLDERS else home.resolve().name
    for inside in (home, home / "data"):
        parts = {split: parquet.files(inside, names) for split, names in _PARTS.items()}
        if any(parts.values()):
            for split, files in parts.items():
                if not files:
                    raise InputError(f"{inside} has no {split}-*.parquet beside its other part; fetch that too")
            return parquet.read(parts["train"], parts["val"], name)
    folders = {split: next((home / n for n in names if (home / n).is_dir()), None) for split, names in _PARTS.items()}
    train, val = folders["train"], folders["val"]
    if train is None and val is None:
        raise InputError(f"{home} holds no images in a known layout; looked for {_LAYOUTS}")
    if train is None or val is None:
        raise InputError(f"{home} has no folder {'train' if train is None else 'val'} beside its other; fetch that too")
    classes = _classes(train)
    if unknown := [each for each in _classes(val) if each not in set(classes)]:
        raise InputError(f"{val} has the class {unknown[0]!r}, which {train} has not; give both the same classes")
    return Splits(_pictures(train, classes, name), _pictures(val, classes, name))


def _home(what: str | Path) -> Path:
    if Path(what).is_dir():
        return Path(what)
    if str(what) != IMAGENET:
        raise InputError(f"{what} is no folder and no known data set; give a folder, {IMAGENET} or {NAME}")
    home = data_folder(*_FOLDERS)
    if home is None:
        raise InputError(f"{IMAGENET} is not in {data_place()}; give its folder, which has {_LAYOUTS}")
    return home


def _classes(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise InputError(f"{folder} has no folders; its images must lie in one for each class")
    return tuple(names)


def _pictures(folder: Path, classes: tuple[str, ...], name: str) -> Pictures:
    names: list[bytes] = []
    counts = []
    for each in classes:
        own = []
        if (folder / each).is_dir():
            with os.scandir(folder / each) as entries:
                own = [entry.name for entry in entries if _is_image(entry)]
        names += [os.fsencode(file) for file in sorted(own)]
        counts.append(len(own))
    if not names:
        raise InputError(f"{folder} has no images in its folders; looked for {', '.join(IMAGES)}")
    numbers = np.repeat(np.arange(len(classes)), counts)
    return Pictures(Files(folder, classes, numbers.astype(np.int32), np.array(names)), numbers, classes, name)


def _is_image(entry: os.DirEntry[str]) -> bool:
    # The entry's own kind alone: asking the disk for a million sizes takes minutes.
    ends = os.path.splitext(entry.name)[1].lower() in IMAGES
    return ends and not entry.name.startswith(".") and entry.is_file()
