"""What a results directory holds: the cells of every registered table, the runs on their way, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.tables import costs
from oversmooth_papers.tables.cells import cell_path, read_folder
from oversmooth_papers.tables.table_registry import all_tables


def status(results: Path, damaged: list[str] | None = None) -> list[tuple[str, ...]]:
    """Rows of table, cell, scores, where it was run, when, and its key; runs on their way last.

    damaged: gets a sentence for each cell that cannot be read, in place of the first one's error.
    """
    rows: list[tuple[str, ...]] = []
    for folder in _folders(results):
        cells = [(read_recipe(cell["recipe"]), cell) for cell in read_folder(folder, damaged)]
        for own, cell in sorted(cells, key=lambda pair: (pair[1]["hardware"], pair[0].title)):
            # By today's name, which may say more than when it was run; and what was remarked of it.
            title = ", ".join(filter(None, (own.title, cell.get("remark"))))
            rows.append(
                (
                    folder.relative_to(results).as_posix(),
                    title,
                    own.describe(cell),
                    cell["hardware"],
                    cell["day"],
                    own.key,
                )
            )
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
    """Rows of table, cell and minutes that it takes, by what was measured, or None; of the full versions, cells that
    tables share once.
    """
    runs = costs.measured(results)
    rows: list[tuple[str, str, float | None]] = []
    seen = set()
    for table in all_tables():
        asked = table(seeds=seeds)
        if not asked.trains:
            continue
        for recipe in asked.recipes():
            key = (asked.folder(recipe), recipe.key)
            # Whether what is there can be read, `status` says.
            if key not in seen and not cell_path(results, asked.folder, recipe).is_file():
                seen.add(key)
                rows.append((key[0], recipe.title, costs.cost(recipe, runs)))
    return rows


def _folders(results: Path) -> Iterator[Path]:
    """Of each table: its own, and those of its versions, such as table2-quick."""
    for table in all_tables():
        paths = [results / table.home(), *sorted(results.glob(f"{table.home()}-*"))]
        yield from (path for path in paths if path.is_dir())
