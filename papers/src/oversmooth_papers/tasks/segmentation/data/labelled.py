"""The one form in which training sees its data: images and masks as bytes, in one tensor each where sizes are equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.segmentation.settings import IGNORE


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Labelled:
    """Images with a class for every pixel, checked when made."""

    images: Tensor | list[Tensor]  # (n, 3, h, w) uint8, or as many (3, h, w)
    masks: Tensor | list[Tensor]  # (n, h, w) uint8, or as many (h, w); below len(classes), or IGNORE
    classes: list[str]
    name: str

    def __post_init__(self) -> None:
        if not len(self.images) or len(self.images) != len(self.masks):
            raise InputError(
                f"{self.name} has {len(self.images):,} images and {len(self.masks):,} masks; give as many of both"
            )
        if not 2 <= len(self.classes) <= IGNORE:
            raise InputError(f"{self.name} has {len(self.classes)} classes; masks of bytes hold 2 to {IGNORE}")
        counted = False
        for number, (image, mask) in enumerate(zip(self.images, self.masks, strict=True)):
            if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or not image.numel():
                raise InputError(
                    f"image {number} of {self.name} is {tuple(image.shape)} of {image.dtype}; give (3, h, w) of uint8"
                )
            if mask.dtype != torch.uint8 or mask.shape != image.shape[1:]:
                raise InputError(
                    f"mask {number} of {self.name} is {tuple(mask.shape)} of {mask.dtype} and its image "
                    f"{tuple(image.shape)}; give one byte for every pixel"
                )
            labels = torch.bincount(mask.flatten(), minlength=IGNORE + 1)
            if bool(labels[len(self.classes) : IGNORE].any()):
                highest = int(labels[:IGNORE].nonzero().max())
                raise InputError(
                    f"mask {number} of {self.name} has the label {highest}, and there are {len(self.classes)} classes; "
                    f"labels go from 0 to {len(self.classes) - 1}, with {IGNORE} for pixels to be ignored"
                )
            counted = counted or bool(labels[: len(self.classes)].any())
        if not counted:
            raise InputError(f"every pixel of {self.name} is to be ignored; give masks with classes")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Splits:
    """Images to train on, in one size; to watch training by; and to test the trained model on, once."""

    train: Labelled
    val: Labelled
    test: Labelled
    """The same object as val where no third part is published."""

    def __post_init__(self) -> None:
        if not isinstance(self.train.images, Tensor):
            raise InputError(f"{self.train.name} has images of several sizes to train on; resize them to one")
        for other in (self.val, self.test):
            if (other.name, other.classes) != (self.name, self.classes):
                raise InputError(f"{self.name} and {other.name} are not parts of one data set: names or classes differ")

    @property
    def name(self) -> str:
        return self.train.name

    @property
    def classes(self) -> list[str]:
        return self.train.classes

    @property
    def one_size(self) -> bool:
        """Whether the images to test on have the size of those to train on."""
        return all(
            isinstance(part.images, Tensor) and part.images.shape[1:] == self.train.images[0].shape
            for part in (self.val, self.test)
        )
