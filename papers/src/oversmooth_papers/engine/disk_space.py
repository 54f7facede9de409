"""A disk that is full: a run waits a while for room, and if there comes none it stops with everything kept."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from oversmooth.safety.errors import InputError

PATIENCE, PAUSE = 300.0, 2.0
"""Seconds in which others may make room, and between two looks."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")


def patiently(write: Callable[[], T], on_message: Callable[[str], None], hurry: Callable[[], bool]) -> T:
    """What ``write`` gives, which may fail and be called again. hurry: whether there is no time to wait."""
    began = time.monotonic()
    waits = False
    while True:
        try:
            return write()
        except (OSError, InputError) as error:
            if not is_full(error) or hurry() or time.monotonic() - began >= PATIENCE:
                raise
            if not waits:
                problem = str(error).partition(";")[0]
                on_message(f"{problem}: waiting up to {PATIENCE / 60:.0f} minutes for room; what was saved is kept")
            waits = True
        time.sleep(PAUSE)


def is_full(error: BaseException) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _FULL
