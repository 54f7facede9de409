"""The official corrupted test sets (CIFAR-10-C, CIFAR-100-C) as their authors published them: one .npy per corruption.

Each holds the 10,000 test pictures five times over, intensity 1 first. Only the rows asked for are read; nothing is
unpickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth_papers.tasks.images.corruptions.apply import check_kind
from oversmooth_papers.tasks.images.corruptions.constants import SEVERITIES

_PICTURES = 10_000


def read_official(folder: str | Path, kind: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images (10000, 3, 32, 32), uint8, and labels (10000,), int64, of one corruption at ``severity`` 1 to 5."""
    check_kind(kind)
    if not isinstance(severity, int) or severity not in SEVERITIES:
        raise InputError(
            f"severity is {severity!r}; the official files hold 1 to {SEVERITIES[-1]}, and 0 is the clean test set"
        )
    folder, total = Path(folder), _PICTURES * len(SEVERITIES)
    pictures = _mapped(folder / f"{kind}.npy")
    if pictures.shape != (total, 32, 32, 3) or pictures.dtype != np.uint8:
        raise InputError(
            f"{folder / kind}.npy holds {pictures.shape} of {pictures.dtype}; the official files hold "
            f"{(total, 32, 32, 3)} of uint8, so download it again"
        )
    labels = _mapped(folder / "labels.npy")
    if labels.shape != (total,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"{folder / 'labels.npy'} holds {labels.shape} of {labels.dtype}; the official one holds {(total,)} whole "
            "numbers, so download it again"
        )
    rows = slice((severity - 1) * _PICTURES, severity * _PICTURES)
    images = torch.from_numpy(np.array(pictures[rows])).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(labels[rows].astype(np.int64))


def _mapped(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise InputError(f"{path} does not exist; give the folder that CIFAR-100-C's archive unpacks to")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy has errors of many kinds for headers that are none
        raise InputError(f"{path} is not a readable .npy file ({reason(error)}); download it again") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path} is an archive of arrays; the official files are plain .npy, so download it again")
    return array
