"""How a command is stopped: Ctrl-C, SIGTERM or the end of its terminal leave it like an error, all tidied up.

Imports nothing that takes time, so that a Ctrl-C while the rest is imported is heard too.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

TYPE_CHECKING = False  # typing's own takes time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "the end of its terminal"}  # no SIGHUP on Windows


class Stopped(KeyboardInterrupt):
    """A signal as an exception: what is done on Ctrl-C is done on every kind of stop."""


class Heard:
    """The signal that came, if one did. Libraries may make another error of the exception, or none."""

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """As shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def said(self) -> str:
        name = signal.Signals(self.number or signal.SIGINT).name
        return f"stopped by {_NAMES.get(name, name)}; nothing was left half-written"


_listening: list[Heard] = []


@contextlib.contextmanager
def heard() -> Iterator[Heard]:
    """Signals raise `Stopped` within the block, unless whoever started the program had it ignore them."""
    if _listening:
        yield _listening[-1]
        return
    one = Heard()

    def hear(number: int, _frame: Any) -> None:
        one.number = number
        raise Stopped

    def unraisable(what: Any) -> None:
        if isinstance(what.exc_value, Stopped):  # it came where nothing can be raised: once more, a little later
            signal.raise_signal(one.number or signal.SIGINT)
        else:
            before_unraisable(what)

    before: dict[int, Any] = {}
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # signals are the main thread's, wherever this one runs
                before[number] = signal.signal(number, hear)
    before_unraisable, sys.unraisablehook = sys.unraisablehook, unraisable
    _listening.append(one)
    try:
        yield one
    finally:
        _listening.pop()
        sys.unraisablehook = before_unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Signals wait until the end of the block, which should be short.

    For calls into libraries that make another error of an exception raised within: reading an array, safetensors
    calls a Ctrl-C a damaged file.
    """
    waiting: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other hears signals
        for name in (*_NAMES, "SIGUSR2"):  # batch systems warn by it
            number = getattr(signal, name, None)
            if number is not None and callable(was := signal.getsignal(number)):
                before[number] = was
                signal.signal(number, lambda number, _frame: waiting.append(number))
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
        for number in waiting[:1]:
            signal.raise_signal(number)
