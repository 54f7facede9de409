"""One figure again: the model of a cell, from results/models or from an archive, tested as the cell was.

    oversmooth reproduce verify 44136fa355b3

On a CPU that takes minutes, where training took a GPU's half hour. The file holds weights in bf16, and a CPU multiplies
in float32 where a GPU did in bf16: a few test images near the border between two classes fall on the other side. Cells
that record how good the rounded file is are compared with that, earlier ones with the figure of the run itself.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import Cell, model_path, read
from oversmooth_papers.tables.provenance import data_hash, file_hash
from oversmooth_papers.tables.table_registry import TABLES, folders_of_cells
from oversmooth_papers.tables.tolerances import tested_again, weights_rounded
from oversmooth_papers.tasks.images.data import Splits, first_of_test
from oversmooth_papers.tasks.registry import check_fits, load_trained, task_of

ENOUGH = 1000
"""Of a part of the test images: three standard errors of an accuracy are 5 points at most."""


@dataclass(frozen=True)
class Checked:
    """A figure of a cell, and the same again."""

    score: str
    recorded: float
    again: float
    allowed: float
    """Difference."""
    enough: bool = True
    """Whether it was tested on all images, or on `ENOUGH`: on fewer, a wrong figure may be within what is allowed."""

    @property
    def verdict(self) -> str:
        if not abs(self.again - self.recorded) <= self.allowed:
            return "DIFFERS"
        return "agrees" if self.enough else "cannot tell"


@dataclass(frozen=True)
class Verification:
    """What came of it."""

    title: str
    file: Path
    figures: list[Checked]
    notes: list[str]
    """What was compared beside figures, and what could not be."""
    seconds: float

    @property
    def agrees(self) -> bool:
        return all(figure.verdict == "agrees" for figure in self.figures)


def find_cell(named: str, results: Path) -> tuple[Path, Cell]:
    """By its file, or by its key in the tables of a results directory, those of training first."""
    path, remedy = Path(named), "give the twelve digits of one, as oversmooth reproduce status lists them, or its file"
    if path.suffix != ".json":
        if path.is_file():
            raise InputError(f"{path} is no cell, which a .json holds; {remedy}")
        places = sorted(folders_of_cells(results).items(), key=lambda place: not place[1].trains)
        path = next((file for folder, _ in places if (file := folder / f"{named}.json").is_file()), path)
    cell = read(path)
    if cell is None:
        raise InputError(f"there is no cell {named!r} in {results}; {remedy}")
    return path, cell


def model_of(cell: Cell, results: Path, model: Path | None = None) -> Path:
    """The file with the cell's model, checked against its recipe and its hash."""
    recipe = read_recipe(cell["recipe"])
    path = model or model_path(results, recipe)
    if model is not None and not model.is_file():
        raise InputError(f"{model} is no file; name that of the model of {cell['title']}, or leave --model out")
    if not path.is_file():
        table = TABLES.get(cell.get("table", ""))
        again = "train it again" if table is None else f"run {_command(table, recipe)} --results again"
        if table is not None and not table.keeps_models:
            raise InputError(f"{cell['title']} has no model to test, as {table.home()} keeps none; {again}")
        raise InputError(
            f"{path}, the model of {cell['title']}, is not there; take it from an archive (models --from FILE) or "
            f"{again}"
        )
    own = recipe_of(path)
    if own is None or (differs := own.difference(recipe)) is not None:
        why = "it has no recipe" if own is None else differs
        raise InputError(f"{path} is not the model of this cell: {why}; name another file")
    recorded = cell.get("checkpoint_sha256")
    if recorded and model is None and file_hash(path) != recorded:
        raise InputError(f"{path} is not the file that the cell was made with: its hash differs; get it again")
    return path


def _command(table: type[Table], recipe: BaseRecipe) -> str:
    """That makes the cell of a recipe."""
    cells = ":".join(table().names_of(recipe).values())
    words = ["oversmooth", "reproduce", *table.home().split("/"), "--cells", cells, "--seeds", str(recipe.seed + 1)]
    return shlex.join(words)


def verify(cell: Cell, path: Path, data: Any, *, device: str | None = None, images: int | None = None) -> Verification:
    """Test a model again and compare.

    Args:
        cell: what is to be verified.
        path: its model.
        data: of its task, whole.
        device: cpu or cuda.
        images: so many test images, the first ones, in place of all: quicker, and less certain.
    """
    begin = time.monotonic()
    recipe = read_recipe(cell["recipe"])
    check_fits(recipe, data)
    notes = [_same_data(cell, recipe, data), _same_file(cell, path)]
    share = 1.0
    if images is not None:
        if not isinstance(data, Splits):
            raise InputError(f"--images is {images} and {cell['title']} is tested on text; leave it out")
        share, data = min(1.0, images / len(data.test)), first_of_test(data, images)
    task = task_of(recipe, data)
    model, _ = load_trained(path)
    where = loop.device_named(device)
    with loop.float32_products(where):
        scores = task.evaluation(model.to(where), where).scores(final=False)
    recorded = cell.get("rounded")
    if recorded is not None:  # where earlier versions called scores of validation by the names of the test's
        old = {name: recorded[test] for name in scores if (test := name.removesuffix("_val")) in recorded}
        recorded = {**old, **recorded}
    else:
        recorded = cell
        notes.append("The cell is of the weights before they were rounded to bf16; this file is rounded.")
    tested = len(data.test) if isinstance(data, Splits) else 0
    enough = share == 1 or tested >= ENOUGH
    figures = [
        Checked(name, recorded[name], again, tested_again(name, recorded[name], share, tested), enough)
        for name, again in scores.items()
        if name in recorded
    ]
    # What tables show is of the weights before they were rounded, of which no file is kept.
    for figure in list(figures) if recorded is not cell else ():
        if figure.score in cell:
            allowed = figure.allowed + weights_rounded(figure.score, figure.recorded, tested)
            name = f"{figure.score} before rounding"
            figures.append(Checked(name, cell[figure.score], figure.again, allowed, enough))
    if not figures:
        raise InputError(f"{cell['title']} has none of the scores {', '.join(scores)}; give another cell")
    return Verification(cell["title"], path, figures, notes, time.monotonic() - begin)


def _same_data(cell: Cell, recipe: BaseRecipe, data: Any) -> str:
    recorded = cell.get("data_sha256")
    if not recorded:
        return "The cell records no hash of its data."
    if data_hash(task_of(recipe, data).data()) == recorded:
        return "The data are those of the cell, by their hash."
    return "The data are not those of the cell, by their hash: figures may differ for that reason."


def _same_file(cell: Cell, path: Path) -> str:
    recorded = cell.get("checkpoint_sha256")
    if not recorded:
        return "The cell records no hash of its model."
    same = file_hash(path) == recorded
    return f"The model {'is' if same else 'is not'} the file that the cell was made with, by its hash."
