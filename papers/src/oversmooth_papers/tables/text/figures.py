"""Figures 2, 3 and 5 of Dovonon et al. for trained language models, and how asymmetric H is while they train.

    oversmooth reproduce text figures --table causal -o figures

One diagnosis of each model gives all: figure 2 is its three notions by depth, figure 3 the same beside the forced ones,
figure 5 the eigenvalues of H.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report import figures
from oversmooth.safety.errors import InputError
from oversmooth_papers.figures import FIG2, FIG5, fig3, table_charts
from oversmooth_papers.tables.cells import Cell, fitted_to_cells, model_path, read_cells
from oversmooth_papers.tables.text.language_models import CASES, Causal, Masked, TextTable, Wikitext
from oversmooth_papers.tasks.images.recipe import VARIANTS

TABLES_OF_MODELS: dict[str, type[TextTable]] = {"causal": Causal, "wikitext": Wikitext, "masked": Masked}


class Trained(NamedTuple):
    """A model with its cell."""

    name: str
    path: Path
    cell: Cell

    @property
    def title(self) -> str:
        return CASES[self.name].title


def trained(table: str, results: Path, seed: int = 0, *, quick: bool = False) -> list[Trained]:
    """The plain, smoothing and sharpening models of a text table."""
    if table not in TABLES_OF_MODELS:
        raise InputError(f"--table is {table!r}; choose {', '.join(TABLES_OF_MODELS)}")
    own = TABLES_OF_MODELS[table](quick=quick)
    recipes = [own.recipe(name, seed) for name in VARIANTS]
    if not (cells := read_cells(recipes, results, own.folder)):  # other text than the table's own
        recipes = fitted_to_cells(recipes, results, own.folder)
        cells = read_cells(recipes, results, own.folder)
    named = dict(zip(VARIANTS, recipes, strict=True))
    if lacking := [n for n, one in named.items() if not (one in cells and model_path(results, one).is_file())]:
        remedy = f"oversmooth reproduce text {table}{' --quick' if quick else ''} --cells {','.join(lacking)}"
        raise InputError(f"{results} has no {lacking[0]} model of text {table}, seed {seed}; make it with {remedy}")
    return [Trained(name, model_path(results, recipe), cells[recipe]) for name, recipe in named.items()]


def named(measured: Sequence[Diagnosis], models: Sequence[Trained]) -> list[Diagnosis]:
    """Diagnoses of these models, named as the table does."""
    return [
        replace(one, model={**one.model, "name": model.title, "state": "trained", "mode": model.name})
        for one, model in zip(measured, models, strict=True)
    ]


def asymmetries(models: Sequence[Trained]) -> list[table_charts.Point]:
    """Points of the asymmetry of H over training, the mean over blocks."""
    return [
        table_charts.point(model.title, "ours", sum(own) / len(own), None, x=snapshot["step"])
        for model in models
        for snapshot in model.cell.get("smoothing", [])
        if (own := snapshot.get("asymmetry"))
    ]


def write(drawn: list[Diagnosis], points: list[table_charts.Point], folder: Path, ending: str) -> Iterator[Path]:
    """The files, one by one."""
    if ending not in figures.FORMATS:
        raise InputError(f"--ending is {ending!r}; choose one of {', '.join(figures.FORMATS)}")
    for name, chart in (("fig2", FIG2), ("fig3", fig3.FIGURE), ("fig5", FIG5)):
        path = folder / f"{name}.{ending}"
        figures.save_one(drawn, chart, path)
        yield path
    if points:
        path = folder / f"asymmetry.{ending}"
        panel = ("asymmetry of H, mean over blocks", points, "‖H − Hᵀ‖ / ‖H‖")
        figures.write(table_charts.lines([panel], "step"), path)
        yield path
