"""Pictures or token ids from an .npz file: found by name or by shape, checked, and brought to one form.

Never unpickles anything. What a member claims to be is looked at before any of it is unpacked; then it is unpacked a
few rows at a time, and only what was chosen is kept.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oversmooth.inputs.batches import spread
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_unpacked
from oversmooth.safety.machine import check_fits

Pixels = NDArray[np.uint8]
_AT_ONCE = 2**24  # bytes


@dataclass(frozen=True)
class Pictures:
    """Those chosen of a file: pixels (chosen, h, w, channels), 0 to 255, and labels (chosen,) if there are any."""

    total: int
    indices: list[int]
    pixels: Pixels
    labels: list[int] | None


@dataclass(frozen=True)
class TokenIds:
    """Rows chosen of a file, and their attention mask (ones if the file has none); the ends are those of all rows."""

    total: int
    indices: list[int]
    ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    least: int
    greatest: int


def pictures(path: Path, count: int) -> Pictures:
    """Up to ``count`` pictures, evenly spread."""
    with _readable(path) as file:
        member = file.get("images") or file.find(lambda member: len(member.shape) == 4 and member.dtype.kind in "uf")
        if member is None:
            raise InputError(f"{path} has no array `images` and no other of four dimensions; it has {file.listing()}")
        shape = member.shape
        if len(shape) != 4 or 0 in shape:
            raise InputError(f"{path}: images has the shape {shape}; it must be (n, h, w, 3) or (n, 3, h, w)")
        if shape[-1] not in (1, 3, 4) and shape[1] not in (1, 3, 4):
            raise InputError(f"{path}: images has the shape {shape}; no side is 1, 3 or 4 channels")
        if member.dtype.kind not in "iuf":
            raise InputError(f"{path}: images is of type {member.dtype}; it must be numbers, 0 to 255 or 0 to 1")
        listed = file.get("labels")
        if listed is not None and (listed.shape != shape[:1] or listed.dtype.kind not in "iu"):
            raise InputError(
                f"{path}: labels has the shape {listed.shape} and type {listed.dtype}; give {shape[0]} whole numbers"
            )
        indices = spread(shape[0], count)
        images, low, high = file.rows(member, indices)
        labels = None if listed is None else file.rows(listed, indices)[0].tolist()
    if member.dtype != np.uint8:
        images = _bytes(path, images, low, high)
    if shape[-1] not in (1, 3, 4):
        images = images.transpose(0, 2, 3, 1)
    return Pictures(shape[0], indices, images.astype(np.uint8, copy=False), labels)


def token_ids(path: Path, count: int) -> TokenIds:
    """Up to ``count`` rows (length,) of token ids, evenly spread."""
    with _readable(path) as file:
        member, hidden = file.get("input_ids"), file.get("attention_mask")
        if member is None:
            raise InputError(f"{path} has no array `input_ids`; it has {file.listing()}")
        if len(member.shape) != 2 or member.dtype.kind not in "iu" or 0 in member.shape:
            raise InputError(
                f"{path}: input_ids has the shape {member.shape} and type {member.dtype}; "
                "it must be (n, length) of whole numbers"
            )
        if hidden is not None and hidden.shape != member.shape:
            raise InputError(f"{path}: attention_mask has the shape {hidden.shape}, but input_ids has {member.shape}")
        indices = spread(member.shape[0], count)
        ids, low, high = file.rows(member, indices)
        mask = np.ones(ids.shape, np.int64) if hidden is None else (file.rows(hidden, indices)[0] != 0).astype(np.int64)
    return TokenIds(member.shape[0], indices, ids.astype(np.int64), mask, int(low), int(high))


@dataclass(frozen=True)
class _Member:
    """What an array claims to be, and where its numbers begin in what it unpacks to."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    in_columns: bool
    begin: int


class _File:
    """The arrays of a file, none of them unpacked yet."""

    def __init__(self, path: Path, opened: zipfile.ZipFile) -> None:
        self.path, self.opened = path, opened
        self.infos = {info.filename.removesuffix(".npy"): info for info in opened.infolist()}

    def get(self, name: str) -> _Member | None:
        return self._member(self.infos[name]) if name in self.infos else None

    def find(self, fits: Callable[[_Member], bool]) -> _Member | None:
        """The first array that fits; what is no array of numbers may lie beside it."""
        for info in self.infos.values():
            with suppress(ValueError):
                if fits(member := self._member(info)):
                    return member
        return None

    def listing(self) -> str:
        names = list(self.infos)
        return (", ".join(names[:8]) + (" and so on" if len(names) > 8 else "")) or "nothing"

    def _member(self, info: zipfile.ZipInfo) -> _Member:
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        with self.opened.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in readers:
                raise ValueError(f"{info.filename} is of version {version}")
            shape, in_columns, dtype = readers[version](stream)
            begin = stream.tell()
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds Python objects, which are never unpickled")
        claimed = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or claimed != info.file_size - begin:
            raise ValueError(f"{info.filename} claims {claimed:,} bytes of numbers and has {info.file_size - begin:,}")
        check_unpacked(f"{info.filename} in {self.path}", info.compress_size, info.file_size)
        return _Member(info, shape, dtype, in_columns, begin)

    def rows(self, member: _Member, wanted: Sequence[int]) -> tuple[NDArray[np.generic], float, float]:
        """These rows (ascending), and the least and the greatest number of all rows; NaN where there is any."""
        total, row = member.shape[0], member.shape[1:]
        size = member.dtype.itemsize * math.prod(row)
        what = f"{member.info.filename} in {self.path}"
        if member.in_columns:  # every row lies all over it
            check_fits(3 * total * size, what, "write it in the usual order: numpy.ascontiguousarray")
            at_once = total
        else:
            at_once = max(1, _AT_ONCE // max(size, 1))
            check_fits(6 * size * (len(wanted) + at_once), f"what was chosen of {what}", "choose fewer")
        kept, ends = [], []
        with self.opened.open(member.info) as stream:
            stream.read(member.begin)
            for first in range(0, total, at_once):
                shape = (min(at_once, total - first), *row)
                numbers = np.frombuffer(stream.read(shape[0] * size), member.dtype)
                block = numbers.reshape(shape, order="F" if member.in_columns else "C")
                ends += [block.min(), block.max()]
                kept.append(block[[i - first for i in wanted if first <= i < first + shape[0]]])
        return np.concatenate(kept), np.min(ends), np.max(ends)


@contextmanager
def _readable(path: Path) -> Iterator[_File]:
    try:
        with zipfile.ZipFile(path) as opened:
            yield _File(path, opened)
    except InputError:
        raise
    except Exception as error:  # zip's own, those of every way to pack, and what numpy makes of a header
        raise InputError(f"{path} is not a readable .npz file ({reason(error)}); write it with numpy.savez") from error


def _bytes(path: Path, images: NDArray[np.generic], low: float, high: float) -> Pixels:
    if not (low >= 0 and high <= 255):  # written so that NaN fails
        raise InputError(
            f"{path}: images goes from {low:.4g} to {high:.4g}; give them before normalisation, 0 to 255 or 0 to 1"
        )
    scale = 255.0 if high <= 1 and images.dtype.kind == "f" else 1.0
    return np.rint(images.astype(np.float32) * np.float32(scale)).astype(np.uint8)
