"""Libraries that only some inputs need, imported when they are needed and asked for by name when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from oversmooth.errors import InputError


def borrow(module: str, purpose: str) -> Any:
    """The module, or one sentence that says what it was wanted for and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise InputError(f"{purpose} needs {package}, which is not installed; install oversmooth[models]") from error
