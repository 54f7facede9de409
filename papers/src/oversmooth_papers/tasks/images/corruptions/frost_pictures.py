"""The five photographs that CIFAR-C's frost is cut from, read from a folder of the user's and made small.

They are ImageNet-C's, of which CIFAR-C takes the first five; the source distribution of the package imagenet-c has them
in imagenet_c/frost. Nothing is smoothed when they are made small: the published script's bilinear resize to a fifth, by
OpenCV, takes the pixel in the middle of each square of five by five, as that is where its sampling points fall.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import data_folder, read_bytes
from oversmooth.safety.libraries import import_library

FOLDER = "imagenet-c-frost"
"""What the folder is called where OVERSMOOTH_DATA points."""
_DIGESTS = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}
"""SHA-256 of the official files: other pictures would pass for them."""
_EVERY = 5
_MOST = 64 * 2**20
_REMEDY = "give the folder imagenet_c/frost of imagenet-c's source distribution"


@dataclass(frozen=True)
class FrostPictures:
    """The photographs at a fifth of their size, ``(3, h, w)`` each, uint8, red first."""

    pictures: tuple[Tensor, ...]

    def windows(self, which: Tensor, down: Tensor, right: Tensor, height: int, width: int) -> Tensor:
        """Windows ``(n, 3, height, width)`` of pictures ``which`` (n,).

        down, right: ``(n,)``, 0 to 1: where a window begins, as a share of the places there are. As published, the last
        place at each end is left out.
        """
        device = which.device
        out = torch.empty(len(which), 3, height, width, dtype=torch.uint8, device=device)
        for index, picture in enumerate(self.pictures):
            tall, wide = picture.shape[1] - height, picture.shape[2] - width
            if min(tall, wide) < 1:
                raise InputError(
                    f"images of {height} by {width} pixels do not fit into frost of {picture.shape[1]} by "
                    f"{picture.shape[2]}; give smaller images, or use the textures made here"
                )
            chosen = (which == index).nonzero()[:, 0]
            rows = (down[chosen] * tall).long()[:, None] + torch.arange(height, device=device)
            columns = (right[chosen] * wide).long()[:, None] + torch.arange(width, device=device)
            out[chosen] = picture.to(device)[:, rows[:, :, None], columns[:, None, :]].movedim(0, 1)
        return out


def frost_folder(named: str | Path) -> Path:
    """The folder meant: a path, or `FOLDER`, which is looked for where OVERSMOOTH_DATA points."""
    if str(named) == FOLDER and not Path(named).is_dir():
        there = data_folder(FOLDER)
        if there is None:
            raise InputError(f"{FOLDER} is not here nor where OVERSMOOTH_DATA points; {_REMEDY}")
        return there
    return Path(named)


def read_frost(named: str | Path) -> FrostPictures:
    """The official pictures of a folder, or a sentence on which is missing or another."""
    folder = frost_folder(named)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} with the pictures of frost; {_REMEDY}")
    pil = import_library("PIL.Image", f"reading {folder}")
    return FrostPictures(tuple(_read(pil, folder / name, digest) for name, digest in _DIGESTS.items()))


def _read(pil: Any, path: Path, digest: str) -> Tensor:
    data = read_bytes(path, _REMEDY, _MOST)
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{path} is not the official picture of that name; {_REMEDY}")
    try:
        with pil.open(io.BytesIO(data), formats=["PNG", "JPEG"]) as opened:
            pixels = np.asarray(opened.convert("RGB"))
    except Exception as error:  # decoders raise whatever they like
        raise InputError(f"{path} does not decode ({reason(error)}); {_REMEDY}") from error
    return torch.from_numpy(np.ascontiguousarray(fifth(pixels).transpose(2, 0, 1)))


def fifth(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``(h, w, 3) -> (round(h/5), round(w/5), 3)``, as cv2.resize with fx = fy = 0.2 does it.

    Its sampling points are 5 (i + ½) − ½ = 5 i + 2, whole numbers: no two pixels are ever mixed.
    """
    height, width = (round(side / _EVERY) for side in pixels.shape[:2])
    return pixels[2::_EVERY, 2::_EVERY][:height, :width]
