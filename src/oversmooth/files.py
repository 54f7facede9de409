"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oversmooth.errors import InputError


def check_writable(path: Path, endings: tuple[str, ...]) -> None:
    """Refuse a path that will not do, before the work is done that is to go there."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file")
    if path.suffix.lower() not in endings:
        raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}; choose one of {', '.join(endings)}")
    _check_can_be_made(path.parent, path)


def check_folder(folder: Path) -> None:
    """Refuse a directory that is not there and cannot be made, or cannot be written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a directory")
    _check_can_be_made(folder, folder)


def _check_can_be_made(folder: Path, wanted: Path) -> None:
    """What is not there of a directory is made when something is written: look at the nearest one that is."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"{wanted} cannot be written: {there} is a file, not a directory; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{wanted} cannot be written: no permission in {there}; choose another place")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside path, renamed to it when the block succeeds and removed when it does not.

    Directories on the way that are not there are made, here and in `whole_folder`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; choose another place") from error
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are private; what a user asks for is not
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing was left there") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary directory beside path, renamed to it when the block succeeds and removed when it does not."""
    check_new_folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.resolve().parent))
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror}; choose another place") from error
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        for file in temporary.iterdir():
            os.chmod(file, 0o666 & ~_umask())
        if path.is_dir():
            path.rmdir()  # it is empty
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing was left there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new_folder(path: Path) -> None:
    """Refuse a directory that has something in it, and what `check_folder` refuses."""
    check_folder(path)
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} has files in it; name a new or an empty directory")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
