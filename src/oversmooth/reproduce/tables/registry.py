"""All tables of trained models by name: those of the files in this folder, and those that others register."""

from __future__ import annotations

import importlib
import pkgutil

from oversmooth.reproduce import tables
from oversmooth.reproduce.tables.base import TABLES, Table, register

__all__ = ["TABLES", "all_tables", "register"]

for _file in pkgutil.iter_modules(tables.__path__):
    importlib.import_module(f"{tables.__name__}.{_file.name}")  # where its class registers itself


def all_tables() -> list[type[Table]]:
    """In the order in which they are listed: the papers' numbered tables, then the others."""
    return sorted(TABLES.values(), key=lambda table: (not table.name.startswith("table"), table.name))
