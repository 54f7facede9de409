"""Warnings of a monitor: it warns where something could not be recorded, and never raises."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress


class MonitorWarning(UserWarning):
    """Something could not be recorded, or an alarm went off; training continues."""


def warn(text: str) -> None:
    """Warn; without raising, whatever warnings have become: a training does not end because of a snapshot."""
    try:
        # No line of source belongs to what a model does: the sentence stands by itself.
        warnings.warn_explicit(text, MonitorWarning, "oversmooth", 1, module="oversmooth.monitor", registry={})
    except Exception:
        with suppress(OSError, ValueError):  # where the terminal is gone
            print(f"oversmooth: {text}", file=sys.stderr)
