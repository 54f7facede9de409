"""Batches of pictures for a vision model: from files, parquet, an .npz, a library's samples, or painted.

Pictures are read when their batch is needed, so only one batch is in memory. preprocessing.py transforms them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
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
    decode is skipped and named in ``skipped``.

    Args:
        preprocessing: of the checkpoint.
        source: a file or directory; or the photographs of an installed library, "sample:skimage" or "sample:sklearn".
        count: at most so many.
        batch: pictures per batch.
        argument: the model's argument for pictures.
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
    decoded = partial(_decoded, candidates, preprocessing, batch, argument, skipped, str(source))
    return Inputs(what, "vision", chosen, skipped, decoded)


def _made(preprocessing: Preprocessing, count: int, batch: int, argument: str) -> Iterator[Batch]:
    for first in range(0, count, batch):
        indices = range(first, min(first + batch, count))
        # Painted at the model's size: nothing is resized, and PIL is not needed.
        pixels = [preprocessing.tensor(picture(index, preprocessing.size)) for index in indices]
        yield Batch({argument: torch.stack(pixels)}, names=tuple(f"picture {index}" for index in indices))


def _decoded(
    candidates: Callable[[], Iterable[_Candidate]],
    preprocessing: Preprocessing,
    batch: int,
    argument: str,
    skipped: list[str],
    source: str,
) -> Iterator[Batch]:
    skipped.clear()
    held: list[tuple[_Candidate, Tensor]] = []
    decoded = 0
    for candidate in candidates():
        try:
            held.append((candidate, preprocessing(candidate.read())))
        except InputError:
            raise
        except Exception as error:  # decoders raise whatever they like on broken files
            skipped.append(f"{candidate.name} does not decode ({reason(error)}) and was skipped")
            continue
        decoded += 1
        if len(held) == batch:
            yield _batch(held, argument)
            held = []
    if held:
        yield _batch(held, argument)
    if not decoded:
        raise InputError(
            f"none of the {len(skipped):,} images of {source} decodes (first: {skipped[0]}); convert them to PNG"
        )


def _batch(held: list[tuple[_Candidate, Tensor]], argument: str) -> Batch:
    labels = [candidate.label for candidate, _ in held]
    return Batch(
        {argument: torch.stack([pixels for _, pixels in held])},
        labels=torch.tensor(labels) if None not in labels else None,
        names=tuple(candidate.name for candidate, _ in held),
    )


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
            yield _Candidate(row.where, read, label if isinstance(label, int) else None)

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


_OPEN: dict[str, Callable[[Source, int, Any], _Opened]] = {
    "images": _open_files,
    "parquet": _open_parquet,
    "npz": _open_npz,
}


def _load(pil: Any, file: Path | io.BytesIO) -> Any:
    pil.init()  # only then does it list its formats
    with pil.open(file, formats=[name for name in _FORMATS if name in pil.OPEN]) as opened:
        opened.load()  # now, while the file is open; PIL would wait
        return opened.copy()


def _from_bytes(pil: Any, data: Any) -> Any:
    if not isinstance(data, bytes):
        raise ValueError("the row has no image bytes")
    return _load(pil, io.BytesIO(data))
