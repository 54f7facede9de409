"""How a monitor says that something could not be seen: it warns, and never raises."""

from __future__ import annotations

import sys
import warnings


class MonitorWarning(UserWarning):
    """Something could not be seen, or an alarm went off; the training goes on."""


def say(text: str) -> None:
    """Warn; where warnings are errors, without raising: a training does not end because of a look."""
    try:
        warnings.warn(text, MonitorWarning, stacklevel=5)
    except MonitorWarning:
        print(f"oversmooth: {text}", file=sys.stderr)
