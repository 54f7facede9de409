"""The published settings of every corruption, and the function that corrupts a batch in pieces that fit into memory.

Settings are from the script that made CIFAR-10-C and CIFAR-100-C (Hendrycks & Dietterich, 2019; hendrycks/robustness,
ImageNet-C/create_c/make_cifar_c.py). They are for pictures of 32 pixels and differ from those of ImageNet-C.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.corruptions import digital, noise_blur, weather
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.official import FrostPictures

CONSTANTS: dict[str, tuple[tuple[float, ...], ...]] = {
    # standard deviation, as a share of the range
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    # photons that white stands for
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    # share of values that turn black or white
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    # radius of the disk, sigma that softens its edge
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    # sigma of the blur before and after, how far pixels move, how often
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    # radius, sigma
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    # where the zooms end that begin at 1 and go by 0.01
    "zoom_blur": ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,)),
    # mean, sd, zoom and threshold of the flakes, radius and sigma of their streak, share of the picture that stays
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    # share of the picture, share of the frost
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    # thickness, how fast the fractal's detail fades
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    # what is added to the value of HSV
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    # what is left of the distance from the mean
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    # length and sigma of the displacements, reach of the affine part: all as shares of the side
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    # the small side over the side
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    # quality
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    # standard deviation, as a share of the value itself
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    # sigma
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    # mean, sd, sigma and threshold of the liquid, its strength (water) or its sigma (mud), 0 for water or 1 for mud
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    # factor and addend of HSV's saturation; not in order of damage, as published
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}
"""By kind, a row per intensity 1 to 5: what its function takes after the draws."""

EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
KINDS: tuple[str, ...] = tuple(kind for kind in CONSTANTS if kind not in EXTRA)
SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)
_FUNCTIONS = vars(noise_blur) | vars(weather) | vars(digital)  # each corruption's has its name
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
    if kind not in CONSTANTS:
        raise InputError(f"no corruption is called {kind!r}; there are {', '.join(CONSTANTS)}")
    if not isinstance(severity, int) or severity not in (0, *SEVERITIES):
        raise InputError(f"severity is {severity!r}; give a whole number from 0 (unchanged) to {SEVERITIES[-1]}")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or images.ndim != 4 or shape[1] != 3 or not shape[0] or min(shape[2:]) < _SMALLEST:
        raise InputError(
            f"images has shape {shape} of {images.dtype}; give bytes (n, 3, height, width) of uint8, before "
            f"normalising, of at least {_SMALLEST} by {_SMALLEST} pixels"
        )
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
