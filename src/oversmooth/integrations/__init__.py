"""Smoothing monitored in other people's trainers; each library is imported when its class is asked for.

SmoothingCallback(every=100)      for transformers.Trainer(callbacks=[...])
LightningSmoothing(every=100)     for lightning.Trainer(callbacks=[...])
tracker(accelerator)              a logger for `Monitor(sinks=...)` that goes through accelerate
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    from oversmooth.integrations.lightning import LightningSmoothing
    from oversmooth.integrations.trainer import SmoothingCallback

__all__ = ["LightningSmoothing", "SmoothingCallback", "tracker"]


def tracker(accelerator: Any) -> Callable[[int, dict[str, float]], None]:
    """A logger for `oversmooth.Monitor`, a function of (step, values) that reaches the trackers of accelerate:
    ``Monitor(model, probe=batch, sinks=tracker(accelerator))``.

    Args:
        accelerator: accelerate's, whose trackers are begun (``accelerator.init_trackers``).
    """
    if not callable(getattr(accelerator, "log", None)) or not hasattr(accelerator, "trackers"):
        raise InputError(f"the accelerator is {arguments.shown(accelerator)}; give accelerate's Accelerator")
    return lambda step, values: accelerator.log(values, step=step)


def __getattr__(name: str) -> Any:
    import importlib

    homes = {"LightningSmoothing": "lightning", "SmoothingCallback": "trainer"}
    if name in homes:
        return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
