"""Atomic writing of files and folders, checks before writing, and bounded reading."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError, reason

MOST_JSON = 64 * 2**20  # bytes of a JSON file; an index of a thousand shards has a few million
_OF_MODELS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip
_DEEPEST = 64  # levels of lists and objects; deeper files are attacks
_ONLY_IF_LARGE, _MOST_PACKED = 2**29, 200  # bytes, and unpacked bytes per packed byte
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_MARK = ".oversmooth"
_PROCESSES = "/proc/self/ns/pid"


# Written whole or not at all


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def whole_folder(path: Path) -> AbstractContextManager[Path]:
    """`whole_file` for a directory, which must be new or empty."""
    check_new_folder(path)
    return whole_file(path, folder=True)


@contextmanager
def whole_file(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A temporary path, renamed to ``path`` if the block succeeds and removed otherwise."""
    if not folder and not path.is_symlink() and (kind := _kind(path)):  # it would be replaced for everyone
        raise InputError(f"{path} cannot be written: it is {kind}; name a file")
    made = [parent for parent in path.parents if not parent.exists()]
    parent = path.parent.resolve()
    # The name contains the target, machine and process; file systems allow 255 bytes.
    short = os.fsencode(path.stem)[:60].decode(sys.getfilesystemencoding(), "ignore")
    temporary = parent / f".{short}.{process_space()}-{os.getpid()}-{secrets.token_hex(4)}{_MARK}{path.suffix}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f".*.{process_space()}-*-*{_MARK}*"):  # left by a killed process of this machine
            if (process := re.search(rf"-(\d+)-\w{{8}}{_MARK}(\.|$)", left.name)) and has_ended(int(process[1])):
                _remove(left)
        temporary.mkdir() if folder else temporary.touch()
        mode = temporary.stat().st_mode & 0o777  # by the user's umask; libraries make private files
        yield temporary
        for file in (temporary, *(one for one in temporary.rglob("*") if not one.is_symlink())):
            os.chmod(file, mode if file.is_dir() else mode & 0o666)
            _to_disk(file)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()  # it is empty
        temporary.replace(path)
        _to_disk(parent)
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise  # the content failed, not the writing
        why = getattr(error, "strerror", None) or str(error).removeprefix("Error while serializing: ").rstrip(".")
        kept = "the previous file is unchanged" if path.is_file() else "nothing was written"
        raise InputError(f"{path} cannot be written: {why}; free space or choose another place ({kept})") from error
    finally:
        _remove(temporary)
        with contextlib.suppress(OSError):  # directories with other files stay
            for parent in made:
                parent.rmdir()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another user's, or never made
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def process_space() -> str:
    """Identifies the machine or container in which a process id is unique."""
    space = os.readlink(_PROCESSES) if os.path.islink(_PROCESSES) else ""
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode(errors="replace")).hexdigest()[:8]


def has_ended(process: int) -> bool:
    """Whether no process with this id runs here; False if unknown."""
    try:
        if os.name == "posix":  # on Windows the signal would end it
            os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, PermissionError)  # raised for another user's process
    return False


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # unsupported by some file systems
            raise
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Append a whole line to a file, which may be new, or nothing and raise OSError."""
    before = path.stat().st_size if path.is_file() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(path, before)  # half of it may have been written
        raise


# Checked before the work


def check_writable(path: Path, endings: tuple[str, ...]) -> None:
    """Refuse a path that is not writable or has none of these endings."""
    if kind := _kind(path):
        raise InputError(f"{path} is {kind}; name a file")
    if path.suffix.lower() not in endings:
        raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}; choose one of {', '.join(endings)}")
    if path.exists() and (path.name in _OF_MODELS or path.name.endswith(".index.json")):
        raise InputError(f"{path} is part of a model; name another file")
    _check_place(path.parent, path)


def check_folder(folder: Path) -> None:
    """Refuse a directory that cannot be created or written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a directory")
    _check_place(folder, folder)


def check_new_folder(path: Path) -> None:
    """Refuse a directory that is not empty or not writable."""
    check_folder(path)
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; name a new or an empty directory")


def _check_place(folder: Path, wanted: Path) -> None:
    """Check the nearest existing directory: missing ones are created later."""
    if wanted.is_symlink() and not wanted.exists():
        raise InputError(f"{wanted} is a broken link; remove it, or choose another place")
    there = next(ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists())
    if not there.is_dir():
        raise InputError(f"{wanted} cannot be written: {there} is a file, not a directory; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{wanted} cannot be written: no permission in {there}; choose another place")


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse outputs that coincide, or would replace an input."""
    read = {os.path.realpath(name) for name in inputs if name is not None}
    written: set[str] = set()
    for path in filter(None, outputs):
        real = os.path.realpath(path)
        if real in read:
            raise InputError(f"{path} is both an input and an output; name another output")
        if real in written:
            raise InputError(f"{path} is named for two outputs; name another file for one of them")
        written.add(real)


# Folders


def cache_folder() -> Path:
    """Directory for reproducible results: OVERSMOOTH_CACHE, else a folder in the user's cache directory."""
    if named := os.environ.get("OVERSMOOTH_CACHE"):
        return Path(named)
    users = os.environ.get("XDG_CACHE_HOME", "")
    try:  # only absolute paths count, as its specification has it
        return (Path(users) if os.path.isabs(users) else Path.home() / ".cache") / "oversmooth"
    except RuntimeError:  # no home, as in some containers: nothing is cached
        return Path(os.devnull)


def data_folder(*names: str) -> Path | None:
    """A data set or model of one of these names in OVERSMOOTH_DATA, or in its folders data and weights."""
    given = os.environ.get("OVERSMOOTH_DATA")
    places = [Path(given, inside) for inside in ("data", "weights", "")] if given else []
    return next((place / name for place in places for name in names if (place / name).is_dir()), None)


def data_place() -> str:
    """Where `data_folder` looks, for error messages."""
    given = os.environ.get("OVERSMOOTH_DATA")
    return f"OVERSMOOTH_DATA ({given})" if given else "OVERSMOOTH_DATA, which is not set"


# Bounded reading


def _kind(path: Path) -> str:
    """The kind of a path that is not a file, since pipes and devices may block; empty for a file or nothing."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "") if path.exists() else ""


def check_plain(path: Path, remedy: str) -> int:
    """The size of a regular file; refuses anything else."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a name with a zero byte is the latter
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); {remedy}") from error
    if kind := _KINDS.get(stat.S_IFMT(status.st_mode)):
        raise InputError(f"{path} cannot be read: it is {kind}; {remedy}")
    return status.st_size


def read_bytes(path: Path, remedy: str, most: int = MOST_JSON) -> bytes:
    """The content of a file, at most this large."""
    size, data = check_plain(path, remedy), b""
    if size <= most:
        try:
            with path.open("rb") as opened:
                data = opened.read(most + 1)  # some report size 0 and have many
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
    if max(size, len(data)) > most:
        raise InputError(
            f"{path} cannot be read: it has {max(size, len(data)):,} bytes, over the limit of {most:,}; {remedy}"
        )
    return data


def read_text(path: Path, remedy: str, most: int = MOST_JSON) -> str:
    """The content of a text file."""
    try:
        return read_bytes(path, remedy, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: it is not UTF-8 text (byte {error.start:,}); {remedy}") from error


def read_json(path: Path, remedy: str) -> Any:
    """The content of a JSON file."""
    return parse_json(read_text(path, remedy), f"{path} cannot be read: it is not JSON", remedy)


def parse_json(text: str | bytes, otherwise: str, remedy: str) -> Any:
    """Parse JSON of limited depth. otherwise: beginning of the error message."""
    try:
        value = json.loads(text)
        if _is_deep(value):
            raise RecursionError
    except RecursionError:
        raise InputError(f"{otherwise} (too deep); {remedy}") from None
    except (ValueError, MemoryError) as error:  # numbers of thousands of digits are ValueErrors, too
        raise InputError(f"{otherwise} ({reason(error)}); {remedy}") from None
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inside = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list)))
        level = [v for values in inside for v in values if isinstance(v, (dict, list))]
    return bool(level)


def check_unpacked(what: str, packed: int, unpacked: int) -> None:
    """Refuse an archive bomb before it is unpacked: data packs to a hundredth at most, zeros to a thousandth."""
    if unpacked > _ONLY_IF_LARGE and unpacked > _MOST_PACKED * max(packed, 1):
        raise InputError(
            f"{what} has {packed:,} bytes and unpacks to {unpacked:,}, {unpacked // max(packed, 1):,} times as many; "
            "if that is intended, give it unpacked"
        )
