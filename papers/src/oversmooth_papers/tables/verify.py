"""One figure again: the model of a cell, from results/models or from an archive, tested as the cell was.

    oversmooth reproduce verify 44136fa355b3

The file holds weights in bf16, and a CPU multiplies in float32 where a GPU did in bf16: a few test images near the
border between two classes fall on the other side. Cells that record how good the rounded file is are compared with
that, earlier ones with the figure of the run itself.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tables.cells import Cell, allowed, model_path, read
from oversmooth_papers.tables.provenance import data_hash, file_hash
from oversmooth_papers.tables.table_registry import TABLES, folders_of_cells
from oversmooth_papers.tasks.images.data import Splits, first_of_test
from oversmooth_papers.tasks.registry import load_trained, task_of

ENOUGH = 1000
"""Of a part of the test images: three standard errors of an accuracy are 5 points at most."""


class Checked(NamedTuple):
    """A figure of a cell, the same again, and by how much they may differ."""

    score: str
    recorded: float
    again: float
    allowed: float
    enough: bool
    """Whether it was tested on all images, or on `ENOUGH`: on fewer, a wrong figure may be within what is allowed."""

    @property
    def verdict(self) -> str:
        if not abs(self.again - self.recorded) <= self.allowed:
            return "DIFFERS"
        return "agrees" if self.enough else "cannot tell"


class Verification(NamedTuple):
    """What came of it, and what was compared beside figures, or could not be."""

    figures: list[Checked]
    notes: list[str]

    @property
    def agrees(self) -> bool:
        return all(figure.verdict == "agrees" for figure in self.figures)


def find_cell(named: str, results: Path) -> tuple[Path, Cell]:
    """By its file, or by its key in the tables of a results directory, those of training first."""
    path, remedy = Path(named), "give the twelve digits of one, as oversmooth reproduce status lists them, or its file"
    if path.suffix != ".json":
        if path.is_file():
            raise InputError(f"{path} is no cell, which a .json holds; {remedy}")
        places = sorted(folders_of_cells(results), key=lambda place: not place[0].trains)
        path = next((file for _, folder in places if (file := folder / f"{named}.json").is_file()), path)
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
        table, again = TABLES.get(cell.get("table", "")), "train it again"
        if table is not None:
            cells = ":".join(table().names_of(recipe).values())
            words = [*table.home().split("/"), "--cells", cells, "--seeds", str(recipe.seed + 1)]
            again = f"run oversmooth reproduce {shlex.join(words)} --results again"
        if table is not None and not table.keeps_models:
            raise InputError(f"{cell['title']} has no model to test, as {table.home()} keeps none; {again}")
        archive = "take it from an archive (models --from FILE)"
        raise InputError(f"{path}, the model of {cell['title']}, is not there; {archive} or {again}")
    own = recipe_of(path)
    if (differs := "it has no recipe" if own is None else own.difference(recipe)) is not None:
        raise InputError(f"{path} is not the model of this cell: {differs}; name another file")
    if model is None and cell.get("checkpoint_sha256", "") not in ("", file_hash(path)):
        raise InputError(f"{path} is not the file that the cell was made with: its hash differs; get it again")
    return path


def verify(cell: Cell, path: Path, data: Any, *, device: str | None = None, images: int | None = None) -> Verification:
    """Test a cell's model again on all data of its task, or on so many first test images, and compare."""
    recipe = read_recipe(cell["recipe"])
    recipe.check_fits(data)
    notes = []
    for key, what, found in (
        ("data_sha256", "data", data_hash(task_of(recipe, data).data())),
        ("checkpoint_sha256", "model", file_hash(path)),
    ):
        if not cell.get(key):
            notes.append(f"The cell records no hash of its {what}.")
        elif cell[key] == found:
            notes.append(f"The hash of the {what} is the one in the cell.")
        else:
            notes.append(f"The hash of the {what} is not the one in the cell: figures may differ for that reason.")
    share = 1.0
    if images is not None:
        if not isinstance(data, Splits):
            raise InputError(f"--images is {images} and {cell['title']} is tested on text; leave it out")
        share, data = min(1.0, images / len(data.test)), first_of_test(data, images)
    task, where = task_of(recipe, data), loop.device_named(device)
    model, _ = load_trained(path)
    with loop.float32_products(where):
        scores = task.evaluation(model.to(where), where).scores(final=False)
    recorded = dict(cell.get("rounded", cell))
    if "rounded" not in cell:
        notes.append("The cell is of the weights before they were rounded to bf16; this file is rounded.")
    for name in scores:  # earlier versions called scores of validation by the names of the test's
        if "rounded" in cell and (test := name.removesuffix("_val")) in recorded:
            recorded.setdefault(name, recorded[test])
    tested = len(data.test) if isinstance(data, Splits) else 0
    enough = share == 1 or tested >= ENOUGH
    known = {name: again for name, again in scores.items() if name in recorded}
    if not known:
        raise InputError(f"{cell['title']} has none of the scores {', '.join(scores)}; give another cell")
    figures = [
        Checked(name, recorded[name], again, allowed(name, recorded[name], share=share, tested=tested), enough)
        for name, again in known.items()
    ]
    # What tables show is of the weights before they were rounded, of which no file is kept.
    for name, again in known.items() if "rounded" in cell else ():
        if name in cell:
            most = allowed(name, recorded[name], share=share, tested=tested, rounded=True)
            figures.append(Checked(f"{name} before rounding", cell[name], again, most, enough))
    return Verification(figures, notes)
