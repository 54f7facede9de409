"""oversmooth: diagnose, predict and steer how transformers mix their tokens with depth."""

from __future__ import annotations

from oversmooth._version import __version__

TYPE_CHECKING = False  # importing typing takes as long as all that the command line needs to react to Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from oversmooth import anatomy, integrations, metrics, steering, theory
    from oversmooth.diagnosis.diagnose import diagnose
    from oversmooth.diagnosis.ranking import layers
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.diagnosis.spans import spans
    from oversmooth.models import load_steered
    from oversmooth.monitor import Alarm, Monitor
    from oversmooth.report.comparison import compare
    from oversmooth.safety.errors import InputError
    from oversmooth.steering import fold, save_steered, steer, unsteer

__all__ = [
    "Alarm",
    "Diagnosis",
    "InputError",
    "Monitor",
    "__version__",
    "anatomy",
    "compare",
    "diagnose",
    "fold",
    "integrations",
    "layers",
    "load_steered",
    "metrics",
    "save_steered",
    "spans",
    "steer",
    "steering",
    "theory",
    "unsteer",
]
_PARTS = ("anatomy", "integrations", "metrics", "monitor", "steering", "testing", "theory", "trace")
_HOMES = {
    "Diagnosis": "oversmooth.diagnosis.result",
    "InputError": "oversmooth.safety.errors",
    "compare": "oversmooth.report.comparison",
    "diagnose": "oversmooth.diagnosis.diagnose",
    "layers": "oversmooth.diagnosis.ranking",
    "load_steered": "oversmooth.models",
    "spans": "oversmooth.diagnosis.spans",
    **dict.fromkeys(("Alarm", "Monitor"), "oversmooth.monitor"),
    **dict.fromkeys(("fold", "save_steered", "steer", "unsteer"), "oversmooth.steering"),
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the command line's help needs no torch, and the mathematics alone torch alone.
    import importlib

    if name in _PARTS:
        return importlib.import_module(f"oversmooth.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'oversmooth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
