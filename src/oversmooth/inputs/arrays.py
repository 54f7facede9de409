"""Pictures or token ids from an .npz file: found by name or by shape, checked, and brought to one form.

Never unpickles anything. An .npz member is read whole (its compression allows nothing else); what is kept is only what
was chosen of it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oversmooth.errors import InputError

Pixels = NDArray[np.uint8]


def pictures(path: Path) -> tuple[Pixels, NDArray[np.int64] | None]:
    """The pictures (n, h, w, channels), 0 to 255, and the labels (n,) if there are any."""
    arrays = _arrays(path, ("images", "labels"))
    images = arrays.get("images")
    if images is None:
        raise InputError(f"{path} has no array `images` and no other of four dimensions; it has {_listing(path)}")
    if images.ndim != 4 or not len(images):
        raise InputError(f"{path}: images has the shape {images.shape}; it must be (n, h, w, 3) or (n, 3, h, w)")
    if images.shape[-1] not in (1, 3, 4):
        if images.shape[1] not in (1, 3, 4):
            raise InputError(f"{path}: images has the shape {images.shape}; no side is 1, 3 or 4 channels")
        images = images.transpose(0, 2, 3, 1)
    labels = arrays.get("labels")
    if labels is not None and (labels.shape != (len(images),) or labels.dtype.kind not in "iu"):
        raise InputError(
            f"{path}: labels has the shape {labels.shape} and type {labels.dtype}; give {len(images)} whole numbers"
        )
    return _bytes(path, images), None if labels is None else labels.astype(np.int64)


def token_ids(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids (n, length) and the attention mask of that shape (ones if the file has none)."""
    arrays = _arrays(path, ("input_ids", "attention_mask"))
    ids = arrays.get("input_ids")
    if ids is None:
        raise InputError(f"{path} has no array `input_ids`; it has {_listing(path)}")
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not ids.size:
        raise InputError(
            f"{path}: input_ids has the shape {ids.shape} and type {ids.dtype}; it must be (n, length) of whole numbers"
        )
    mask = arrays.get("attention_mask", np.ones_like(ids))
    if mask.shape != ids.shape:
        raise InputError(f"{path}: attention_mask has the shape {mask.shape}, but input_ids has {ids.shape}")
    return ids.astype(np.int64), (mask != 0).astype(np.int64)


def _arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    """The arrays of these names; `images` may also be the first of four dimensions under another name."""
    try:
        # Opened here because numpy leaves a file open that turns out to be none of its own.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {name: file[name] for name in names if name in file.files}
            if "images" in names and "images" not in found:
                for name in file.files:
                    array = file[name]
                    if array.ndim == 4 and array.dtype.kind in "uf":
                        found["images"] = array
                        break
            return found
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a readable .npz file ({error}); write it with numpy.savez") from error


def _listing(path: Path) -> str:
    with zipfile.ZipFile(path) as file:
        return ", ".join(name.removesuffix(".npy") for name in file.namelist()) or "nothing"


def _bytes(path: Path, images: NDArray[np.generic]) -> Pixels:
    if images.dtype == np.uint8:
        return images.astype(np.uint8, copy=False)
    if images.dtype.kind not in "iuf":
        raise InputError(f"{path}: images is of type {images.dtype}; it must be numbers, 0 to 255 or 0 to 1")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 255):  # written so that NaN fails
        raise InputError(
            f"{path}: images goes from {low:.4g} to {high:.4g}; give them before normalisation, 0 to 255 or 0 to 1"
        )
    scale = 255.0 if high <= 1 and images.dtype.kind == "f" else 1.0
    return np.rint(images.astype(np.float32) * np.float32(scale)).astype(np.uint8)
