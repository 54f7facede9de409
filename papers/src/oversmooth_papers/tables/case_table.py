"""Tables whose rows are cases of one recipe, of any task: cases, columns, notes and published figures are data.

A case is what it changes of the table's recipe. Cells that are another table's own are taken from there and kept there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import depth, table_text
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Available, Cell
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK

Column = Callable[[Sequence[Cell]], str]
"""A figure as the table shows it, of one case's cells over seeds."""


@dataclass(frozen=True)
class Case:
    """A row: its title, what it changes of the recipe or its shape, and what of value and output decays."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    decays: str = ""


def scores(cells: Sequence[Cell], name: str) -> list[float]:
    """Over seeds; cells without it are left out."""
    return [cell[name] for cell in cells if cell.get(name) is not None]


def percent(name: str) -> Column:
    return lambda cells: table_text.percent_over_seeds(scores(cells, name))


def last_snapshot(place: int) -> Column:
    """Of what leaves the last block: 1, HFC/LFC; 2, mean |cos|."""
    return lambda cells: table_text.over_seeds([snapshot[place] for snapshot in depth.last_snapshots(cells)], ".3g")


def minutes(cells: Sequence[Cell]) -> str:
    """Of training, least and most, by runs that had the device for themselves; where there are none, of the others."""
    cells = [cell for cell in cells if "seconds" in cell]
    alone = [cell for cell in cells if "at_once" not in cell]
    spent = sorted(cell["seconds"] / 60 for cell in alone or cells)
    if not spent:
        return "–"
    shown_minutes = f"{spent[0]:.1f}" if spent[-1] - spent[0] < 0.05 else f"{spent[0]:.1f} to {spent[-1]:.1f}"
    return shown_minutes if alone else f"{shown_minutes}, {max(cell['at_once'] for cell in cells)} at once"


def case_of(cases: Mapping[str, Case], usual: Any, recipe: Any) -> str:
    """The case that a recipe is of, whatever data it was fitted to, and of whatever task; empty for none.

    usual: the recipe that cases change. What another task's recipe does not have tells no cases apart.
    """
    keys = {key for case in cases.values() for key in case.changes}
    for name, case in cases.items():
        wanted = {key: case.changes.get(key, _setting(usual, key)) for key in keys}
        if all(_setting(recipe, key, value) == value for key, value in wanted.items()):
            return name
    return ""


def _setting(recipe: Any, key: str, default: Any = None) -> Any:
    """Its own, or its shape's."""
    return getattr(recipe, key, getattr(recipe.shape, key, default))


@dataclass(frozen=True, kw_only=True)
class CaseTable(Table):
    """Subclasses list the cases; by default the recipe is table 2's on 10 % of CIFAR-100."""

    asks_unknowns = False
    full: ClassVar[Any] = replace(PAPER, share=0.1)
    small: ClassVar[Any] = QUICK
    """The recipe, and its quick version."""
    case_by_name: ClassVar[Mapping[str, Case]]
    """By what --cells calls them."""
    cells_from: ClassVar[Mapping[str, type[Table]]] = {}
    """Cases whose cells are those of another table."""
    rows_are: ClassVar[str] = ""
    """The heading of the first column."""
    columns: ClassVar[Mapping[str, Column]] = {
        "accuracy, %": percent("accuracy"),
        "HFC/LFC, last": last_snapshot(1),
        "mean |cos|, last": last_snapshot(2),
    }
    published_as: ClassVar[tuple[str, str]] = ("", "")
    """The column of the published figures, and the data that they are of."""
    score: ClassVar[tuple[str, float]] = ("accuracy", 100)
    """What the chart shows of a cell, and what it is multiplied by."""
    title: ClassVar[str] = "10 % of CIFAR-100"
    """Of the chart."""
    quick_title: ClassVar[str] = "quick"
    note: ClassVar[str]
    quick_note: ClassVar[str]

    def __init_subclass__(cls, **more: Any) -> None:
        """--cells names the cases, unless a table says something else."""
        super().__init_subclass__(**more)
        if "case_by_name" in vars(cls) and "cells_help" not in vars(cls):
            cls.cells_help = f"The cells to run: {', '.join(cls.case_by_name)}; by default all."

    def cases(self) -> Mapping[str, Case]:
        return self.case_by_name

    def base(self) -> Any:
        return self.small if self.quick else self.full

    def recipe(self, name: str, seed: int = 0) -> Any:
        return self.base().changed({"seed": seed, **self.cases()[name].changes})

    def recipes(self) -> list[Any]:
        """Seed by seed, so that a table that is cut short compares all of them."""
        return [self.recipe(name, seed) for seed in range(self.seeds) for name in self.cases()]

    def case_of(self, recipe: Any) -> str:
        return case_of(self.cases(), self.base(), recipe)

    def folder(self, recipe: Any) -> str:
        return self.folder_of(self.cells_from.get(self.case_of(recipe), type(self)))

    def names_of(self, recipe: Any) -> dict[str, str]:
        return {"variant": self.case_of(recipe)}

    def cells(self, available: Available, name: str) -> list[Cell]:
        """Over seeds."""
        return [cell for recipe, cell in available.items() if self.case_of(recipe) == name]

    def rows(self, available: Available) -> Rows:
        column, data = self.published_as
        rows = []
        for name, case in self.cases().items():
            cells = self.cells(available, name)
            rows.append([case.title, *(shown(cells) for shown in self.columns.values()), self.whose()])
            if name in self.published and not self.quick:
                figures = [f"{self.published[name]:.2f}" if heading == column else "–" for heading in self.columns]
                rows.append([case.title, *figures, f"published, {data}"])
        return [self.rows_are, *self.columns, "whose"], rows

    def charted(self, available: Available, name: str) -> list[float]:
        """What the chart shows of a case."""
        key, factor = self.score
        return [factor * value for value in scores(self.cells(available, name), key)]

    def standings(self, available: Available) -> dict[str, float]:
        names = sorted(self.cases(), key=lambda name: not name.startswith("plain"))
        values = {self.cases()[name].title: self.charted(available, name) for name in names}
        return {title: statistics.fmean(over_seeds) for title, over_seeds in values.items() if over_seeds}

    def chart(self, available: Available) -> Any:
        points = []
        for name, case in self.cases().items():
            points += table_charts.over_seeds(case.title, self.whose(), self.charted(available, name))
        return table_charts.bars(self.quick_title if self.quick else self.title, points, self.label)

    def notes(self) -> list[str]:
        return [self.quick_note if self.quick else self.note]
