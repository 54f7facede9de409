"""The one form in which training sees its data: all images and labels in two tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import read_bytes


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Images:
    """Images of one size with a class each, checked when made."""

    images: Tensor  # (n, c, h, w) uint8, c 1 or 3
    labels: Tensor  # (n,) int64, below len(classes)
    classes: list[str]
    name: str

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        if self.images.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3):
            raise InputError(f"{self.name} has images {shape} of {self.images.dtype}; give (n, 1 or 3, h, w) of uint8")
        if not len(self.images):
            raise InputError(f"{self.name} has no images; give data with some")
        if self.labels.dtype != torch.int64 or self.labels.shape != shape[:1]:
            raise InputError(
                f"{self.name} has labels {tuple(self.labels.shape)} of {self.labels.dtype} for {shape[0]:,} images; "
                f"give one int64 each"
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


def class_names(file: Path) -> list[str]:
    """From a text file, a word each."""
    remedy = "give the names of the classes as text, or remove it"
    try:
        return read_bytes(file, remedy).decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start:,}); {remedy}") from error


def share(images: Images, fraction: float, seed: int) -> Images:
    """A plain random part of the images: the same for the same seed, in the order they had.

    A smaller fraction's images are all among a larger one's, and 1 is the whole.

    >>> many = Images(torch.zeros(20, 3, 4, 4, dtype=torch.uint8), torch.arange(20), [str(i) for i in range(20)], "x")
    >>> len(share(many, 0.25, seed=0))
    5
    """
    if not 0 < fraction <= 1:
        raise InputError(f"a share of {fraction:g} of {images.name} is none; give a fraction above 0 and at most 1")
    if seed < 0:
        raise InputError(f"the seed of a share is {seed}; give 0 or more")
    count = round(fraction * len(images))
    if not count:
        raise InputError(f"a share of {fraction:g} of the {len(images):,} images of {images.name} is less than one")
    if count == len(images):
        return images
    # Plain random numbers in order, not numpy's permutation: the first stay the same from version to version.
    order = np.argsort(np.random.default_rng(seed).random(len(images)), kind="stable")
    kept = torch.from_numpy(np.sort(order[:count])).to(images.images.device)
    return replace(images, images=images.images[kept], labels=images.labels[kept])
