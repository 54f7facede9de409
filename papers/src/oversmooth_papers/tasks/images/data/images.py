"""The form in which training sees its data: all images and labels in two tensors; and the data sets known by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.errors import InputError


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Images:
    """Images of one size with a class each, checked when made."""

    images: Tensor  # (n, c, h, w) uint8, c 1 or 3
    labels: Tensor  # (n,) int64, below len(classes)
    classes: list[str]
    name: str

    def __post_init__(self) -> None:
        shape, labels = tuple(self.images.shape), tuple(self.labels.shape)
        types = (self.images.dtype, self.labels.dtype) == (torch.uint8, torch.int64)
        if not types or len(shape) != 4 or shape[1] not in (1, 3) or not shape[0] or labels != shape[:1]:
            raise InputError(
                f"{self.name} has images {shape} of {self.images.dtype} and labels {labels} of {self.labels.dtype}; "
                "give (n, 1 or 3, h, w) of uint8 and (n,) of int64"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise InputError(
                f"{self.name} has labels from {low} to {high} and {len(self.classes)} classes; "
                f"labels must lie from 0 to {len(self.classes) - 1}: check which file the names came from"
            )

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> Images:
        """The same on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on, whole (the recipe says which share is used), and to test on."""

    train: Images
    test: Images


def first_of_test(splits: Splits, count: int) -> Splits:
    """With fewer images to test on."""
    test = splits.test
    return Splits(splits.train, replace(test, images=test.images[:count], labels=test.labels[:count]))


def share(images: Images, fraction: float, seed: int) -> Images:
    """A plain random part of the images: the same for the same seed, in the order they had.

    A smaller fraction's images are all among a larger one's, and 1 is the whole.

    >>> many = Images(torch.zeros(20, 3, 4, 4, dtype=torch.uint8), torch.arange(20), [str(i) for i in range(20)], "x")
    >>> len(share(many, 0.25, seed=0))
    5
    """
    if not 0 < fraction <= 1 or not (count := round(fraction * len(images))):
        raise InputError(
            f"a share of {fraction:g} of the {len(images):,} images of {images.name} is not possible; "
            f"give a fraction from 1/{len(images)} to 1"
        )
    if count == len(images):
        return images
    # Plain random numbers in order, not numpy's permutation: the first stay the same from version to version.
    order = np.argsort(np.random.default_rng(seed).random(len(images)), kind="stable")
    kept = torch.from_numpy(np.sort(order[:count])).to(images.images.device)
    return replace(images, images=images.images[kept], labels=images.labels[kept])


@dataclass(frozen=True)
class Known:
    """A published data set."""

    name: str
    hub: str
    folders: tuple[str, ...]  # what the folder is called that it comes in
    shape: tuple[int, int, int]  # (c, h, w)
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: tuple[str, ...] = ()  # names for layouts that have none

    def check(self, images: Images, where: str, *, coarse: bool = False) -> None:
        """Raise InputError for data that is not this set, whatever its folder is called."""
        shape = tuple(images.images.shape[1:])
        classes = 20 if coarse else self.classes
        if shape != self.shape or len(images.classes) != classes:
            raise InputError(
                f"{where} has images {shape} in {len(images.classes)} classes; {self.name} has {self.shape} in "
                f"{classes}: name the folder that holds it"
            )


_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_FASHION = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"

KNOWN = {
    known.name: known
    for known in (
        Known(
            name="cifar100",
            hub="uoft-cs/cifar100",
            folders=("cifar-100", "cifar100", "cifar-100-python", "cifar-100-binary"),
            shape=(3, 32, 32),
            classes=100,
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
        ),
        Known(
            name="cifar10",
            hub="uoft-cs/cifar10",
            folders=("cifar-10", "cifar10", "cifar-10-batches-py", "cifar-10-batches-bin"),
            shape=(3, 32, 32),
            classes=10,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            labels=tuple(_CIFAR10.split()),
        ),
        Known(
            name="fashion-mnist",
            hub="zalando-datasets/fashion_mnist",
            folders=("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
            shape=(1, 28, 28),
            classes=10,
            mean=(0.2860,),
            std=(0.3530,),
            labels=tuple(_FASHION.split(", ")),
        ),
        Known(
            name="mnist",
            hub="ylecun/mnist",
            folders=("mnist", "MNIST", "MNIST/raw"),
            shape=(1, 28, 28),
            classes=10,
            mean=(0.1307,),
            std=(0.3081,),
            labels=tuple("0123456789"),
        ),
    )
}
"""The sets that ``load`` takes by name. Means and spreads are the customary ones, of the training pixels over 255."""


def known(name: str) -> Known | None:
    """The set of this name, however its words are joined: cifar100, CIFAR-100 and cifar_100 are one."""

    def joined(words: str) -> str:
        return words.lower().replace("-", "").replace("_", "").replace(" ", "")

    return next((entry for entry in KNOWN.values() if joined(entry.name) == joined(name)), None)


def normalisation(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels from 0 to 1: the customary ones, or measured on these images."""
    if images.name in KNOWN:
        return KNOWN[images.name].mean, KNOWN[images.name].std
    levels = torch.arange(256, dtype=torch.float64, device=images.images.device) / 255
    means, stds = [], []
    for channel in images.images.unbind(1):
        counts = torch.bincount(channel.flatten(), minlength=256) / channel.numel()
        mean = (counts * levels).sum()
        means.append(mean.item())
        stds.append((counts * (levels - mean).square()).sum().sqrt().item())
    if not all(stds):
        raise InputError(f"{images.name} has a channel of one level alone, which cannot be normalised; give others")
    return tuple(means), tuple(stds)
