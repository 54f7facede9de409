"""Smoothing monitored in other people's trainers; each library is imported when its class is asked for.

SmoothingCallback(every=100)      for transformers.Trainer(callbacks=[...])
LightningSmoothing(every=100)     for lightning.Trainer(callbacks=[...])
tracker(accelerator)              a logger for `Monitor(sinks=...)` that goes through accelerate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oversmooth.integrations.accelerate import tracker
    from oversmooth.integrations.lightning import LightningSmoothing
    from oversmooth.integrations.trainer import SmoothingCallback

__all__ = ["LightningSmoothing", "SmoothingCallback", "tracker"]
_HOMES = {"LightningSmoothing": "lightning", "SmoothingCallback": "trainer", "tracker": "accelerate"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
