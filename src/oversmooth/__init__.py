"""oversmooth: diagnose, predict and steer how transformers mix their tokens with depth."""

from typing import Any

from oversmooth import metrics, theory
from oversmooth.errors import InputError

__version__ = "0.1.0"
__all__ = [
    "Diagnosis",
    "InputError",
    "anatomy",
    "diagnose",
    "fold",
    "load_steered",
    "metrics",
    "save_steered",
    "steer",
    "steering",
    "theory",
    "unsteer",
]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the mathematics alone needs torch alone.
    import importlib

    if name == "diagnose":
        return importlib.import_module("oversmooth.diagnosing").diagnose
    if name == "Diagnosis":
        return importlib.import_module("oversmooth.diagnosis").Diagnosis
    if name in ("anatomy", "steering"):
        return importlib.import_module(f"oversmooth.{name}")
    if name in ("fold", "load_steered", "save_steered", "steer", "unsteer"):
        return getattr(importlib.import_module("oversmooth.steering"), name)
    raise AttributeError(f"module 'oversmooth' has no attribute {name!r}")
