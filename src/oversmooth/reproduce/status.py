"""What a results directory holds: the cells of every registered table, and the runs on their way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oversmooth.reproduce.cells import read_folder
from oversmooth.reproduce.table_registry import all_tables
from oversmooth.safety.errors import InputError
from oversmooth.train.engine import checkpoint
from oversmooth.train.engine.recipe import read_recipe


def status(results: Path) -> list[tuple[str, str, str, str, str]]:
    """Rows of table, cell, scores, where it was run, when; runs on their way last."""
    rows = []
    for folder in _folders(results):
        for cell in sorted(read_folder(folder), key=lambda cell: (cell["title"], cell["recipe"]["seed"])):
            scores = read_recipe(cell["recipe"]).describe(cell)
            rows.append((folder.relative_to(results).as_posix(), cell["title"], scores, cell["hardware"], cell["day"]))
    for folder in sorted(path for path in (results / "work").glob("*") if path.is_dir()):
        try:
            recipe = checkpoint.recipe_of(folder)
        except InputError:  # who goes on with it is told what is wrong
            rows.append(("on its way", folder.name, "damaged", "–", "–"))
            continue
        if recipe is not None:
            rows.append(("on its way", recipe.title, checkpoint.how_far(folder), "–", "–"))
    return rows


def _folders(results: Path) -> Iterator[Path]:
    """Of each table: its own, and those of its versions, such as table2-quick."""
    for table in all_tables():
        paths = [results / table.home(), *sorted(results.glob(f"{table.home()}-*"))]
        yield from (path for path in paths if path.is_dir())
