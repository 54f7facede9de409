"""All tables of trained models: those of the papers in the order in which they are listed, then those users add."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe
from oversmooth_papers.tables.base import TABLES, Table, register
from oversmooth_papers.tables.cells import Cell, read_folder
from oversmooth_papers.tables.depth import Depth
from oversmooth_papers.tables.forms import Controls, Forms, Mixtures
from oversmooth_papers.tables.neutreno.language import Language, LanguageAblation
from oversmooth_papers.tables.neutreno.methods import Ablation, Classification, Methods
from oversmooth_papers.tables.neutreno.segmentation import Segmentation
from oversmooth_papers.tables.rules import RulesOfTable1
from oversmooth_papers.tables.sharpening import Sharpening, SharpeningDose, SharpeningHalf
from oversmooth_papers.tables.sweep import Sweep
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.table3 import Table3
from oversmooth_papers.tables.text.glue import Glue
from oversmooth_papers.tables.text.language_models import Causal, Masked, Wikitext

__all__ = ["TABLES", "all_cells", "all_tables", "folders_of_cells", "register"]

for _table in (
    *(Table2, Table3, Controls, Depth, Forms, Mixtures, RulesOfTable1),
    *(Sharpening, SharpeningDose, SharpeningHalf),
    *(Ablation, Classification, Language, LanguageAblation, Methods, Segmentation),
    *(Causal, Glue, Masked, Wikitext),
):
    register(_table)


def all_tables() -> list[type[Table]]:
    """In the order in which they were registered."""
    return [*TABLES.values()]


def folders_of_cells(results: Path) -> list[tuple[type[Table], Path]]:
    """Each table's own and those of its versions (table2-quick), there or not; then those of sweeps."""
    kinds: list[type[Table]] = [*all_tables(), Sweep]
    homes = {results / home for home in TABLES}
    return [
        (table, folder)
        for table in kinds
        for folder in (results / table.home(), *sorted({*results.glob(f"{table.home()}-*")} - homes))
    ]


def all_cells(results: Path, damaged: list[str] | None = None) -> Iterator[tuple[str, BaseRecipe, Cell]]:
    """Every cell of every table, with its folder's name and its recipe.

    damaged: receives a sentence for each that cannot be read, in place of the first one's error.
    """
    for _, folder in folders_of_cells(results):
        for cell in read_folder(folder, damaged):
            yield folder.relative_to(results).as_posix(), read_recipe(cell["recipe"]), cell
