"""One writer for a directory: a file in it names the process that writes there, and is taken over once that has ended.

The file is created exclusively (O_EXCL), which network file systems honour where their advisory locks may not. Its
owner renews its time every few seconds. An owner counts as gone if it has not done so for two minutes, or at once if it
was on this machine and there is no such process any more.
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
from pathlib import Path

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder, has_ended, process_space
from oversmooth.safety.signals import delay_signals

NAME = ".oversmooth-lock"
BEAT, QUIET = 10.0, 120.0  # seconds between signs of life, and without one until an owner counts as gone
OnMessage = Callable[[str], None]


class Lock:
    """Held by this process; `held` makes and releases it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        own = dict(pid=os.getpid(), host=socket.gethostname(), space=process_space())
        self.text = json.dumps(own | {"since": time.strftime("%Y-%m-%d %H:%M:%S"), "token": secrets.token_hex(8)})
        self.over = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)

    def take(self, force: bool, on_message: OnMessage) -> None:
        """Create the file, once whoever has it is gone; raises `InputError` if that process lives."""
        first = ("", 0.0)
        while not self._created():
            text, touched = found = self._read()
            if not touched:
                continue  # released in between
            who, ended = _owner(text)
            with tempfile.TemporaryFile(dir=self.folder) as fresh:  # by the clock of the file system
                gone = ended or os.fstat(fresh.fileno()).st_mtime - touched > QUIET
            if force or gone:
                how = "now gone" if gone else "by force; if it still runs, it stops at its next checkpoint"
                on_message(f"{self.folder} is taken over from {who}, {how}")
                if self._read() == found:
                    self.path.unlink(missing_ok=True)
            elif ended is False or (text == first[0] and touched != first[1]):
                remedy = "wait for it, stop it, or take over with --force"
                raise InputError(f"{self.folder} is being written by {who}; {remedy}")
            else:
                if text != first[0]:
                    on_message(f"{self.folder} is locked by {who}; waiting up to {QUIET:.0f} s to see whether it lives")
                    first = found
                time.sleep(1)
        self.beating.start()

    def check(self) -> None:
        """Before something is written that must have one writer: raises `InputError` if another process took over."""
        if (text := self._read()[0]) != self.text and not self._created():  # created again if somebody removed it
            who = _owner(text)[0]
            raise InputError(f"{self.folder} was taken over by {who}; this one stops, and what it had saved is there")

    @delay_signals()  # a second signal, while the first is being obeyed, must not leave it behind
    def release(self) -> None:
        """Remove the file, unless another process took over."""
        self.over.set()
        if self.beating.is_alive():
            self.beating.join()
        with contextlib.suppress(OSError):
            if self._read()[0] == self.text:
                self.path.unlink()

    def _beat(self) -> None:
        while not self.over.wait(BEAT):
            with contextlib.suppress(OSError):
                if self._read()[0] == self.text:
                    os.utime(self.path)

    def _created(self) -> bool:
        try:
            with self.path.open("x", encoding="utf-8") as file:
                file.write(self.text)
        except FileExistsError:
            return False
        except OSError as error:
            raise InputError(f"{self.path} cannot be written ({error.strerror or error}); free space there") from error
        return True

    def _read(self) -> tuple[str, float]:
        """Its text and time. Opened, not only asked for: network file systems look again when a file is opened."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                return file.read(4096), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return "", 0.0


@contextlib.contextmanager
def held(folder: Path, *, force: bool = False, on_message: OnMessage = lambda _line: None) -> Iterator[Lock]:
    """The directory is this process's to write in while the block lasts; raises `InputError` if another writes there.

    It is made if it is not there, and removed again if it stays empty. force: take it over, whoever has it. on_message:
    receives what was taken over.
    """
    check_folder(folder)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder)
    try:
        lock.take(force, on_message)
        yield lock
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # it has something in it
            for parent in made:
                parent.rmdir()


def _owner(text: str) -> tuple[str, bool | None]:
    """Who a lock file names, and whether that process has ended; None if it cannot be asked for here."""
    try:
        owner = json.loads(text)
        who = f"process {owner['pid']} on {owner['host']:.60} (since {owner['since']:.40})"
        return who, has_ended(int(owner["pid"])) if owner["space"] == process_space() else None
    except (ValueError, TypeError, LookupError, RecursionError):
        return "a process", None
