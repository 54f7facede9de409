"""The files of a data path, and whether a model of this kind takes them.

parquet.py, arrays.py, text.py and images.py open them; samples.py has the names that are not paths.
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
    library: str = ""  # the library of sample photographs, with its version

    def name(self, file: Path) -> str:
        """A file as users name it: its path in the given folder, or its own name."""
        return file.name if self.library or file == self.path else str(file.relative_to(self.path))


def resolve(path: Path, kind: Kind) -> Source:
    """The files of a path; refuses those that a model of this kind does not take."""
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
        raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}, an unknown format; {_REMEDY[kind]}")
    _check_taken(path, form, kind)
    check_plain(path, _REMEDY[kind])
    return Source(path, form, (path,))


@contextmanager
def read_as(problem: str, remedy: str) -> Iterator[None]:
    """Turn a library's errors inside, of any type and several lines, into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem} ({reason(error)}); {remedy}") from error


def check_readable(path: Path) -> None:
    """Refuse data that do not exist before a model is loaded."""
    if samples.is_sample(path):
        samples.find(path)
    elif not path.exists():
        raise InputError(f"there is no data at {path}; give a text file, a folder of images, parquet or .npz")


def _check_taken(path: Path, form: Format, kind: Kind) -> None:
    if form not in _TAKES[kind]:
        raise InputError(f"{path} contains {form}, which {_MODELS[kind]} does not take; {_REMEDY[kind]}")


def _folder(path: Path, kind: Kind) -> Source:
    by_format: dict[Format, list[Path]] = {}
    # Hidden files are skipped: desktops store thumbnails and resource forks named like pictures.
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        form = _format(file)
        if form is not None and form != "npz" and not hidden and file.is_file():
            by_format.setdefault(form, []).append(file)
    # Parquet first: such data sets often contain a picture or a list of label names too.
    for form in _TAKES[kind]:
        if form in by_format:
            return Source(path, form, tuple(by_format[form]))
    wanted = ".parquet, " + (", ".join(IMAGES) if kind == "vision" else ".txt")
    other = "".join(f", only {form}" for form in by_format)
    raise InputError(f"the folder {path} contains nothing for {_MODELS[kind]}{other}; add {wanted}")


def _format(file: Path) -> Format | None:
    suffix = file.suffix.lower()
    if suffix in IMAGES:
        return "images"
    known: dict[str, Format] = {".txt": "text", ".parquet": "parquet", ".npz": "npz"}
    return known.get(suffix)
