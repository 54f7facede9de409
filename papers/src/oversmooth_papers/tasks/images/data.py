"""Labelled images to train on: found by name or in a folder, checked, and held as bytes.

``load("cifar100", "train")`` or ``load(folder, "test")``; ``load_splits`` reads both, ``share`` takes a part.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library
from oversmooth.safety.typed import typed
from oversmooth_papers.tasks.common import Kept, remembered
from oversmooth_papers.tasks.images import readers
from oversmooth_papers.tasks.images.readers import Read
from oversmooth_papers.tasks.images.recipe import CIFAR100_MEAN, CIFAR100_STD

Split = Literal["train", "test"]
SYSTEM = Path("/usr/share/datasets")  # where Debian puts data sets
_VERSION = 2  # of what is kept: raise it when the readers come to give something else


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Images:
    """Images of one size with a class each, checked when made."""

    images: Tensor  # (n, c, h, w) uint8, c 1 or 3
    labels: Tensor  # (n,) int64, below len(classes)
    classes: list[str]
    name: str

    def __post_init__(self) -> None:
        shape, labels = tuple(self.images.shape), tuple(self.labels.shape)
        types = (self.images.dtype, self.labels.dtype)
        if (
            types != (torch.uint8, torch.int64)
            or len(shape) != 4
            or shape[1] not in (1, 3)
            or labels != shape[:1]
            or 0 in shape
        ):
            has = f"images {shape} of {types[0]} and labels {labels} of {types[1]}"
            raise InputError(f"{self.name} has {has}; give (n, 1 or 3, h, w) of uint8 and (n,) of int64")
        low, high, last = int(self.labels.min()), int(self.labels.max()), len(self.classes) - 1
        if low < 0 or high > last:
            has = f"labels from {low} to {high} and {last + 1} classes"
            remedy = f"labels must lie from 0 to {last}: check which file the names came from"
            raise InputError(f"{self.name} has {has}; {remedy}")

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> Images:
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel, pixels from 0 to 1: the customary ones, or measured."""
        if self.name in KNOWN:
            return KNOWN[self.name].mean, KNOWN[self.name].std
        levels = torch.arange(256, dtype=torch.float64, device=self.images.device) / 255
        means, stds = [], []
        for channel in self.images.unbind(1):
            counts = torch.bincount(channel.flatten(), minlength=256) / channel.numel()
            mean = (counts * levels).sum()
            means.append(mean.item())
            stds.append((counts * (levels - mean).square()).sum().sqrt().item())
        if not all(stds):
            raise InputError(f"{self.name} has a channel of one level alone, which cannot be normalised; give others")
        return tuple(means), tuple(stds)


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on, whole (the recipe says which share is used), and to test on."""

    train: Images
    test: Images


def first_of_test(splits: Splits, count: int) -> Splits:
    test = splits.test
    return Splits(splits.train, replace(test, images=test.images[:count], labels=test.labels[:count]))


def share(images: Images, fraction: float, seed: int) -> Images:
    """A random part of the images: the same for the same seed, in the order they had.

    A smaller fraction's images are all among a larger one's, and 1 is the whole.

    >>> many = Images(torch.zeros(20, 3, 4, 4, dtype=torch.uint8), torch.arange(20), [str(i) for i in range(20)], "x")
    >>> len(share(many, 0.25, seed=0))
    5
    """
    if not 0 < fraction <= 1 or not (count := round(fraction * len(images))):
        what = f"a share of {fraction:g} of the {len(images):,} images of {images.name}"
        raise InputError(f"{what} is not possible; give a fraction from 1/{len(images)} to 1")
    if count == len(images):
        return images
    # Plain random numbers in order, not numpy's permutation: the first stay the same from version to version.
    order = np.argsort(np.random.default_rng(seed).random(len(images)), kind="stable")
    kept = torch.from_numpy(np.sort(order[:count])).to(images.images.device)
    return replace(images, images=images.images[kept], labels=images.labels[kept])


@dataclass(frozen=True)
class Published:
    """A published data set; means and spreads are the customary ones, of the training pixels over 255."""

    hub: str
    folders: tuple[str, ...]  # what the folder is called that it comes in
    shape: tuple[int, int, int]  # (c, h, w)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]  # names for layouts that have none


_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
_MEAN_10, _STD_10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_OF_100 = ("cifar-100", "cifar100", "cifar-100-python", "cifar-100-binary")
_OF_10 = ("cifar-10", "cifar10", "cifar-10-batches-py", "cifar-10-batches-bin")
_OF_FASHION = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
_OF_MNIST = ("mnist", "MNIST", "MNIST/raw")
_FASHION = "zalando-datasets/fashion_mnist"
KNOWN = {
    "cifar100": Published(
        "uoft-cs/cifar100", _OF_100, (3, 32, 32), CIFAR100_MEAN, CIFAR100_STD, tuple(map(str, range(100)))
    ),
    "cifar10": Published("uoft-cs/cifar10", _OF_10, (3, 32, 32), _MEAN_10, _STD_10, tuple(_CIFAR10.split())),
    "fashion-mnist": Published(_FASHION, _OF_FASHION, (1, 28, 28), (0.2860,), (0.3530,), tuple(_CLOTHES.split(", "))),
    "mnist": Published("ylecun/mnist", _OF_MNIST, (1, 28, 28), (0.1307,), (0.3081,), tuple("0123456789")),
}
"""The sets that `load` takes by name."""


def load_splits(what: str | Path) -> Splits:
    return Splits(load(what, "train"), load(what, "test"))


def load(what: str | Path, split: Split = "train", *, cache: bool = True) -> Images:
    """The images of a data set, by name or from the folder that holds it.

    A name (cifar100, cifar10, fashion-mnist, mnist) is looked for in OVERSMOOTH_DATA and the system's data sets (there
    under its usual folder name, in ``data/`` or not, or the folder itself), and then fetched from the hub. Write
    ./cifar100 for a folder of that name. ``cache`` keeps decoded images in the user's cache directory.
    """
    if split not in ("train", "test"):
        raise InputError(f"there is no split {split!r}; choose train or test")
    named = _known(what) if isinstance(what, str) else ""
    home = _home(named, split) if named else Path(what)
    if not home.is_dir():
        raise InputError(f"{what} is no folder and no known data set; give a folder, or one of {', '.join(KNOWN)}")
    if (found := readers.find(home, split)) is None:
        raise InputError(_why_none(home, split))
    files, read = found
    if cache and read is readers.read_parquet:
        raw = remembered("images", [_VERSION], files, lambda: read(files), _to_file, _from_file)
    else:
        raw = read(files)
    called = home.resolve().name
    name = raw.name or named or _known(called) or called
    usual = KNOWN[name].classes if name in KNOWN else map(str, range(int(raw.labels.max(initial=0)) + 1))
    images = Images(torch.from_numpy(raw.images), torch.from_numpy(raw.labels), raw.classes or list(usual), name)
    shape, classes, expected = tuple(images.images.shape[1:]), len(images.classes), KNOWN.get(named or name)
    if expected and (shape, classes) != (expected.shape, len(expected.classes)):
        wanted = f"{named or name} has {expected.shape} in {len(expected.classes)}: name the folder that holds it"
        raise InputError(f"{home} has images {shape} in {classes} classes; {wanted}")
    return images


def _to_file(raw: Read) -> Kept:
    tensors = {"images": torch.from_numpy(raw.images), "labels": torch.from_numpy(raw.labels)}
    return tensors, {"name": raw.name, "classes": json.dumps(raw.classes)}


def _from_file(tensors: dict[str, Tensor], words: dict[str, str]) -> Read:
    classes = typed(list[str], json.loads(words["classes"]))
    return Read(tensors["images"].numpy(), tensors["labels"].numpy(), classes, words["name"])


def _known(name: str) -> str:
    """The name of the set as `KNOWN` has it, however its words are joined (CIFAR-100, cifar_100); "" for another."""

    joined = re.sub("[-_ ]", "", name.lower())
    return next((known for known in KNOWN if known.replace("-", "") == joined), "")


def _why_none(home: Path, split: Split) -> str:
    other: Split = "test" if split == "train" else "train"
    if readers.find(home, other):
        return f"{home} has the {other} split and not the {split} split; fetch that too"
    packed = sorted(home.glob("*.tar.gz"))
    hint = f"unpack {packed[0].name} first" if packed else f"looked for {readers.LAYOUTS}"
    return f"{home} holds no data set in a known layout; {hint}"


def _home(name: str, split: Split) -> Path:
    """The folder that holds a known set: here, or the hub's copy, from its cache or over the network."""
    given, known = os.environ.get("OVERSMOOTH_DATA"), KNOWN[name]
    roots = [*([Path(given)] if given else []), SYSTEM]
    places = [root / inside / folder for root in roots for inside in ("data", "") for folder in known.folders]
    # The folder itself last, as it may hold another set, and never the system's, which holds many.
    for place in (*places, *roots[:-1]):
        if readers.find(place, split):
            return place
    looked = " and ".join(map(str, roots))
    hub = import_library("huggingface_hub", f"fetching {name}, which is not in {looked},")
    try:
        return Path(hub.snapshot_download(known.hub, repo_type="dataset", allow_patterns=[f"*{split}-*.parquet"]))
    except Exception as error:  # every network library under it has its own
        what = f"{name} is not in {looked} and cannot be fetched from the hub ({reason(error)})"
        raise InputError(f"{what}; set OVERSMOOTH_DATA to a folder that holds {known.folders[0]}") from error
