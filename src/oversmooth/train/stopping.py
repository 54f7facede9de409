"""How a run is asked to stop: Ctrl-C, a polite kill, or the end of its time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def reason(interrupted: list[int], end: float | None) -> str:
    if interrupted:
        return "interrupted"
    return "out of time" if end is not None and time.monotonic() >= end else ""


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """A list that Ctrl-C (or a polite kill) puts something into, once; the second time it is as ever."""
    said: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield said
        return
    before: dict[int, Any] = {}

    def hear(number: int, frame: Any) -> None:
        said.append(number)
        for one, handler in before.items():
            signal.signal(one, handler)

    for sign in (signal.SIGINT, signal.SIGTERM):
        before[sign] = signal.signal(sign, hear)
    try:
        yield said
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
