"""Which files a name or a folder stands for: parquet with ``image`` and ``mask``, ADE20K's folders, or shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from oversmooth.inputs.parquet import Row, Table
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder, data_place, read_bytes
from oversmooth_papers.tasks.segmentation.data.decoding import decoded
from oversmooth_papers.tasks.segmentation.data.known import KNOWN, Known, known
from oversmooth_papers.tasks.segmentation.data.labelled import Labelled, Splits
from oversmooth_papers.tasks.segmentation.data.shapes import NAME, shapes
from oversmooth_papers.tasks.segmentation.settings import IGNORE

_LAYOUTS = "train.parquet, val.parquet and test.parquet, or images/training with annotations/training"
_MOST = 1 << 28  # bytes of one file
_IMAGES, _MASKS = (".jpg", ".jpeg", ".png"), ".png"


def load_splits(what: str | Path) -> Splits:
    """By name, camvid, ade20k or shapes; or from a folder that holds a data set.

    A name is looked for in OVERSMOOTH_DATA, in ``data/`` or not. In parquet files ``image`` and ``mask`` are encoded
    images; 255 in a mask is ignored, and in CamVid's 11, its void. Of ADE20K the validation images are those to test
    on, in their own sizes; those to train on are all resized to 512 × 683.
    """
    if str(what) == NAME:
        return shapes()
    named, home = _home(what)
    if (home / "images" / "training").is_dir():
        named = named or KNOWN["ade20k"]
        train = _folders(home, "training", named, named.size)
        test = _folders(home, "validation", named, None)
        return Splits(train, test, test)
    parts = {split: home / f"{split}.parquet" for split in ("train", "val", "test")}
    missing = [file.name for file in parts.values() if not file.is_file()]
    if len(missing) == len(parts):
        raise InputError(f"{home} holds no images with masks in a known layout; looked for {_LAYOUTS}")
    if missing:
        raise InputError(f"{home} has no {missing[0]} beside its other parts; fetch that too")
    read = [_parquet(file, named, home.resolve().name) for file in parts.values()]
    if named is None:  # the highest label of all decides how many classes there are
        most = max(len(part.classes) for part in read)
        read = [Labelled(part.images, part.masks, _numbered(most), part.name) for part in read]
    return Splits(*read)


def _home(what: str | Path) -> tuple[Known | None, Path]:
    named, path = known(Path(what).name), Path(what)
    if path.is_dir():
        return named, path
    named = known(str(what))
    if named is None:
        names = ", ".join([*KNOWN, NAME])
        raise InputError(f"{what} is no folder and no known data set of images with masks; give one of {names}")
    home = data_folder(*named.folders)
    if home is None:
        raise InputError(f"{named.name} is not in {data_place()}; set it to a folder that holds {named.folders[0]}")
    return named, home


def _parquet(file: Path, named: Known | None, name: str) -> Labelled:
    table = Table(Source(file, "parquet", (file,)), ("image",), ("mask",), whole=True)
    pairs = [(row.where, partial(_bytes, row, "image"), partial(_bytes, row, "mask")) for row in table.rows()]
    relabel = np.arange(256, dtype=np.uint8) if named is None else named.relabel
    images, masks = decoded(pairs, relabel)
    if named is not None:
        return Labelled(images, masks, list(named.classes), named.name)
    highest = max(int(mask[mask != IGNORE].max()) if bool((mask != IGNORE).any()) else 0 for mask in masks)
    return Labelled(images, masks, _numbered(max(2, highest + 1)), name)


def _numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _bytes(row: Row, column: str) -> bytes:
    data = row.encoded(column)
    if not isinstance(data, bytes):
        raise InputError(f"{row.where} has no bytes of an image or a mask; fetch the file again")
    return data


def _folders(home: Path, split: str, named: Known, size: tuple[int, int] | None) -> Labelled:
    """``images/training/a.jpg`` with ``annotations/training/a.png``."""
    images = sorted(
        file for file in (home / "images" / split).glob("*") if file.suffix.lower() in _IMAGES and file.is_file()
    )
    if not images:
        raise InputError(f"{home / 'images' / split} has no images; looked for {', '.join(_IMAGES)}")
    pairs: list[tuple[str, Callable[[], bytes], Callable[[], bytes]]] = []
    for image in images:
        mask = home / "annotations" / split / f"{image.stem}{_MASKS}"
        if not mask.is_file():
            raise InputError(f"{image} has no mask {mask}; fetch it")
        remedy = "fetch it again"
        pairs.append((str(image), partial(read_bytes, image, remedy, _MOST), partial(read_bytes, mask, remedy, _MOST)))
    pixels, masks = decoded(pairs, named.relabel, size)
    return Labelled(pixels, masks, list(named.classes), named.name)
