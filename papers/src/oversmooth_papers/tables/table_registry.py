"""All tables of trained models: those of the papers in the order in which they are listed, then those users add."""

from __future__ import annotations

from pathlib import Path

from oversmooth_papers.tables.base import TABLES, Table, register
from oversmooth_papers.tables.controls import Controls
from oversmooth_papers.tables.depth import Depth
from oversmooth_papers.tables.forms import Forms
from oversmooth_papers.tables.mixtures import Mixtures
from oversmooth_papers.tables.neutreno.ablation import Ablation
from oversmooth_papers.tables.neutreno.classification import Classification
from oversmooth_papers.tables.neutreno.language import Language
from oversmooth_papers.tables.neutreno.language_ablation import LanguageAblation
from oversmooth_papers.tables.neutreno.methods import Methods
from oversmooth_papers.tables.neutreno.segmentation import Segmentation
from oversmooth_papers.tables.rules import RulesOfTable1
from oversmooth_papers.tables.sharpening import Sharpening
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.table3 import Table3
from oversmooth_papers.tables.text.causal import Causal
from oversmooth_papers.tables.text.glue import Glue
from oversmooth_papers.tables.text.masked import Masked
from oversmooth_papers.tables.text.wikitext import Wikitext

__all__ = ["OF_THE_PAPERS", "TABLES", "all_tables", "folders_of_cells", "register"]

OF_THE_PAPERS: tuple[type[Table], ...] = (
    *(Table2, Table3, Controls, Depth, Forms, Mixtures, RulesOfTable1, Sharpening),
    *(Ablation, Classification, Language, LanguageAblation, Methods, Segmentation),
    *(Causal, Glue, Masked, Wikitext),
)
for _table in OF_THE_PAPERS:
    register(_table)


def all_tables() -> list[type[Table]]:
    """In the order in which they are listed."""
    return [*OF_THE_PAPERS, *(table for table in TABLES.values() if table not in OF_THE_PAPERS)]


def folders_of_cells(results: Path) -> dict[Path, type[Table]]:
    """The folders of a results directory that keep cells: each table's own, and its versions' (table2-quick)."""
    patterns = [(table, pattern) for table in all_tables() for pattern in (table.home(), f"{table.home()}-*")]
    found = [(folder, table) for table, pattern in patterns for folder in sorted(results.glob(pattern))]
    return {folder: table for folder, table in found if folder.is_dir()}
