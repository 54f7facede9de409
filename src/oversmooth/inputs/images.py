"""Batches of pictures for a vision model: from files, parquet, an .npz, a library's samples, or painted.

Pictures are read when their batch is needed, so only one batch is in memory. preprocessing.py transforms them.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oversmooth.inputs import arrays
from oversmooth.inputs.batches import Batch, Inputs, check_positive, spread
from oversmooth.inputs.parquet import Table
from oversmooth.inputs.pictures import picture
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.inputs.sources import Source, resolve
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library

# The formats of sources.IMAGES, whatever the file name: some decoders, such as PostScript's, run programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
# Painting takes longer than a small model does, and an announcement, a diagnosis and the next model see the same ones.
_painted = lru_cache(maxsize=32)(picture)


@dataclass(frozen=True)
class _Candidate:
    """A chosen picture, which may fail to decode."""

    name: str
    read: Callable[[], Any]  # a PIL image
    label: int | None = None


def image_inputs(
    preprocessing: Preprocessing, source: Path | str | None, *, count: int, batch: int, argument: str = "pixel_values"
) -> Inputs:
    """Up to ``count`` pictures of ``source``, or as many painted by this package if it is None.

    If there are more, the chosen ones are spread evenly over the data and always the same. A picture that does not
    decode is skipped and named in ``skipped``. source: a file or directory; or the photographs of an installed library,
    "sample:skimage" or "sample:sklearn". batch: pictures per batch. argument: the model's argument for pictures.
    """
    check_positive(count=count, batch=batch)
    if source is None:
        made = partial(_made, preprocessing, count, batch, argument)
        return Inputs(f"{count:,} pictures painted by oversmooth", "vision", count, [], made)
    resolved = resolve(Path(source), "vision")
    pil = import_library("PIL.Image", f"reading {resolved.path}")  # a missing library is reported now
    total, candidates = _OPEN[resolved.format](resolved, count, pil)
    chosen = min(count, total)
    what = f"{chosen:,} images of {source}"
    if chosen < total:
        what = f"{chosen:,} of the {total:,} images of {source}, evenly spread"
    if resolved.library:
        names = ", ".join(resolved.files[index].stem for index in spread(total, count))
        what = f"{chosen:,} photographs that come with {resolved.library}: {names}"
    skipped: list[str] = []

    def batches() -> Iterator[Batch]:
        return _batches(_decoded(candidates(), preprocessing, skipped), batch, argument, skipped, str(source))

    return Inputs(what, "vision", chosen, skipped, batches)


def _made(preprocessing: Preprocessing, count: int, batch: int, argument: str) -> Iterator[Batch]:
    for first in range(0, count, batch):
        indices = range(first, min(first + batch, count))
        # Painted at the model's size: nothing is resized, and PIL is not needed.
        pixels = [preprocessing.tensor(_painted(index, preprocessing.size)) for index in indices]
        yield Batch({argument: torch.stack(pixels)}, names=tuple(f"picture {index}" for index in indices))


def _batches(
    decoded: Iterable[tuple[_Candidate, Tensor]], batch: int, argument: str, skipped: list[str], source: str
) -> Iterator[Batch]:
    rest, begun = iter(decoded), False
    while held := list(itertools.islice(rest, batch)):
        begun = True
        labels = [candidate.label for candidate, _ in held]
        yield Batch(
            {argument: torch.stack([pixels for _, pixels in held])},
            labels=torch.tensor(labels) if None not in labels else None,
            names=tuple(candidate.name for candidate, _ in held),
        )
    if not begun:
        none = f"none of the {len(skipped):,} images of {source} decodes (first: {skipped[0]})"
        raise InputError(f"{none}; convert them to PNG")


def _decoded(
    candidates: Iterable[_Candidate], preprocessing: Preprocessing, skipped: list[str]
) -> Iterator[tuple[_Candidate, Tensor]]:
    skipped.clear()
    for candidate in candidates:
        try:
            pixels = preprocessing(candidate.read())
        except InputError:
            raise
        except Exception as error:  # decoders raise whatever they like on broken files
            skipped.append(f"{candidate.name} does not decode ({reason(error)}) and was skipped")
        else:
            yield candidate, pixels


_Opened = tuple[int, Callable[[], Iterable[_Candidate]]]


def _open_files(source: Source, count: int, pil: Any) -> _Opened:
    chosen = [source.files[index] for index in spread(len(source.files), count)]
    return len(source.files), lambda: [_Candidate(source.name(file), partial(_load, pil, file)) for file in chosen]


def _open_parquet(source: Source, count: int, pil: Any) -> _Opened:
    table = Table(source, ("image", "img"), ("label", "fine_label"))

    def candidates() -> Iterator[_Candidate]:
        for row in table.rows(spread(table.total, count)):
            label = row.values.get(table.extra or "")
            read = partial(_from_bytes, pil, row.encoded(table.column))
            yield _Candidate(row.where, read, label if isinstance(label, int) and abs(label) < 2**63 else None)

    return table.total, candidates


def _open_npz(source: Source, count: int, pil: Any) -> _Opened:
    array = arrays.pictures(source.path, count)

    def candidates() -> Iterator[_Candidate]:
        for row, index in enumerate(array.indices):
            pixels, name = array.pixels[row], f"image {index} of {source.path.name}"
            flat = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
            read = partial(pil.fromarray, np.ascontiguousarray(flat))
            yield _Candidate(name, read, None if array.labels is None else array.labels[row])

    return array.total, candidates


_OPEN = {"images": _open_files, "parquet": _open_parquet, "npz": _open_npz}


def _load(pil: Any, file: Path | io.BytesIO) -> Any:
    pil.init()  # only then does it list its formats
    with pil.open(file, formats=[name for name in _FORMATS if name in pil.OPEN]) as opened:
        opened.load()  # now, while the file is open; PIL would wait
        return opened.copy()


def _from_bytes(pil: Any, data: Any) -> Any:
    if not isinstance(data, bytes):
        raise ValueError("the row has no image bytes")
    return _load(pil, io.BytesIO(data))
