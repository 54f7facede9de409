"""Images with a class for every pixel: read from the layouts they are published in, and held as bytes.

``load_splits("camvid")``, ``load_splits(folder)``, or ``load_splits("shapes")``, which are painted on the spot.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oversmooth.inputs.parquet import Table
from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.common import data_home, decoded_image

IGNORE = 255  # the label of pixels that are neither learned from nor counted
SHAPES = "shapes"
FORMS = ("ground", "disc", "square", "triangle", "ring")
_COLOURS = np.array([(0.8, 0.3, 0.25), (0.25, 0.6, 0.35), (0.3, 0.4, 0.8), (0.8, 0.7, 0.3)])
_HINT, _GRAIN = 0.16, 0.06  # spread of colours about a class's own, and of pixels about theirs
_LAYOUTS = "train.parquet, val.parquet and test.parquet, or images/training with annotations/training"
_IMAGES = (".jpg", ".jpeg", ".png")
_AHEAD = 64  # pictures that are decoded before one is taken
Pair = tuple[str, Path | bytes, Path | bytes]  # where an image stands, and the files or the bytes of it and of its mask


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Labelled:
    images: Tensor | list[Tensor]  # (n, 3, h, w) uint8, or as many (3, h, w)
    masks: Tensor | list[Tensor]  # (n, h, w) uint8, or as many (h, w); below len(classes), or IGNORE
    classes: list[str]
    name: str

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on, in one size; to watch training by; and to test the trained model on, once."""

    train: Labelled
    val: Labelled
    test: Labelled  # the same object as val where no third part is published

    def __post_init__(self) -> None:
        if not isinstance(self.train.images, Tensor):
            raise InputError(f"{self.train.name} has images of several sizes to train on; resize them to one")

    @property
    def name(self) -> str:
        return self.train.name

    @property
    def classes(self) -> list[str]:
        return self.train.classes

    @property
    def one_size(self) -> bool:
        size = self.train.images[0].shape
        return all(image.shape == size for part in (self.val, self.test) for image in part.images)


class PublishedScenes(NamedTuple):
    name: str
    folders: tuple[str, ...]  # what the folder is called that it comes in
    classes: list[str]
    labels: NDArray[np.uint8]  # (256,): for each byte of a mask; bytes that stand for no class are ignored


_CAMVID = "Sky Building Pole Road Pavement Tree SignSymbol Fence Car Pedestrian Bicyclist"
_BYTES = np.arange(256, dtype=np.uint8)
CAMVID = PublishedScenes("camvid", ("camvid", "CamVid"), _CAMVID.split(), np.where(_BYTES < 11, _BYTES, IGNORE))
ADE20K = PublishedScenes(
    "ade20k",
    ("ade20k", "ADEChallengeData2016", "ade"),
    [f"class {n}" for n in range(1, 151)],
    np.where((_BYTES > 0) & (_BYTES < 151), _BYTES - 1, IGNORE).astype(np.uint8),
)
_ADE20K_SIZE = 512, 683
"""Height and width to which its training images are brought: the shorter side is at 512 or near it, most are 3 by 4."""


def load_splits(what: str | Path) -> Splits:
    """By name, camvid, ade20k or shapes; or from a folder that holds a data set.

    A name is looked for in OVERSMOOTH_DATA, in ``data/`` or not. In parquet files ``image`` and ``mask`` are encoded
    images; 255 in a mask is ignored, and in CamVid's 11, its void. Of ADE20K the validation images are those to test
    on, in their own sizes; those to train on are all resized to 512 × 683.
    """
    if str(what) == SHAPES:
        return shapes()
    word = Path(what).name.lower()
    named = next((known for known in (CAMVID, ADE20K) if word in map(str.lower, known.folders)), None)
    remedy = "give camvid, ade20k or shapes, or the folder that holds images with masks"
    home = data_home(what, named.folders if named else (), remedy)
    if (home / "images" / "training").is_dir():
        known = named or ADE20K
        train, test = (
            Labelled(*_decoded(_files(home, split), known.labels, size), known.classes, known.name)
            for split, size in (("training", _ADE20K_SIZE), ("validation", None))
        )
        return Splits(train, test, test)
    files = [home / f"{split}.parquet" for split in ("train", "val", "test")]
    if missing := [file.name for file in files if not file.is_file()]:
        raise InputError(f"{home} has no {missing[0]}; images with masks are {_LAYOUTS}")
    parts = [_decoded(_rows(file), named.labels if named else _BYTES) for file in files]
    if named:
        name, classes = named.name, named.classes
    else:  # the highest label of all decides how many classes there are
        highest = max(int(mask.where(mask != IGNORE, 0).max()) for _, masks in parts for mask in masks)
        name, classes = home.resolve().name, [str(number) for number in range(max(2, highest + 1))]
    return Splits(*(Labelled(images, masks, classes, name) for images, masks in parts))


def _rows(file: Path) -> list[Pair]:
    table = Table(Source(file, "parquet", (file,)), ("image",), ("mask",), whole=True)
    return [(row.where, row.encoded("image"), row.encoded("mask")) for row in table.rows()]


def _files(home: Path, split: str) -> list[Pair]:
    """``images/training/a.jpg`` with ``annotations/training/a.png``."""
    images = sorted(file for file in (home / "images" / split).glob("*") if file.suffix.lower() in _IMAGES)
    if not images:
        raise InputError(f"{home / 'images' / split} has no images; looked for {', '.join(_IMAGES)}")
    return [(str(image), image, home / "annotations" / split / f"{image.stem}.png") for image in images]


def _decoded(
    pairs: Sequence[Pair], labels: NDArray[np.uint8], size: tuple[int, int] | None = None
) -> tuple[Tensor | list[Tensor], Tensor | list[Tensor]]:
    """Images ``(3, h, w)`` and masks ``(h, w)``, stacked where all have one size; decoded in threads.

    labels: ``(256,)``, for each byte of a mask. size: height and width to which all are resized, images bilinearly and
    masks to the nearest; None: as they are.
    """
    pil = import_library("PIL.Image", "decoding images")

    def one(pair: Pair) -> tuple[Tensor, Tensor]:
        where, image_source, mask_source = pair
        image = decoded_image(image_source, f"the image of {where}").convert("RGB")
        mask = decoded_image(mask_source, f"the mask of {where}")
        if mask.mode not in ("L", "P"):
            raise InputError(f"the mask of {where} has pixels of kind {mask.mode}; give one byte each, as PNG has them")
        if image.size != mask.size:
            sizes = f"{image.width} by {image.height} and its mask {mask.width} by {mask.height}"
            raise InputError(f"the image of {where} is {sizes}; give masks of their images' size")
        if size is not None:
            image = image.resize(size[::-1], pil.Resampling.BILINEAR)
            mask = mask.resize(size[::-1], pil.Resampling.NEAREST)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels, torch.from_numpy(labels[np.array(mask)])

    images: list[Tensor] = []
    masks: list[Tensor] = []
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(pairs), _AHEAD):
            for image, mask in pool.map(one, pairs[first : first + _AHEAD]):
                if not images:  # twice: one by one, and stacked
                    needed = 2 * len(pairs) * 4 * mask.numel()
                    check_fits(needed, f"decoding {len(pairs):,} images such as {pairs[0][0]}", "give fewer of them")
                images.append(image)
                masks.append(mask)
    if len({mask.shape for mask in masks}) == 1:
        return torch.stack(images), torch.stack(masks)
    return images, masks


def shapes(train: int = 320, val: int = 40, test: int = 80, *, size: int = 64) -> Splits:
    """Coloured shapes on textured ground, ``size`` pixels square, painted on the spot: for trials that need no files.

    The class of a shape is its form; its colour only hints at it. A line of pixels about each shape is to be ignored,
    as at the edges of hand-made masks. Every picture is fixed by its number, on every machine, and is in one part.
    """
    painted = [_picture(number, size) for number in range(train + val + test)]
    images, masks = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*painted, strict=True))
    parts = zip(images.split([train, val, test]), masks.split([train, val, test]), strict=True)
    return Splits(*(Labelled(pixels, labels, list(FORMS), SHAPES) for pixels, labels in parts))


def _picture(number: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """``(3, size, size)`` and its mask."""
    random = np.random.default_rng([7, number])
    y, x = (np.mgrid[0:size, 0:size] + 0.5) / size
    waves = random.uniform(-20, 20, (2, 3))
    texture = sum(np.sin(a * x + b * y + c) for a, b, c in zip(*waves, random.uniform(0, 6.3, 3), strict=True))
    image = random.uniform(0.3, 0.7, 3)[:, None, None] + 0.05 * texture
    mask = np.zeros((size, size), np.uint8)
    for _ in range(random.integers(2, 5)):
        label = int(random.integers(1, len(FORMS)))
        radius, turn = random.uniform(0.13, 0.24), random.uniform(0, 6.3)
        across, down = x - random.uniform(0.1, 0.9), y - random.uniform(0.1, 0.9)
        u, v = (across * np.cos(turn) + down * np.sin(turn)), (down * np.cos(turn) - across * np.sin(turn))
        inside = _distances(u / radius, v / radius)[label - 1] * radius * size  # pixels, above 0 within
        colour = _COLOURS[label - 1] + _HINT * random.standard_normal(3)
        image = np.where(inside > 0, colour[:, None, None] * (1 + 0.2 * v / radius), image)
        mask = np.where(inside > 0.5, label, np.where(inside > -0.5, IGNORE, mask)).astype(np.uint8)
    image = image + _GRAIN * random.standard_normal(image.shape)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8), mask


def _distances(u: NDArray[Any], v: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """How far points lie within a disc, a square, a triangle and a ring of size 1; below 0, how far outside."""
    around, square = np.hypot(u, v), np.maximum(abs(u), abs(v))
    triangle = np.maximum(np.maximum(v, -0.5 * v + 0.866 * u), -0.5 * v - 0.866 * u)
    return 1 - around, 0.85 - square, 0.6 - triangle, 0.25 - abs(around - 0.75)
