"""Modules of commands and loaders that other packages add.

A package names them as entry points. `add` registers one without installation.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from types import ModuleType
from typing import Literal

Group = Literal["oversmooth.commands", "oversmooth.loaders"]
_ADDED: dict[Group, list[str]] = {"oversmooth.commands": [], "oversmooth.loaders": []}


def add(group: Group, module: str) -> None:
    """Register a module by name, as an entry point does."""
    if module not in _ADDED[group]:
        _ADDED[group].append(module)


def extensions(group: Group) -> list[ModuleType]:
    """Import the modules of a group: added ones, then those of installed packages."""
    return [importlib.import_module(name) for name in dict.fromkeys((*_ADDED[group], *_installed(group)))]


@functools.cache
def _installed(group: Group) -> tuple[str, ...]:
    return tuple(sorted(point.value for point in entry_points(group=group)))
