"""What the authors of CIFAR-C published, read from a user's folder: corrupted test sets, and the photographs of frost.

A corrupted set is one .npy per corruption, which holds the 10,000 test pictures five times over, intensity 1 first.
Only the rows asked for are read; nothing is unpickled.

The photographs are ImageNet-C's, of which CIFAR-C takes the first five; the source distribution of the package
imagenet-c has them in imagenet_c/frost.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import data_folder, read_bytes
from oversmooth.safety.libraries import import_library

FOLDER = "imagenet-c-frost"  # what the folder of photographs is called where OVERSMOOTH_DATA points
_PICTURES = 10_000
_DIGESTS = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}
"""SHA-256 of the official files: other pictures would pass for them."""
_MOST = 64 * 2**20
_REMEDY = "give the folder imagenet_c/frost of imagenet-c's source distribution"


def read_official(folder: str | Path, kind: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images (10000, 3, 32, 32), uint8, and labels (10000,), int64, of one corruption at ``severity`` 1 to 5."""
    rows = slice((severity - 1) * _PICTURES, severity * _PICTURES)
    images = torch.from_numpy(np.array(_mapped(Path(folder) / f"{kind}.npy", 32, 32, 3)[rows]))
    labels = torch.from_numpy(_mapped(Path(folder) / "labels.npy")[rows].astype(np.int64))
    return images.permute(0, 3, 1, 2).contiguous(), labels


def _mapped(path: Path, *shape: int) -> NDArray[Any]:
    remedy = "give the folder that CIFAR-100-C's archive unpacks to"
    if not path.is_file():
        raise InputError(f"{path} does not exist; {remedy}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        good = array.dtype == np.uint8 if shape else array.dtype.kind in "iu"
        if good and array.shape == (5 * _PICTURES, *shape):
            return array
        holds = f"it holds {array.shape} of {array.dtype}, not {(5 * _PICTURES, *shape)}"
    except Exception as error:  # numpy has errors of many kinds for headers that are none
        holds = reason(error)
    raise InputError(f"{path} is not an official file ({holds}); {remedy}")


class FrostPictures(NamedTuple):
    """Pictures of frost, red first, each in the upper left corner of its plane."""

    pictures: Tensor  # (k, 3, h, w) uint8
    sizes: Tensor  # (k, 2) int64, on the CPU: rows and columns of each


def read_frost(named: str | Path) -> FrostPictures:
    """The official photographs of a folder, at a fifth; `FOLDER` is looked for where OVERSMOOTH_DATA points, too."""
    folder = Path(named)
    if str(named) == FOLDER and not folder.is_dir():
        folder = data_folder(FOLDER) or folder
    pil, pictures = import_library("PIL.Image", f"reading {folder}"), []
    for name, digest in _DIGESTS.items():
        data = read_bytes(folder / name, _REMEDY, _MOST)
        if hashlib.sha256(data).hexdigest() != digest:
            raise InputError(f"{folder / name} is not the official picture of that name; {_REMEDY}")
        with pil.open(io.BytesIO(data)) as opened:
            pictures.append(torch.from_numpy(fifth(np.array(opened.convert("RGB")))).permute(2, 0, 1))
    sizes = torch.tensor([picture.shape[1:] for picture in pictures])
    height, width = sizes.amax(dim=0).tolist()
    planes = [pad(one, (0, width - one.shape[2], 0, height - one.shape[1])) for one in pictures]
    return FrostPictures(torch.stack(planes), sizes)


def fifth(pixels: NDArray[Any]) -> NDArray[Any]:
    """``(h, w, 3) -> (round(h/5), round(w/5), 3)``, as the published script's bilinear cv2.resize by 0.2 does it.

    Its sampling points are 5 (i + ½) − ½ = 5 i + 2, whole numbers: no two pixels are ever mixed.
    """
    height, width = (round(side / 5) for side in pixels.shape[:2])
    return pixels[2::5, 2::5][:height, :width]
