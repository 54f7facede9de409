"""How a run is asked to stop: Ctrl-C, SIGTERM, a batch system's warning, or the end of its time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REASONS = ("", "out of time", "interrupted", "preempted")
"""Why a run stops, the more pressing the later."""
EXIT_CODES = {"interrupted": 130, "preempted": 75}
"""As shells have it for Ctrl-C; EX_TEMPFAIL, for batch systems: start it again. Nothing went wrong otherwise."""
_NAMES = {"SIGINT": "interrupted", "SIGTERM": "preempted", "SIGUSR2": "preempted", "SIGHUP": "preempted"}
_SIGNALS = {getattr(signal, name): why for name, why in _NAMES.items() if hasattr(signal, name)}


class Preempted(KeyboardInterrupt):
    """A signal to leave came while there was nothing to save."""


def reason(heard: list[int], end: float | None) -> str:
    if heard:
        return max((_SIGNALS[number] for number in heard), key=REASONS.index)
    return "out of time" if end is not None and time.monotonic() >= end else ""


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """A list into which signals to stop are put; the second Ctrl-C is as ever, and stops at once.

    Others may come several times for one reason: Linux tells of a parent's death once for each of its threads.
    """
    heard: list[int] = []
    before: dict[int, Any] = {}

    def hear(number: int, _frame: Any) -> None:
        heard.append(number)
        if number == signal.SIGINT and number in before:
            signal.signal(number, before[number])

    with _handled(hear, list(_SIGNALS), before):
        yield heard


@contextmanager
def preemptible() -> Iterator[None]:
    """SIGTERM and its like raise `Preempted` wherever no run hears them."""

    def hear(_number: int, _frame: Any) -> None:
        raise Preempted

    with _handled(hear, [number for number, why in _SIGNALS.items() if why == "preempted"], {}):
        yield


@contextmanager
def _handled(handler: Any, numbers: list[int], before: dict[int, Any]) -> Iterator[None]:
    """before: filled with what handled them until now. Signals that whoever started the program had it ignore stay
    ignored: nohup, the background of a shell.
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
