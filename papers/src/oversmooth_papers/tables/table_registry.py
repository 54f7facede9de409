"""All tables of trained models by name: those of the papers, and those that others register."""

from __future__ import annotations

# Importing a table registers it. Files that hold none import torch, which the help of the commands does without.
from oversmooth_papers.tables import controls, depth, forms, mixtures, rules, sharpening, table2, table3
from oversmooth_papers.tables.base import TABLES, Table, register
from oversmooth_papers.tables.neutreno import (
    ablation,
    classification,
    language,
    language_ablation,
    methods,
    segmentation,
)
from oversmooth_papers.tables.text import causal, glue, masked, wikitext

__all__ = [
    "TABLES", "ablation", "all_tables", "causal", "classification", "controls", "depth", "forms", "glue", "language",
    "language_ablation", "masked", "methods", "mixtures", "register", "rules", "segmentation", "sharpening",
    "table2", "table3", "wikitext",
]  # fmt: skip


def all_tables() -> list[type[Table]]:
    """In the order in which they are listed: the papers' numbered tables, then the others."""
    return sorted(TABLES.values(), key=lambda table: (table.group, not table.name.startswith("table"), table.name))
