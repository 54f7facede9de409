"""How a picture becomes what a vision model was trained on: resize, centre crop, rescale, normalise.

The steps are those of the Hugging Face image processors (their PIL form) and of timm's evaluation transform, so a
model sees what it would see there. How a model states them is read in processor_files.py. Not for augmentation, and
not for finding pictures: that is images.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oversmooth.inputs import processor_files
from oversmooth.inputs.processor_files import Stated
from oversmooth.safety.libraries import import_library

if TYPE_CHECKING:
    from PIL.Image import Image

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey, as PIL and television have it


@dataclass(frozen=True)
class Preprocessing(Stated):
    """What is done to a picture before the model, in this order, and what of it had to be guessed.

    Resizing is to ``resize_size`` (h, w): ``"exact"`` whatever the proportions, ``"shortest"`` with the proportions
    kept until both sides are covered, ``"none"`` not at all. Then the middle of ``size`` (h, w) is cut out (with black
    where the picture is smaller), multiplied by ``rescale`` and normalised by ``mean`` and ``std`` of each channel: of
    one, if the model takes grey pictures. ``note`` is one sentence on what the model's files did not say, or empty.
    ``centring`` says where the middle of an odd rest is: a pixel further left and up, as Hugging Face's PIL form has
    it, or where torchvision, and so timm, rounds to.
    """

    @classmethod
    def from_folder(
        cls, path: Path, *, image_size: int | tuple[int, int] = 224, name: str | None = None
    ) -> Preprocessing:
        """What the files of a model's folder say; ``image_size`` and one half where they do not (see ``note``).

        name: of the model, where the folder's is not what the user knows it by.
        """
        return cls(**vars(processor_files.read(path, _sides(image_size), name or str(path))))

    @classmethod
    def from_timm(cls, settings: dict[str, Any], name: str) -> Preprocessing:
        """What a live timm model's pretrained_cfg says."""
        return cls(**vars(processor_files.read_timm(settings, f"{name}'s pretrained_cfg")))

    @classmethod
    def unstated(cls, name: str, *, image_size: int | tuple[int, int] = 224) -> Preprocessing:
        """For a model that comes without any statement."""
        return cls(**vars(processor_files.unstated(_sides(image_size), name)))

    def __call__(self, image: Image) -> Tensor:
        """A picture to (channels, h, w)."""
        return self.tensor(np.asarray(self._cropped(self._resized(rgb(image)))))

    def tensor(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Pixels (h, w, 3), 0 to 255 and of the right size already, to (channels, h, w)."""
        if len(self.mean) == 1:
            pixels = np.rint(pixels @ np.asarray(LUMA))[..., None]
        scaled = (pixels.astype(np.float64) * self.rescale).astype(np.float32)
        normal = (scaled - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))

    def _resized(self, image: Image) -> Image:
        if self.resize == "none":
            return image
        height, width = self.resize_size or self.size
        if self.resize == "shortest":
            if height == width:  # rounded down, as torchvision and Hugging Face do
                side, short = height, min(image.size)
                width, height = (int(side * long / short) for long in image.size)
            else:  # rounded, as timm does
                factor = max(width / image.width, height / image.height)
                width, height = round(image.width * factor), round(image.height * factor)
        filters: Any = import_library("PIL.Image", "resizing pictures").Resampling
        return image.resize((max(width, 1), max(height, 1)), filters[self.interpolation.upper()])

    def _cropped(self, image: Image) -> Image:
        height, width = self.size
        left, top = self._start(image.width - width), self._start(image.height - height)
        return image.crop((left, top, left + width, top + height))

    def _start(self, rest: int) -> int:
        """Where the middle begins, if rest pixels are too many, or too few: below zero then."""
        if self.centring == "down":
            return rest // 2
        return round(rest / 2) if rest > 0 else -(-rest // 2)


def _sides(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def rgb(image: Image) -> Image:
    """A picture upright and in red, green and blue, be it grey, 16 bits deep, with a palette or see-through."""
    operations: Any = import_library("PIL.ImageOps", "turning pictures upright")
    image = operations.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        # PIL would clip what is above 255 instead of scaling it.
        deep = np.asarray(image).astype(np.float64)
        white = 65535 if image.mode.startswith("I;16") or deep.max() > 255 else 255 if deep.max() > 1 else 1
        grey = np.clip(np.rint(deep * (255 / white)), 0, 255).astype(np.uint8)
        image = import_library("PIL.Image", "reading pictures").fromarray(grey)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB would warn
    return image if image.mode == "RGB" else image.convert("RGB")
