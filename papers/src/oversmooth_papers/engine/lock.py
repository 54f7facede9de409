"""One writer for a directory: a file in it says who writes there, and is taken over when that process is gone.

The file is created exclusively (O_EXCL), which network file systems honour where their advisory locks may not. Where
the owner runs on this machine, its process is looked for; elsewhere the file's time says whether it lives, as every
owner touches its file every few seconds.
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
from dataclasses import dataclass
from pathlib import Path

from oversmooth.safety.errors import InputError
from oversmooth.safety.signals import held_back

NAME = ".oversmooth-lock"
BEAT, QUIET = 10.0, 120.0
"""Seconds between signs of life, and without one until an owner on another machine counts as gone."""
_UNWRITTEN = 5.0  # seconds in which a file that was just created may still be empty
_LARGEST = 4096  # bytes; what is larger is none of ours
Told = Callable[[str], None]


@dataclass(frozen=True)
class Owner:
    """A process, such that no other can be mistaken for it."""

    pid: int
    started: str
    """When, in the words of the system; empty where it does not say."""
    host: str
    space: str
    """Of this machine since it was started, and of the container: where a process's number means the same process."""
    since: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host[:60]} (since {self.since[:40]})"


@dataclass(frozen=True)
class _Seen:
    """A lock file as it was found."""

    text: str
    touched: float
    owner: Owner | None


class Lock:
    """Held by this process; `held` makes and releases it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.text = json.dumps(vars(_this_process()))
        self.file = -1
        self.over = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)

    def take(self, force: bool, on_message: Told) -> None:
        first: _Seen | None = None
        while not self._created():
            seen = _seen(self.path)
            if seen is None:
                continue  # released in between
            why = _why_gone(seen, self.folder)
            if why:
                on_message(f"{self.folder} was left locked by {seen.owner or 'a process'}, which {why}: taken over")
                self._remove(seen)
            elif force:
                on_message(
                    f"{self.folder} is taken from {seen.owner or 'a process'} by force; if that process still runs, it "
                    "stops at its next checkpoint"
                )
                self._remove(seen)
            elif seen.owner is None:
                time.sleep(0.1)  # it is being written
            elif seen.owner.space == _space():
                raise self._refused(seen.owner)
            else:
                # Not here to be looked for: either it touches its file soon, or it never will.
                if first is None or first.text != seen.text:
                    first = seen
                    on_message(
                        f"{self.folder} is locked by {seen.owner}; waiting up to {QUIET:.0f} s to see whether it lives"
                    )
                elif seen.touched != first.touched:
                    raise self._refused(seen.owner)
                time.sleep(1)
        self.beating.start()
        for left in self.folder.glob(f"{NAME}-*"):
            left.unlink(missing_ok=True)

    def check(self) -> None:
        """Before something is written that must have one writer: refuse if another process has taken over."""
        seen = _seen(self.path)
        if seen is None:  # somebody tidied it away
            self._close()
            if self._created():
                return
            seen = _seen(self.path)
        if seen is None or seen.text != self.text:
            by = (seen and seen.owner) or "another process"
            raise InputError(f"{self.folder} was taken over by {by}; this one stops, and what it had saved is there")

    @held_back()  # a second signal, while the first is being obeyed, must not leave it behind
    def release(self) -> None:
        self.over.set()
        if self.beating.is_alive():
            self.beating.join()
        self._close()
        with contextlib.suppress(InputError, OSError):  # what cannot be read or removed is seen to be left
            seen = _seen(self.path)
            if seen is not None and seen.text == self.text:
                self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def _created(self) -> bool:
        try:
            self.file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.write(self.file, self.text.encode())
        except FileExistsError:
            return False
        except OSError as error:
            if self.file >= 0:
                self.path.unlink(missing_ok=True)  # made, and then there was no room for what it is to say
            raise InputError(
                f"{self.path} cannot be written ({error.strerror or error}); make room, or choose another directory"
            ) from error
        return True

    def _remove(self, seen: _Seen) -> None:
        """The file that was seen. Moved first: another process may have been quicker, and this be its lock."""
        aside = self.path.with_name(f"{NAME}-{secrets.token_hex(8)}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        now = _seen(aside)
        if now is not None and now.text != seen.text:
            with contextlib.suppress(OSError):
                os.link(aside, self.path)
        aside.unlink(missing_ok=True)

    def _refused(self, owner: Owner) -> InputError:
        return InputError(f"{self.folder} is being written by {owner}; wait for it, stop it, or take over with --force")

    def _beat(self) -> None:
        while not self.over.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(self.file)  # the file that was opened, whoever has a lock of this name now


@contextmanager
def held(folder: Path, *, force: bool = False, on_message: Told | None = None) -> Iterator[Lock]:
    """The directory is this process's to write for as long as the block lasts; or a sentence says whose it is.

    It is made if it is not there, and is gone again if nothing came into it. force: whoever has it. on_message: hears
    what was taken over.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror or error}); choose another directory") from error
    lock = Lock(folder)
    try:
        lock.take(force, on_message or (lambda _line: None))
        yield lock
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # it has something in it
            for parent in made:
                parent.rmdir()


def _this_process() -> Owner:
    return Owner(
        pid=os.getpid(),
        started=_state(os.getpid())[1],
        host=socket.gethostname(),
        space=_space(),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
        token=secrets.token_hex(8),
    )


def _space() -> str:
    """The machine's boot and the container's processes, as Linux numbers them; elsewhere the machine alone."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _state(pid: int) -> tuple[str, str]:
    """Linux's letter for what a process does, and when it was started; empty elsewhere."""
    try:
        after_the_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return after_the_name[0], after_the_name[19]
    except (OSError, IndexError, ValueError):
        return "", ""


def _why_gone(seen: _Seen, folder: Path) -> str:
    """Why the owner cannot be writing any more, in words; empty if it may be."""
    owner = seen.owner
    if owner is None:
        return "did not come to say who it is" if _age(seen, folder) > _UNWRITTEN else ""
    if owner.space != _space():
        quiet = _age(seen, folder)
        return f"gave no sign of life for {quiet:,.0f} s" if quiet > QUIET else ""
    state, started = _state(owner.pid)
    if state in ("Z", "X") or (owner.started and started and started != owner.started):
        return "is gone"
    try:
        os.kill(owner.pid, 0)
    except (ProcessLookupError, OverflowError):
        return "is gone"
    except PermissionError:
        pass  # it is another user's
    return ""


def _age(seen: _Seen, folder: Path) -> float:
    """Seconds since the file was touched, by the clock of the file system, which may not be this machine's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as fresh:
            return os.fstat(fresh.fileno()).st_mtime - seen.touched
    except OSError:
        return time.time() - seen.touched


def _seen(path: Path) -> _Seen | None:
    """None if it is not there. Opened, not only asked for: network file systems look again when a file is opened."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # whatever it is, never wait for it
        try:
            text, touched = os.read(file, _LARGEST).decode(errors="replace"), os.fstat(file).st_mtime
        finally:
            os.close(file)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return None
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); remove it if nobody writes there"
        ) from error
    try:
        owner = Owner(**json.loads(text))
        right = type(owner.pid) is int and owner.pid > 0
        right = right and all(isinstance(value, str) for name, value in vars(owner).items() if name != "pid")
    except (ValueError, TypeError, RecursionError):
        right = False
    return _Seen(text, touched, owner if right else None)
