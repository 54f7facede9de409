"""MNIST's idx files, plain or gzipped: as Fashion-MNIST is published, and as Debian's dataset-fashion-mnist lays it."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.images.data.images import Images
from oversmooth_papers.tasks.images.data.known import KNOWN

_PREFIX = {"train": "train", "test": "t10k"}
_BYTES = 8  # idx's code for unsigned bytes, the only kind of number these files have


def files(folder: Path, split: str) -> list[Path]:
    """The image file and the label file; none if they are not both there."""
    names = [f"{_PREFIX[split]}-images-idx3-ubyte", f"{_PREFIX[split]}-labels-idx1-ubyte"]
    files = [next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None) for name in names]
    return [file for file in files if file] if all(files) else []


def read(files: list[Path], name: str) -> Images:
    """All images with their labels; ``name`` says whether they are digits or clothes, which the files do not."""
    images, labels = _array(files[0], 3), _array(files[1], 1)
    classes = list(KNOWN["fashion-mnist" if "fashion" in name.lower() else "mnist"].labels)
    return Images(torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64)), classes, name)


def _array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    header = 4 + 4 * dimensions
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            start = opened.read(header)
            if len(start) < header or start[:4] != bytes([0, 0, _BYTES, dimensions]):
                raise InputError(
                    f"{file} does not begin as an idx file of bytes in {dimensions} dimensions; fetch it again"
                )
            shape = tuple(int(size) for size in np.frombuffer(start, ">u4", dimensions, offset=4))
            wanted = math.prod(shape)
            check_fits(3 * wanted, f"{file} says it has {wanted:,} bytes {shape}, which", "fetch it again")
            data = bytearray(opened.read(wanted + 1))  # no more than that, however much is packed in it
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} is not a readable gzip file ({reason(error)}); fetch it again") from error
    if len(data) != wanted:
        has = f"{len(data):,}" if len(data) < wanted else "more"
        raise InputError(f"{file} says it has {wanted:,} bytes {shape} and has {has}; fetch it again")
    return np.frombuffer(data, np.uint8).reshape(shape)
