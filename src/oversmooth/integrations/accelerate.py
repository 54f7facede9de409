"""Snapshots logged through accelerate: to the trackers that the accelerator has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


def tracker(accelerator: Any) -> Callable[[int, dict[str, float]], None]:
    """A logger for `oversmooth.Monitor`: ``Monitor(model, probe=batch, sinks=tracker(accelerator))``.

    Args:
        accelerator: accelerate's, whose trackers are begun (``accelerator.init_trackers``).

    Returns:
        A function of (step, values).
    """
    if not callable(getattr(accelerator, "log", None)) or not hasattr(accelerator, "trackers"):
        raise InputError(f"the accelerator is {arguments.shown(accelerator)}; give accelerate's Accelerator")
    return lambda step, values: accelerator.log(values, step=step)
