"""Tables whose rows are cases of one recipe, of any task: cases, columns, notes and published figures are data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows
from oversmooth_papers.tables.cells import Cell, Kept
from oversmooth_papers.tables.variants import Case, VariantTable, ends

Column = Callable[[Sequence[Cell]], str]
"""A figure as the table shows it, of one case's cells over seeds."""


def scores(cells: Sequence[Cell], name: str) -> list[float]:
    """Over seeds; cells without it are left out."""
    return [cell[name] for cell in cells if cell.get(name) is not None]


def percent(name: str) -> Column:
    return lambda cells: table_text.percent_over_seeds(scores(cells, name))


def hfc_lfc(cells: Sequence[Cell]) -> str:
    return ends(cells)[0]


def mean_abs_cos(cells: Sequence[Cell]) -> str:
    return ends(cells)[1]


@dataclass(frozen=True, kw_only=True)
class CaseTable(VariantTable):
    """Subclasses say the recipe and its quick version, the cases, the columns, what the chart shows, and the notes."""

    full: ClassVar[Any]
    small: ClassVar[Any]
    rows_are: ClassVar[str] = ""
    """The heading of the first column."""
    case_by_name: ClassVar[Mapping[str, Case]]
    columns: ClassVar[Mapping[str, Column]]
    published_as: ClassVar[tuple[str, str]] = ("", "")
    """The column of the published figures, and the data that they are of."""
    score: ClassVar[tuple[str, float]] = ("accuracy", 100)
    """What the chart shows of a cell, and what it is multiplied by."""
    label: ClassVar[str] = "test accuracy, %"
    title: ClassVar[str] = "10 % of CIFAR-100"
    """Of the chart."""
    quick_title: ClassVar[str] = "quick"
    note: ClassVar[str]
    quick_note: ClassVar[str]

    def cases(self) -> Mapping[str, Case]:
        return self.case_by_name

    def base(self) -> Any:
        return self.small if self.quick else self.full

    def cells(self, kept: Kept, name: str) -> list[Cell]:
        """Over seeds."""
        return [cell for recipe, cell in kept.items() if ":".join(self.names_of(recipe).values()) == name]

    def rows(self, kept: Kept) -> Rows:
        column, data = self.published_as
        rows = []
        for name, case in self.cases().items():
            cells = self.cells(kept, name)
            rows.append([case.title, *(shown(cells) for shown in self.columns.values()), self.whose()])
            if name in self.published and not self.quick:
                figures = [f"{self.published[name]:.2f}" if heading == column else "–" for heading in self.columns]
                rows.append([case.title, *figures, f"published, {data}"])
        return [self.rows_are, *self.columns, "whose"], rows

    def charted(self, kept: Kept, name: str) -> list[float]:
        """What the chart shows of a case."""
        key, factor = self.score
        return [factor * value for value in scores(self.cells(kept, name), key)]

    def chart(self, kept: Kept) -> Any:
        points = []
        for name, case in self.cases().items():
            points += table_charts.over_seeds(case.title, self.whose(), self.charted(kept, name))
        return table_charts.bars(self.quick_title if self.quick else self.title, points, self.label)

    def notes(self) -> list[str]:
        return [self.quick_note if self.quick else self.note]
