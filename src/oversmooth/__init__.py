"""oversmooth: diagnose and predict how transformers mix their tokens with depth."""

from typing import Any

from oversmooth import metrics, theory
from oversmooth.errors import InputError

__version__ = "0.1.0"
__all__ = ["Diagnosis", "InputError", "anatomy", "diagnose", "metrics", "theory"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the mathematics alone needs torch alone.
    import importlib

    if name == "diagnose":
        return importlib.import_module("oversmooth.diagnosing").diagnose
    if name == "Diagnosis":
        return importlib.import_module("oversmooth.diagnosis").Diagnosis
    if name == "anatomy":
        return importlib.import_module("oversmooth.anatomy")
    raise AttributeError(f"module 'oversmooth' has no attribute {name!r}")
