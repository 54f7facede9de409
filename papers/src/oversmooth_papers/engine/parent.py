"""A process that ends when the one that started it does, however that ended: killed, crashed, or its terminal closed.

Imports nothing that takes time: a parent may be gone before the rest is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

VARIABLE = "OVERSMOOTH_PARENT"
"""In a child's environment: its parent's number."""
_SET_PARENT_DEATH_SIGNAL = 1  # Linux's PR_SET_PDEATHSIG
_SECONDS = 1.0


def environment() -> dict[str, str]:
    """For a child that is to call `end_with_parent`."""
    return {**os.environ, VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """From now on the end of the parent is a SIGTERM, on which a run saves; does nothing in a process of one's own."""
    parent = os.environ.pop(VARIABLE, "")  # not for children in turn
    if not parent.isdecimal():
        return
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):  # it was gone before
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
