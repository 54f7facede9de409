"""Pictures or token ids from an .npz file: found by name or shape, checked, and converted to one layout.

Nothing is unpickled. The unpacked size of an array is checked before it is unpacked.
"""

from __future__ import annotations

import contextlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oversmooth.inputs.batches import spread
from oversmooth.inputs.sources import read_as
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_unpacked
from oversmooth.safety.machine import check_fits

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Pictures:
    """Chosen pictures of a file: pixels (chosen, h, w, channels), 0 to 255, and labels (chosen,) if there are any."""

    total: int
    indices: list[int]
    pixels: Pixels
    labels: list[int] | None


@dataclass(frozen=True)
class TokenIds:
    """Chosen rows of a file and their attention mask (ones if it has none)."""

    total: int
    indices: list[int]
    ids: NDArray[np.int64]
    mask: NDArray[np.int64]


def pictures(path: Path, count: int) -> Pictures:
    """Up to ``count`` pictures, evenly spread."""
    images, labels, listing = _arrays(path, "images", "labels")
    if images is None:
        raise InputError(f"{path} has no array `images` and no other with four dimensions; it has {listing}")
    if images.ndim != 4 or 0 in images.shape:
        raise InputError(f"{path}: images has shape {images.shape}; give (n, h, w, 3) or (n, 3, h, w)")
    if images.shape[-1] not in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        raise InputError(f"{path}: images has shape {images.shape}, without 1, 3 or 4 channels; give (n, h, w, 3)")
    if images.dtype.kind not in "iuf":
        raise InputError(f"{path}: images has type {images.dtype}; give numbers, 0 to 255 or 0 to 1")
    if labels is not None and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"):
        found = f"labels has shape {labels.shape} and type {labels.dtype}"
        raise InputError(f"{path}: {found}; give {len(images)} whole numbers")
    indices = spread(len(images), count)
    pixels = images[indices]
    if images.dtype != np.uint8:
        low, high = images.min(), images.max()
        if not (low >= 0 and high <= 255):  # written so that NaN fails
            raise InputError(f"{path}: images ranges from {low:.4g} to {high:.4g}; give pixels from 0 to 255 or 0 to 1")
        scale = np.float32(255 if high <= 1 and images.dtype.kind == "f" else 1)
        pixels = np.rint(pixels.astype(np.float32) * scale).astype(np.uint8)
    if images.shape[-1] not in (1, 3, 4):
        pixels = pixels.transpose(0, 2, 3, 1)
    return Pictures(len(images), indices, pixels, None if labels is None else labels[indices].astype(np.int64).tolist())


def token_ids(path: Path, count: int, known: int) -> TokenIds:
    """Up to ``count`` rows (length,) of token ids, evenly spread. known: how many tokens the tokenizer has."""
    ids, hidden, listing = _arrays(path, "input_ids", "attention_mask")
    if ids is None:
        raise InputError(f"{path} has no array `input_ids`; it has {listing}")
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or 0 in ids.shape:
        found = f"input_ids has shape {ids.shape} and type {ids.dtype}"
        raise InputError(f"{path}: {found}; give whole numbers (n, length)")
    if ids.min() < 0 or ids.max() >= known:
        found = f"input_ids ranges from {ids.min()} to {ids.max()}, but the tokenizer has {known:,} tokens"
        raise InputError(f"{path}: {found}; give ids of this model's tokenizer")
    if hidden is not None and hidden.shape != ids.shape:
        found = f"attention_mask has shape {hidden.shape}, but input_ids has {ids.shape}"
        raise InputError(f"{path}: {found}; give equal shapes")
    if hidden is not None and hidden.dtype.kind not in "biuf":
        raise InputError(f"{path}: attention_mask has type {hidden.dtype}; give 1 for each token and 0 for padding")
    indices = spread(len(ids), count)
    mask = np.ones_like(ids) if hidden is None else hidden != 0
    chosen, mask = (rows[indices].astype(np.int64) for rows in (ids, mask))
    return TokenIds(len(ids), indices, chosen, mask)


def _arrays(path: Path, wanted: str, other: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None, str]:
    """The two arrays of these names, None if missing, and a list of all arrays.

    Pictures may have any name: the first array of four dimensions is taken.
    """
    # zip, its compression methods and numpy raise errors of many types.
    with read_as(f"{path} is not a readable .npz file", "write it with numpy.savez"):
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                check_unpacked(f"{info.filename} in {path}", info.compress_size, info.file_size)
                check_fits(3 * info.file_size, f"reading {info.filename} in {path}", "give fewer at a time")
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in (wanted, other) if name in file.files}
            if any(isinstance(array, bytes) for array in found.values()):
                raise ValueError("it contains something other than arrays")
            for name in file.files if wanted == "images" else ():
                with contextlib.suppress(ValueError, AttributeError):  # other members may be no arrays
                    if wanted not in found and (array := file[name]).ndim == 4 and array.dtype.kind in "uf":
                        found[wanted] = array
            listing = ", ".join(file.files[:8]) + (" and so on" if len(file.files) > 8 else "")
    return found.get(wanted), found.get(other), listing or "nothing"
