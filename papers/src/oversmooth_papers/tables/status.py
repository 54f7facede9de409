"""What a results directory holds: cells of every table, runs on their way; what missing cells would cost, and in which
order they are worth it.

Minutes of a missing cell are those of the most similar run (the fewest differences between recipes, and of equals the
quickest), scaled by epochs, share and blocks. Runs that shared a device count only where none had it alone, and then by
their share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint
from oversmooth_papers.engine.recipe import BaseRecipe, leaves
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import cell_path, chosen, missing
from oversmooth_papers.tables.neutreno.language import Language
from oversmooth_papers.tables.neutreno.methods import Methods
from oversmooth_papers.tables.sharpening import SEEDS, Sharpening, SharpeningDose, SharpeningHalf
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.table_registry import all_cells, all_tables
from oversmooth_papers.tables.text.language_models import Causal

_NO_COST = ("seed", "share", "epochs", "warmup", "shape.depth", "share_seed")
"""Fields that make a run no other, or that scaling takes care of."""
Run = tuple[BaseRecipe, float]
"""A training run that is over, and its minutes."""


def status(results: Path, damaged: list[str] | None = None) -> list[tuple[str, ...]]:
    """Rows of table, cell, scores, where it was run, when, and its key; runs on their way last.

    damaged: receives a sentence for each cell that cannot be read, in place of the first one's error.
    """
    by_folder: dict[str, list[tuple[str, ...]]] = {}
    for folder, recipe, cell in all_cells(results, damaged):
        # By today's name, which may say more than when it was run; and what was remarked of it.
        title = ", ".join(filter(None, (recipe.title, cell.get("remark"))))
        row = (folder, title, recipe.describe(cell), cell["hardware"], cell["day"], recipe.key)
        by_folder.setdefault(folder, []).append(row)
    rows = [row for group in by_folder.values() for row in sorted(group, key=lambda row: (row[3], row[1]))]
    for work in sorted(path for path in (results / "work").glob("*") if path.is_dir()):
        try:
            if (begun := checkpoint.recipe_of(work)) is not None:
                rows.append(("on its way", begun.title, checkpoint.how_far(work), "–", "–", work.name))
        except InputError:  # who goes on with it is told what is wrong
            rows.append(("on its way", work.name, "damaged", "–", "–", "–"))
    return rows


def missing_rows(results: Path, seeds: int = 1) -> list[tuple[str, str, float | None]]:
    """Rows of table, cell and the minutes that it takes, None where unknown; of the full versions, and once for cells
    that tables share.
    """
    runs = measured(results)
    rows: dict[Path, tuple[str, str, float | None]] = {}
    for table in (kind(seeds=seeds) for kind in all_tables() if kind.trains):
        for recipe in table.recipes():
            path = cell_path(results, table.folder, recipe)
            if path not in rows and not path.is_file():  # whether what is there can be read, `status` says
                rows[path] = (table.folder(recipe), recipe.title, cost(recipe, runs))
    return list(rows.values())


def measured(results: Path) -> list[Run]:
    """Every training run that has a cell."""
    cells = [(recipe, cell) for _, recipe, cell in all_cells(results, []) if cell.get("seconds")]
    alone = {_kind(recipe) for recipe, cell in cells if cell.get("at_once", 1) == 1}
    runs = [(recipe, cell["seconds"] / 60, cell.get("at_once", 1)) for recipe, cell in cells]
    return [(recipe, time / shared) for recipe, time, shared in runs if shared == 1 or _kind(recipe) not in alone]


def cost(recipe: BaseRecipe, runs: Iterable[Run]) -> float | None:
    """Minutes that a recipe takes, estimated from similar runs; None where nothing like it was run on these data."""
    estimates = [
        (len({name for name, _ in _settings(recipe) ^ _settings(other)}), minutes * _work(recipe) / _work(other))
        for other, minutes in runs
        if _kind(other) == _kind(recipe)
    ]
    return min(estimates)[1] if estimates else None


def _kind(recipe: BaseRecipe) -> tuple[type[BaseRecipe], str]:
    """The task and the data: how much there is of other data is not known without loading them."""
    return type(recipe), recipe.data


def _work(recipe: BaseRecipe) -> float:
    """What minutes grow with; the tokens of an input and the size of a batch are compared as differences."""
    return float(recipe.total_epochs * getattr(recipe, "share", 1.0) * recipe.shape.depth)


@cache
def _settings(recipe: BaseRecipe) -> frozenset[tuple[str, str]]:
    """Those that may change the cost, by dotted name."""
    return frozenset((name, str(value)) for name, value in leaves(recipe.to_dict()).items() if name not in _NO_COST)


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


def left(table: Table, words: Sequence[str], results: Path) -> list[Any]:
    """The recipes of a step that have no cell yet."""
    return missing(chosen(table.recipes(), words, table.names_of), results, table.folder)
