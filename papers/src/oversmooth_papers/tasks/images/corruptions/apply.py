"""Corrupting a batch: the checks, the random numbers of each image, and pieces small enough for memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.corruptions.blur import (
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from oversmooth_papers.tasks.images.corruptions.constants import CONSTANTS, SEVERITIES
from oversmooth_papers.tasks.images.corruptions.digital import contrast, elastic_transform, pixelate, saturate
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.frost_pictures import FrostPictures
from oversmooth_papers.tasks.images.corruptions.jpeg import jpeg_compression
from oversmooth_papers.tasks.images.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from oversmooth_papers.tasks.images.corruptions.spatter import spatter
from oversmooth_papers.tasks.images.corruptions.weather import brightness, fog, frost, snow

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        *(gaussian_noise, shot_noise, impulse_noise, speckle_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur, gaussian_blur),
        *(snow, frost, fog, brightness, spatter),
        *(contrast, elastic_transform, pixelate, jpeg_compression, saturate),
    )
}

_SMALLEST = 8  # pixels: below it the blurs are wider than the picture

# Values worked on at once: measured best on a CPU, whose cache they fill; on a GPU 2²⁴ doubles are 128 MB.
_PIECE = {"cpu": 1 << 19, "cuda": 1 << 24}


def corrupt(
    images: Tensor, kind: str, severity: int, *, seed: int = 0, start: int = 0, frost_from: FrostPictures | None = None
) -> Tensor:
    """``images`` (n, 3, h, w), uint8, corrupted by ``kind`` at ``severity`` 1 to 5 (0: a copy); same shape and device.

    Image i of the batch is number ``start + i`` of its data set: its random numbers are fixed by that, by ``seed``, by
    the kind and by the severity, so cutting a data set into other batches changes nothing. ``frost_from``: the official
    photographs, in place of textures made here.

    >>> grey = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
    >>> corrupt(grey, "brightness", 1).unique()
    tensor([112], dtype=torch.uint8)
    """
    check_kind(kind)
    if not isinstance(severity, int) or severity not in (0, *SEVERITIES):
        raise InputError(f"severity is {severity!r}; give a whole number from 0 (unchanged) to {SEVERITIES[-1]}")
    _check_images(images)
    if start < 0:
        raise InputError(f"start is {start}; it is the number of the first image in its data set, from 0")
    if severity == 0:
        return images.clone()
    # MPS has no float64.
    device = torch.device("cpu") if images.device.type == "mps" else images.device
    step = max(1, _PIECE.get(device.type, 1 << 22) // images[0].numel())
    settings, label = CONSTANTS[kind][severity - 1], f"{seed}/{kind}/{severity}"
    more = {"pictures": frost_from} if kind == "frost" else {}
    out = torch.empty_like(images)
    for first in range(0, len(images), step):
        piece = images[first : first + step].to(device)
        draw = CorruptionDraws(label, start + first, len(piece), device)
        out[first : first + step] = _FUNCTIONS[kind](piece, draw, *settings, **more)
    return out


def check_kind(kind: str) -> None:
    if kind not in CONSTANTS:
        raise InputError(f"no corruption is called {kind!r}; there are {', '.join(CONSTANTS)}")


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8:
        raise InputError(
            f"images is {images.dtype}; corruptions take bytes (torch.uint8, 0 to 255), before normalising"
        )
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(f"images has the shape {tuple(images.shape)}; it must be (n, 3, height, width)")
    if not len(images):
        raise InputError("images is an empty batch; give at least one image")
    if min(images.shape[2:]) < _SMALLEST:
        height, width = images.shape[2:]
        raise InputError(f"images of {height} by {width} pixels are too small; give {_SMALLEST} by {_SMALLEST} or more")
