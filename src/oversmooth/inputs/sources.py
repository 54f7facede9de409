"""Which files a path given as data stands for, and whether a model of this kind can take them.

Not for opening them: parquet.py, arrays.py, text.py and images.py do that. samples.py knows the names that are no path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oversmooth.inputs import samples
from oversmooth.inputs.batches import Kind
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain
from oversmooth.safety.libraries import import_library

IMAGES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")

Format = Literal["images", "text", "parquet", "npz"]
_TAKES: dict[Kind, tuple[Format, ...]] = {"vision": ("parquet", "images", "npz"), "text": ("parquet", "text", "npz")}
_MODELS: dict[Kind, str] = {"vision": "a vision model", "text": "a language model"}
_REMEDY: dict[Kind, str] = {
    "vision": "give an image, a folder of images, parquet with an `image` column, or .npz with an array `images`",
    "text": "give a .txt file, a folder of them, parquet with a `text` column, or .npz with an array `input_ids`",
}


@dataclass(frozen=True)
class Source:
    """Files of one format, sorted, and the path the user gave for them."""

    path: Path
    format: Format
    files: tuple[Path, ...]
    library: str = ""
    """Whose sample photographs these are, with its version."""

    def name(self, file: Path) -> str:
        """A file as the user would call it: its place in the folder given, or its own name."""
        return file.name if self.library or file == self.path else str(file.relative_to(self.path))


def resolve(path: Path, kind: Kind) -> Source:
    """The files that path stands for, or a sentence on why a model of this kind cannot take them."""
    if samples.is_sample(path):
        library, files = samples.find(path)
        _check_taken(path, "images", kind)
        return Source(path, "images", files, library)
    if not path.exists():
        raise InputError(f"there is no data at {path}; {_REMEDY[kind]}")
    if path.is_dir():
        return _folder(path, kind)
    form = _format(path)
    if form is None:
        raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}, which is no known data; {_REMEDY[kind]}")
    _check_taken(path, form, kind)
    check_plain(path, _REMEDY[kind])
    return Source(path, form, (path,))


@contextmanager
def read_as(problem: str, remedy: str) -> Iterator[None]:
    """One sentence for whatever a library finds wrong inside: they have errors of any kind, some of several lines."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem} ({reason(error)}); {remedy}") from error


def check_readable(path: Path) -> None:
    """Refuse data that is not there, or needs a library that is not, before a model is loaded for it."""
    if sample := samples.is_sample(path):
        samples.find(path)
    elif not path.exists():
        raise InputError(f"there is no data at {path}; give a text file, a folder of images, parquet or .npz")
    parquet = next(path.rglob("*.parquet"), None) is not None if path.is_dir() else _format(path) == "parquet"
    if parquet:
        import_library("pyarrow.parquet", f"reading {path}")
    if sample or _format(path) == "images":
        import_library("PIL.Image", f"reading {path}")


def _check_taken(path: Path, form: Format, kind: Kind) -> None:
    if form not in _TAKES[kind]:
        raise InputError(f"{path} holds {form}, which {_MODELS[kind]} does not take; {_REMEDY[kind]}")


def _folder(path: Path, kind: Kind) -> Source:
    by_format: dict[Format, list[Path]] = {}
    # Hidden files are left out: desktops put thumbnails and resource forks named like pictures there.
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        form = _format(file)
        if form is not None and form != "npz" and not hidden and file.is_file():
            by_format.setdefault(form, []).append(file)
    # Parquet comes first: a data set in that form often has a picture or a list of label names beside it.
    for form in _TAKES[kind]:
        if form in by_format:
            return Source(path, form, tuple(by_format[form]))
    wanted = ".parquet, " + (", ".join(IMAGES) if kind == "vision" else ".txt")
    other = "".join(f", only {form}" for form in by_format)
    raise InputError(f"the folder {path} holds nothing for {_MODELS[kind]}{other}; looked for {wanted}")


def _format(file: Path) -> Format | None:
    suffix = file.suffix.lower()
    if suffix in IMAGES:
        return "images"
    known: dict[str, Format] = {".txt": "text", ".parquet": "parquet", ".npz": "npz"}
    return known.get(suffix)
