"""Clean exit on Ctrl-C, SIGTERM or a closed terminal.

Imports nothing slow, so that Ctrl-C works while the rest is imported.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

TYPE_CHECKING = False  # typing's own takes time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "the end of its terminal"}  # no SIGHUP on Windows


class Stopped(KeyboardInterrupt):
    """A signal as an exception, handled like Ctrl-C."""


class Received:
    """The received signal, if any. Libraries may swallow the exception or raise another."""

    number: int | None = None

    @property
    def exit_code(self) -> int:
        """As in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def message(self) -> str:
        name = signal.Signals(self.number or signal.SIGINT).name
        return f"stopped by {_NAMES.get(name, name)}; nothing was left half-written"


_active: list[Received] = []


@contextlib.contextmanager
def catch_signals() -> Iterator[Received]:
    """Raise `Stopped` for signals within the block, unless the program was started to ignore them."""
    if _active:
        yield _active[-1]
        return
    received = Received()

    def receive(number: int, _frame: Any) -> None:
        received.number = number
        raise Stopped

    def unraisable(what: Any) -> None:
        if isinstance(what.exc_value, Stopped):  # raised where exceptions are lost: raise it again later
            signal.raise_signal(received.number or signal.SIGINT)
        else:
            before_unraisable(what)

    before_unraisable, sys.unraisablehook = sys.unraisablehook, unraisable
    _active.append(received)
    try:
        with _handled(_NAMES, lambda was: was in (signal.SIG_DFL, signal.default_int_handler), receive):
            yield received
    finally:
        _active.pop()
        sys.unraisablehook = before_unraisable


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
    """Delay signals until the end of the block, which should be short.

    For libraries that convert exceptions: safetensors reports a Ctrl-C as a damaged file.
    """
    waiting: list[int] = []
    try:  # SIGUSR2 is the warning of batch systems
        with _handled((*_NAMES, "SIGUSR2"), callable, lambda number, _frame: waiting.append(number)):
            yield
    finally:
        for number in waiting[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled(names: Iterable[str], replaceable: Callable[[Any], bool], handle: Any) -> Iterator[None]:
    """Handle these signals within the block, where what handles them now may be replaced."""
    before: dict[int, Any] = {}
    for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
        was = signal.getsignal(number)
        if threading.current_thread() is threading.main_thread() and replaceable(was):  # others receive no signals
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
