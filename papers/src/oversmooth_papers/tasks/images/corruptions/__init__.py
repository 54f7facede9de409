"""The corruptions of CIFAR-100-C, made on the spot for whole batches on CPU or GPU, and the official files read.

>>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
>>> corrupt(images, "gaussian_noise", 3).shape
torch.Size([4, 3, 32, 32])

Settings are from the script that made CIFAR-10-C and CIFAR-100-C (Hendrycks & Dietterich, 2019; hendrycks/robustness,
ImageNet-C/create_c/make_cifar_c.py). They are for pictures of 32 pixels and differ from those of ImageNet-C. What
differs from the published procedure:

* The random numbers are others: each belongs to an image by its number in the data set (draws.py), where the official
  files were drawn in one stream without a seed. No picture with chance in it equals its official one.
* Frost's five textures are made here, with the measured colour and contrast of the photographs, which are not shipped.
  Figures on frost compare with the official ones in size, not pixel by pixel. With the photographs (`read_frost`,
  ``corrupt(..., frost_from=...)``) only the random windows differ from the published procedure.
* A value that is whole but for rounding error keeps its level; the published cast to bytes may lower it by one.
* The affine part of the elastic transform is sampled exactly, where OpenCV takes the nearest 1/32 pixel; motion blur
  rounds once, to bytes, where ImageMagick first rounds to 16 bits.
* Pictures of other sizes take the same settings; those of the elastic transform and pixelate alone go with the side.

CPU and GPU share every random bit and compute in float64, so their bytes agree but where a value lies within rounding
error of a step. Not for training: the corruptions are for testing what training never saw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.corruptions import kinds
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.official import FrostPictures, read_frost, read_official

__all__ = ["CONSTANTS", "KINDS", "SEVERITIES", "FrostPictures", "corrupt", "read_frost", "read_official"]

CONSTANTS: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
}
"""By kind, a row per intensity 1 to 5: what the function of that name in kinds.py takes after the draws."""

KINDS: tuple[str, ...] = tuple(CONSTANTS)
SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)
_SMALLEST = 8  # pixels: below it the blurs are wider than the picture
# Values worked on at once: measured best on a CPU, whose cache they fill; on a GPU 2²⁴ doubles are 128 MB.
_PIECE = {"cpu": 1 << 19, "cuda": 1 << 24}


def corrupt(
    images: Tensor, kind: str, severity: int, *, seed: int = 0, start: int = 0, frost_from: FrostPictures | None = None
) -> Tensor:
    """``images`` (n, 3, h, w), uint8, corrupted by ``kind`` at ``severity`` 1 to 5; same shape and device.

    Image i of the batch is number ``start + i`` of its data set: its random numbers are fixed by that, by ``seed``, by
    the kind and by the severity, so cutting a data set into other batches changes nothing. ``frost_from``: the official
    photographs, in place of textures made here.

    >>> grey = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
    >>> corrupt(grey, "brightness", 1).unique()
    tensor([112], dtype=torch.uint8)
    """
    if kind not in CONSTANTS:
        raise InputError(f"no corruption is called {kind!r}; there are {', '.join(CONSTANTS)}")
    if not isinstance(severity, int) or severity not in SEVERITIES:
        raise InputError(f"severity is {severity!r}; give a whole number from 1 to {SEVERITIES[-1]}")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or images.ndim != 4 or shape[1] != 3 or not shape[0] or min(shape[2:]) < _SMALLEST:
        wanted = "bytes (n, 3, height, width) of uint8, before normalising, of at least"
        raise InputError(f"images has shape {shape} of {images.dtype}; give {wanted} {_SMALLEST} by {_SMALLEST} pixels")
    step = max(1, _PIECE.get(images.device.type, 1 << 22) // images[0].numel())
    settings, label = CONSTANTS[kind][severity - 1], f"{seed}/{kind}/{severity}"
    more = {"pictures": frost_from} if kind == "frost" else {}
    out = torch.empty_like(images)
    for first in range(0, len(images), step):
        piece = images[first : first + step]
        draw = CorruptionDraws(label, start + first, len(piece), images.device)
        out[first : first + step] = getattr(kinds, kind)(piece, draw, *settings, **more)
    return out
