"""All tables of trained models by name: those of the papers, and those that others register."""

from __future__ import annotations

import importlib
import pkgutil

from oversmooth.reproduce import neutreno, tables, text
from oversmooth.reproduce.tables.base import TABLES, Table, register

__all__ = ["TABLES", "all_tables", "register"]

for _folder in (tables, neutreno, text):
    for _file in pkgutil.iter_modules(_folder.__path__):
        if _file.name not in getattr(_folder, "NO_TABLES", ()):
            importlib.import_module(f"{_folder.__name__}.{_file.name}")  # where its class registers itself


def all_tables() -> list[type[Table]]:
    """In the order in which they are listed: the papers' numbered tables, then the others."""
    return sorted(TABLES.values(), key=lambda table: (table.group, not table.name.startswith("table"), table.name))
