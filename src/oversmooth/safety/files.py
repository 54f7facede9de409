"""Files that are there whole or not at all, and files that are looked at before they are read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError, reason

_OF_MODELS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip


def check_writable(path: Path, endings: tuple[str, ...]) -> None:
    """Refuse a path that will not do, before the work is done that is to go there."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file")
    if path.suffix.lower() not in endings:
        raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}; choose one of {', '.join(endings)}")
    _check_leads_somewhere(path)
    if path.exists():
        for is_kind, words in _KINDS:
            if is_kind(path.stat().st_mode):
                raise InputError(f"{path} is {words}; name a file")
        if path.name in _OF_MODELS or path.name.endswith(".index.json"):
            raise InputError(f"{path} is part of a model, which would lose it; name another file")
    _check_can_be_made(path.parent, path)


def check_folder(folder: Path) -> None:
    """Refuse a directory that is not there and cannot be made, or cannot be written to."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a directory")
    _check_leads_somewhere(folder)
    _check_can_be_made(folder, folder)


def _check_leads_somewhere(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise InputError(f"{path} is a link that leads nowhere; remove it, or choose another place")


def _check_can_be_made(folder: Path, wanted: Path) -> None:
    """What is not there of a directory is made when something is written: look at the nearest one that is."""
    there = next(ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists())
    if not there.is_dir():
        raise InputError(f"{wanted} cannot be written: {there} is a file, not a directory; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{wanted} cannot be written: no permission in {there}; choose another place")


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse outputs that are one another, or would take the place of what is read."""
    read = {os.path.realpath(name): name for name in inputs if name is not None}
    written: dict[str, Path] = {}
    for path in outputs:
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in read:
            raise InputError(f"{path} is to be read and to be written; name another file to write")
        if real in written:
            raise InputError(f"{path} is named twice as a place to write; name another file for one of the two")
        written[real] = path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside path, renamed to it when the block succeeds and removed when it does not.

    Directories on the way that are not there are made, here and in `whole_folder`, and what processes that were killed
    left beside path is removed.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        tidy(path.parent)
        handle, name = tempfile.mkstemp(prefix=_prefix(path.stem), suffix=_MARK + path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        _remove_empty(made)
        raise _unwritten(path, error) from error
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are private; what a user asks for is not
        _to_disk(temporary)
        temporary.replace(path)
        _to_disk(path.parent)
    except Exception as error:
        if not _of_the_disk(error):
            raise
        raise _unwritten(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
        _remove_empty(made)


def _check_replaceable(path: Path) -> None:
    """Refuse a device or a pipe: a file that is renamed to it would take its place for everyone."""
    if path.exists() and not path.is_symlink():
        for is_kind, words in _KINDS:
            if is_kind(path.stat().st_mode):
                raise InputError(f"{path} cannot be written: it is {words}; name a file")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary directory beside path, renamed to it when the block succeeds and removed when it does not."""
    check_new_folder(path)
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.resolve().parent
        tidy(beside)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(path.name), suffix=_MARK, dir=beside))
    except OSError as error:
        _remove_empty(made)
        raise _unwritten(path, error) from error
    try:
        yield temporary
        for file in (temporary, *temporary.rglob("*")):
            if file.is_symlink():
                continue  # what it leads to is not ours
            os.chmod(file, (0o777 if file.is_dir() else 0o666) & ~_umask())
            _to_disk(file)
        if path.is_dir():
            path.rmdir()  # it is empty
        temporary.replace(path)
        _to_disk(beside)
    except Exception as error:
        if not _of_the_disk(error):
            raise
        raise _unwritten(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _remove_empty(made)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove the directories made for a write that failed, innermost first."""
    with contextlib.suppress(OSError):  # it has something in it
        for folder in folders:
            folder.rmdir()


def cache_folder() -> Path:
    """What may be computed again is kept here: OVERSMOOTH_CACHE, else a folder in the user's cache directory."""
    if named := os.environ.get("OVERSMOOTH_CACHE"):
        return Path(named)
    users = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not users.is_absolute():  # as its specification has it
        try:
            users = Path.home() / ".cache"
        except RuntimeError:  # a user without a home, as in some containers: nothing is kept
            return Path(os.devnull)
    return users / "oversmooth"


def data_folder(*names: str) -> Path | None:
    """A data set or a model of one of these names where OVERSMOOTH_DATA points: in it, or in its folders data and
    weights.
    """
    given = os.environ.get("OVERSMOOTH_DATA")
    if not given:
        return None
    candidates = (Path(given) / inside / name for inside in ("data", "weights", "") for name in names)
    return next((folder for folder in candidates if folder.is_dir()), None)


def data_place() -> str:
    """Where `data_folder` looks, for a sentence that says what is not there."""
    given = os.environ.get("OVERSMOOTH_DATA")
    return f"OVERSMOOTH_DATA ({given})" if given else "OVERSMOOTH_DATA, which is not set"


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file: all of it, or nothing.

    Args:
        path: which need not be there yet.
        line: without the end of the line.

    Raises:
        OSError: it could not be written.
    """
    before = path.stat().st_size if path.is_file() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(path, before)  # there may have been room for half of it
        raise


def check_new_folder(path: Path) -> None:
    """Refuse a directory that has something in it, and what `check_folder` refuses."""
    check_folder(path)
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} has files in it; name a new or an empty directory")


_MARK = ".oversmooth"


def _prefix(name: str) -> str:
    """Of temporary names: what it is to be, and which process on which machine makes it."""
    short = os.fsencode(name)[:60].decode(sys.getfilesystemencoding(), "ignore")  # names have 255 bytes at most
    return f".{short}.{_machine()}-{os.getpid()}-"


def tidy(folder: Path) -> None:
    """Remove what `whole_file` and `whole_folder` could not, as their process was killed; never what one still writes.

    Processes of other machines that share the directory cannot be asked, so theirs stays.
    """
    if os.name != "posix":
        return
    ours = re.compile(rf"\..*\.{_machine()}-(\d+)-\w{{8}}{re.escape(_MARK)}(\..*)?")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (leftover := ours.fullmatch(entry.name)) and not _runs(int(leftover[1])):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink(missing_ok=True)


def _machine() -> str:
    """Tells machines apart, and containers of one machine, which do not see one another's processes."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode(errors="replace")).hexdigest()[:8]


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is someone else's; or no process at all
        return True
    return True


def _to_disk(path: Path) -> None:
    """What is written, or renamed in a directory, is on the disk: it outlives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # which not every file system can do
            raise
    finally:
        os.close(descriptor)


def _of_the_disk(error: Exception) -> bool:
    """Whether writing failed, and not the making of what was to be written."""
    return isinstance(error, OSError) or type(error).__name__ == "SafetensorError"


def _unwritten(path: Path, error: Exception) -> InputError:
    reason = str(error).removeprefix("Error while serializing: ").rstrip(".")  # as safetensors has it
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    kept = "what was there before is untouched" if path.is_file() else "nothing was left there"
    return InputError(f"{path} cannot be written: {reason}; make room or choose another place ({kept})")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


MOST_JSON = 64 * 2**20
"""Bytes of a file of settings; an index of a thousand shards has a few million."""
_DEEPEST = 64  # levels of lists and objects: what is deeper was made to break readers
_AT_ONCE = 2**20
_ONLY_IF_LARGE, _MOST_PACKED = 2**29, 200  # bytes, and how many of one packed byte
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_plain(path: Path, remedy: str) -> int:
    """The size of a file, once it is sure to be one: a pipe or a device may never end, nor begin."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a name with a zero byte is the latter
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); {remedy}") from error
    for is_kind, words in _KINDS:
        if is_kind(status.st_mode):
            raise InputError(f"{path} cannot be read: it is {words}; {remedy}")
    return status.st_size


def read_bytes(path: Path, remedy: str, most: int = MOST_JSON) -> bytes:
    """All of a file that is no larger than this."""
    size = check_plain(path, remedy)
    data = bytearray()
    try:
        with path.open("rb") as opened:
            # Some say that they have no bytes, and have many.
            while max(size, len(data)) <= most and (more := opened.read(_AT_ONCE)):
                data += more
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
    if max(size, len(data)) > most:
        raise InputError(f"{path} cannot be read: it has {max(size, len(data)):,} bytes, over {most:,}; {remedy}")
    return bytes(data)


def read_json(path: Path, remedy: str, most: int = MOST_JSON) -> Any:
    """What a JSON file holds."""
    try:
        text = read_bytes(path, remedy, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: it is not UTF-8 text (byte {error.start:,}); {remedy}") from error
    return parse_json(text, f"{path} cannot be read: it is not JSON", remedy)


def parse_json(text: str | bytes, otherwise: str, remedy: str) -> Any:
    """The only JSON parser here. otherwise: how the error begins for text that is not JSON, or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        why = "too deep"
    except (ValueError, MemoryError) as error:  # numbers of thousands of digits are ValueErrors, too
        why = reason(error)
    else:
        if not _is_deep(value):
            return value
        why = "too deep"
    raise InputError(f"{otherwise} ({why}); {remedy}")


def json_kind(value: Any) -> str:
    """What JSON calls it."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inside = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list)))
        level = [v for values in inside for v in values if isinstance(v, (dict, list))]
        if not level:
            return False
    return True


def check_unpacked(what: str, packed: int, unpacked: int) -> None:
    """Refuse a bomb before it is unpacked: what is measured packs to a tenth, a hundredth at most; zeros to a
    thousandth.
    """
    if unpacked > _ONLY_IF_LARGE and unpacked > _MOST_PACKED * max(packed, 1):
        raise InputError(
            f"{what} has {packed:,} bytes and unpacks to {unpacked:,}, {unpacked // max(packed, 1):,} times as many; "
            "if that is meant, give it unpacked"
        )
