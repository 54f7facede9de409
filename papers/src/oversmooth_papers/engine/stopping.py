"""How a run is asked to stop: Ctrl-C, SIGTERM, a batch system's warning, the end of its time, or that of its parent.

Imports nothing that takes time: a parent may be gone before the rest is there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REASONS = ("", "out of time", "interrupted", "preempted")  # why a run stops, the more pressing the later
EXIT_CODES = {"interrupted": 130, "preempted": 75}
"""As shells have it for Ctrl-C; EX_TEMPFAIL, for batch systems: start it again. Nothing went wrong otherwise."""
_NAMES = {"SIGINT": "interrupted", "SIGTERM": "preempted", "SIGUSR2": "preempted", "SIGHUP": "preempted"}
_SIGNALS = {getattr(signal, name): why for name, why in _NAMES.items() if hasattr(signal, name)}
PARENT = "OVERSMOOTH_PARENT"  # in a child's environment: its parent's number
_SECONDS = 1.0
_received_ever: list[int] = []


class Preempted(KeyboardInterrupt):
    """A signal to leave came while there was nothing to save."""


def reason(received: list[int], end: float | None) -> str:
    """Why a run is to stop now; empty if it goes on. end: the time at which it does."""
    if received:
        return max((_SIGNALS[number] for number in received), key=REASONS.index)
    return "out of time" if end is not None and time.monotonic() >= end else ""


def was_warned() -> bool:
    """Whether a run of this process has received SIGUSR2, with which batch systems announce a time limit."""
    return signal.SIGUSR2 in _received_ever


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """A list into which signals to stop are put; the second Ctrl-C is as ever, and stops at once."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def receive(number: int, _frame: Any) -> None:
        received.append(number)
        _received_ever.append(number)
        if number == signal.SIGINT and number in before:
            signal.signal(number, before[number])

    with _handled(receive, list(_SIGNALS), before):
        yield received


@contextmanager
def preemptible() -> Iterator[None]:
    """SIGTERM and its like raise `Preempted` wherever no run receives them."""

    def receive(_number: int, _frame: Any) -> None:
        raise Preempted

    with _handled(receive, [number for number, why in _SIGNALS.items() if why == "preempted"], {}):
        yield


@contextmanager
def _handled(handler: Any, numbers: list[int], before: dict[int, Any]) -> Iterator[None]:
    """before: filled with what handled them until now. What whoever started the program had it ignore stays ignored:
    nohup, the background of a shell.
    """
    if threading.current_thread() is threading.main_thread():  # no other can
        for number in numbers:
            if (was := signal.getsignal(number)) not in (signal.SIG_IGN, None):  # None: not Python's to restore
                before[number] = was
                signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def end_with_parent() -> None:
    """From now on the end of the parent that put its number into `PARENT`, however it ended, is a SIGTERM."""
    parent = os.environ.pop(PARENT, "")  # not for children in turn
    if parent.isdecimal():
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
