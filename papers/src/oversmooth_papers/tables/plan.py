"""In which order missing runs are worth their minutes, for `oversmooth reproduce paper`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import chosen, missing
from oversmooth_papers.tables.neutreno.language import Language
from oversmooth_papers.tables.neutreno.methods import Methods
from oversmooth_papers.tables.sharpening import SEEDS, Sharpening, SharpeningDose, SharpeningHalf
from oversmooth_papers.tables.status import Run, cost
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.table_registry import all_tables
from oversmooth_papers.tables.text.language_models import Causal

Step = tuple[Table, tuple[str, ...]]
"""A table with its seeds, and which of its cells, as --cells names them; none for all."""
FIRST: tuple[Step, ...] = (
    (Sharpening(seeds=len(SEEDS)), ()),
    (SharpeningDose(), ()),
    (SharpeningHalf(), ()),
    (Causal(seeds=1), ("bounded",)),
    (Methods(), ("neutreno+featscale", "centred", "contranorm")),
    (Language(), ("post",)),
    (Table2(), ("50%",)),
    (Causal(seeds=2), ("plain", "smooth", "sharpen")),
    (Table2(seeds=2), ("100%",)),
)
"""What decides most per minute: first a result of our own, then seeds of what the papers claim."""


def steps() -> Iterable[Step]:
    """These, then one seed of everything else."""
    yield from FIRST
    yield from ((table(seeds=1), ()) for table in all_tables() if table.trains)


def left(step: Step, results: Path) -> list[Any]:
    """The recipes of a step that have no cell yet."""
    table, words = step
    return missing(chosen(table.recipes(), words, table.names_of), results, table.folder)


def minutes_of(recipes: Iterable[Any], runs: Sequence[Run]) -> float:
    """On one GPU; runs whose cost is not known count as none."""
    return sum(cost(recipe, runs) or 0.0 for recipe in recipes)
