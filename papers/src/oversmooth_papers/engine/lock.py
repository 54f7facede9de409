"""One writer for a directory: a file in it names the process that writes there, and is taken over once that has ended.

The file is created exclusively (O_EXCL), which network file systems honour where their advisory locks may not. An owner
on this machine is looked for among its processes. One elsewhere is judged by the file's time, which every owner renews
every few seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder
from oversmooth.safety.signals import held_back

NAME = ".oversmooth-lock"
BEAT, QUIET = 10.0, 120.0
"""Seconds between signs of life, and without one until an owner on another machine counts as gone."""
OnMessage = Callable[[str], None]


class _Seen(NamedTuple):
    """A lock file as it was found; owner is empty where the file does not say whose it is."""

    text: str
    touched: float
    owner: dict[str, str]

    def __str__(self) -> str:
        return "process {pid} on {host:.60} (since {since:.40})".format(**self.owner) if self.owner else "a process"


class Lock:
    """Held by this process; `held` makes and releases it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        pid, host, since = os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S")
        own = dict(pid=pid, started=_state(pid)[1], host=host, space=_space(), since=since, token=secrets.token_hex(8))
        self.text = json.dumps(own)
        self.over = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)

    def take(self, force: bool, on_message: OnMessage) -> None:
        """Create the file, once whoever has it is gone; raises `InputError` if that process lives."""
        first: _Seen | None = None
        while not self._created():
            if (seen := _seen(self.path)) is None:
                continue  # released in between
            lives = _lives(seen, self.folder)
            if first is not None and first.text == seen.text and first.touched != seen.touched:
                lives = True
            if force or lives is False:
                why = (
                    "by force; if it still runs, it stops at its next checkpoint" if lives is not False else "now gone"
                )
                on_message(f"{self.folder} is taken over from {seen}, {why}")
                if _seen(self.path) == seen:
                    self.path.unlink(missing_ok=True)
            elif lives:
                remedy = "wait for it, stop it, or take over with --force"
                raise InputError(f"{self.folder} is being written by {seen}; {remedy}")
            else:
                if first is None or first.text != seen.text:
                    wait = f"waiting up to {QUIET:.0f} s to see whether it lives"
                    on_message(f"{self.folder} is locked by {seen}; {wait}")
                    first = seen
                time.sleep(1)
        self.beating.start()

    def check(self) -> None:
        """Before something is written that must have one writer: raises `InputError` if another process took over."""
        if not self._is_ours() and not self._created():  # created again where somebody tidied it away
            by = _seen(self.path) or "another process"
            raise InputError(f"{self.folder} was taken over by {by}; this one stops, and what it had saved is there")

    @held_back()  # a second signal, while the first is being obeyed, must not leave it behind
    def release(self) -> None:
        self.over.set()
        if self.beating.is_alive():
            self.beating.join()
        with contextlib.suppress(InputError, OSError):
            if self._is_ours():
                self.path.unlink()

    def _is_ours(self) -> bool:
        return (seen := _seen(self.path)) is not None and seen.text == self.text

    def _created(self) -> bool:
        try:
            with self.path.open("x", encoding="utf-8") as file:
                file.write(self.text)
        except FileExistsError:
            return False
        except OSError as error:
            raise InputError(f"{self.path} cannot be written ({error.strerror or error}); make room there") from error
        return True

    def _beat(self) -> None:
        while not self.over.wait(BEAT):
            with contextlib.suppress(InputError, OSError):
                if self._is_ours():
                    os.utime(self.path)


@contextmanager
def held(folder: Path, *, force: bool = False, on_message: OnMessage | None = None) -> Iterator[Lock]:
    """The directory is this process's to write in while the block lasts; raises `InputError` if another writes there.

    It is made if it is not there, and removed again if it stays empty. force: take it over, whoever has it. on_message:
    receives what was taken over.
    """
    check_folder(folder)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder)
    try:
        lock.take(force, on_message or (lambda _line: None))
        yield lock
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # it has something in it
            for parent in made:
                parent.rmdir()


def _space() -> str:
    """Where a process's number means the same process: this machine since it was started, and the container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _state(pid: int) -> tuple[str, str]:
    """Linux's letter for what a process does, and when it was started; empty elsewhere."""
    try:
        after_the_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return after_the_name[0], after_the_name[19]


def _lives(seen: _Seen, folder: Path) -> bool | None:
    """Whether the owner may still write; None if that cannot be known yet."""
    if seen.owner.get("space") != _space():
        with tempfile.TemporaryFile(dir=folder) as fresh:  # by the clock of the file system
            return False if os.fstat(fresh.fileno()).st_mtime - seen.touched > QUIET else None
    pid = int(seen.owner["pid"])
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    state, started = _state(pid)
    return state not in ("Z", "X") and started == seen.owner["started"]


def _seen(path: Path) -> _Seen | None:
    """None if it is not there. Opened, not only asked for: network file systems look again when a file is opened."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text, touched = file.read(4096), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{path} cannot be read ({why}); remove it if nobody writes there") from error
    try:
        owner = {name: str(value) for name, value in json.loads(text).items()}
        return _Seen(text, touched, owner if owner["pid"].isdecimal() and owner.keys() >= _FIELDS else {})
    except (ValueError, AttributeError, LookupError, RecursionError):
        return _Seen(text, touched, {})


_FIELDS = {"started", "host", "space", "since"}
