"""CIFAR's "binary version": one or two label bytes and 3,072 pixel bytes a row, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth_papers.tasks.images.data.images import Images, class_names
from oversmooth_papers.tasks.images.data.known import KNOWN

_SIDE, _PIXELS = 32, 3072


def files(folder: Path, split: str) -> list[Path]:
    """CIFAR-100's ``train.bin`` or ``test.bin``, or CIFAR-10's batches; none if they are not all there."""
    if (folder / f"{split}.bin").is_file():
        return [folder / f"{split}.bin"]
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] if split == "train" else ["test_batch.bin"]
    wanted = [folder / name for name in names]
    return wanted if all(file.is_file() for file in wanted) else []


def read(files: list[Path], *, coarse: bool = False) -> Images:
    """All images of these files, in order."""
    cifar100 = files[0].name in ("train.bin", "test.bin")
    before = 2 if cifar100 else 1
    sizes = [file.stat().st_size for file in files]
    for file, size in zip(files, sizes, strict=True):
        if size % (before + _PIXELS):
            raise InputError(
                f"{file} has {size:,} bytes, not a whole number of rows of {before + _PIXELS:,}; fetch it again"
            )
    check_fits(
        3 * sum(sizes), f"reading {files[0].parent}", "give fewer images"
    )  # as read, in one piece, without labels
    rows = [np.fromfile(file, np.uint8).reshape(-1, before + _PIXELS) for file in files]
    table = np.concatenate(rows)
    labels = table[:, 0 if coarse or not cifar100 else 1].astype(np.int64)
    pixels = np.ascontiguousarray(table[:, before:]).reshape(-1, 3, _SIDE, _SIDE)
    listed = ("coarse_label_names.txt" if coarse else "fine_label_names.txt") if cifar100 else "batches.meta.txt"
    file = files[0].parent / listed
    if file.is_file():
        classes = class_names(file)
    else:
        numbers = range(20 if coarse else 100)
        classes = [str(number) for number in numbers] if cifar100 else list(KNOWN["cifar10"].labels)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), classes, "cifar100" if cifar100 else "cifar10")
