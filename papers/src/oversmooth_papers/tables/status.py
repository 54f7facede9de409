"""What a results directory holds: cells of every table, runs on their way, and what missing cells would cost.

Minutes of a missing cell are those of the most similar run (the fewest differences between recipes, and of equals the
quickest), scaled by epochs, share and blocks. Runs that shared a device count only where none had it alone, and then by
their share. It is an estimate: it knows nothing of compiling, nor of what else the machine does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe
from oversmooth_papers.tables.cells import cell_path, read_folder
from oversmooth_papers.tables.table_registry import all_tables, folders_of_cells

_NO_COST = ("seed", "share", "epochs", "warmup", "shape.depth", "share_seed")
"""Fields that make a run no other, or that scaling takes care of."""


def status(results: Path, damaged: list[str] | None = None) -> list[tuple[str, ...]]:
    """Rows of table, cell, scores, where it was run, when, and its key; runs on their way last.

    damaged: receives a sentence for each cell that cannot be read, in place of the first one's error.
    """
    rows: list[tuple[str, ...]] = []
    for folder in folders_of_cells(results):
        cells = [(read_recipe(cell["recipe"]), cell) for cell in read_folder(folder, damaged)]
        table = folder.relative_to(results).as_posix()
        for own, cell in sorted(cells, key=lambda pair: (pair[1]["hardware"], pair[0].title)):
            # By today's name, which may say more than when it was run; and what was remarked of it.
            title = ", ".join(filter(None, (own.title, cell.get("remark"))))
            rows.append((table, title, own.describe(cell), cell["hardware"], cell["day"], own.key))
    for folder in sorted(path for path in (results / "work").glob("*") if path.is_dir()):
        try:
            recipe = checkpoint.recipe_of(folder)
        except InputError:  # who goes on with it is told what is wrong
            rows.append(("on its way", folder.name, "damaged", "–", "–", "–"))
            continue
        if recipe is not None:
            rows.append(("on its way", recipe.title, checkpoint.how_far(folder), "–", "–", folder.name))
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


Run = tuple[BaseRecipe, float]
"""A training run that is over, and its minutes."""


def measured(results: Path) -> list[Run]:
    """Every training run that has a cell."""
    cells = [cell for folder in folders_of_cells(results) for cell in read_folder(folder, []) if cell.get("seconds")]
    runs = [(read_recipe(cell["recipe"]), cell["seconds"] / 60, cell.get("at_once", 1)) for cell in cells]
    alone = {_kind(recipe) for recipe, _, at_once in runs if at_once == 1}
    return [
        (recipe, minutes / at_once) for recipe, minutes, at_once in runs if at_once == 1 or _kind(recipe) not in alone
    ]


def cost(recipe: BaseRecipe, runs: Iterable[Run]) -> float | None:
    """Minutes that a recipe takes, estimated from similar runs; None where nothing like it was run on these data."""
    mine, estimates = _leaves(recipe.to_dict()), []
    for other, minutes in runs:
        if _kind(other) == _kind(recipe):
            theirs = _leaves(other.to_dict())
            differ = sum(mine.get(name) != theirs.get(name) for name in {*mine, *theirs} if name not in _NO_COST)
            estimates.append((differ, minutes * _work(recipe) / _work(other)))
    return min(estimates)[1] if estimates else None


def _kind(recipe: BaseRecipe) -> tuple[type[BaseRecipe], str]:
    """The task and the data: how much there is of other data is not known without loading them."""
    return type(recipe), recipe.data


def _work(recipe: BaseRecipe) -> float:
    """What minutes grow with; the tokens of an input and the size of a batch are compared as differences."""
    return float(recipe.total_epochs * getattr(recipe, "share", 1.0) * recipe.shape.depth)


def _leaves(fields: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _leaves(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: str(value)}
    return flat
