"""The interface of every table of trained models: cases of one recipe, their cells over seeds, columns, a chart, notes.

A table is a frozen dataclass: `table_registry` lists those of the papers, and `register` adds others. Most are
declarations: cases, columns, published figures and notes are data, and a table overrides what it does otherwise. The
command `oversmooth reproduce NAME` is made from the class: its docstring is the help, and its fields made by `option`
are options in addition to the common ones. The help needs these modules, so they import torch only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.cells import Available, names_of, paired, read_cells, scores
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, variant_title

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Running

Rows = tuple[Sequence[str], list[list[str]]]
"""The heading and the rows; the last column is the source: ours, or published."""


@dataclass(frozen=True)
class Case:
    """A row: its title, what it changes of the recipe or its shape, and which value and output weights decay."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    decays: str = ""


class Row(NamedTuple):
    """What a column shows a figure of: a case, its recipe, and its cells over seeds."""

    case: Case
    recipe: Any
    cells: Available


Column = Callable[[Row], str]


def percent(name: str) -> Column:
    return lambda row: table_text.counted(scores(row.cells, name, 100))


def last_snapshots(cells: Available, place: int) -> list[float]:
    """Of each run's last snapshot of smoothing: 0, HFC/LFC of what enters the first block; 1, of what leaves the last;
    2, mean |cos| there.
    """
    lasts = [cell["smoothing"][-1] for cell in cells.values() if cell.get("smoothing")]
    return [(last["hfc_lfc"][0], last["hfc_lfc"][-1], last["abs_cos"][-1])[place] for last in lasts]


def last_snapshot(place: int) -> Column:
    return lambda row: table_text.over_seeds(last_snapshots(row.cells, place), ".3g")


def minutes(row: Row) -> str:
    """Of training, least and most, by runs that had the device for themselves; where there are none, of the others."""
    cells = [cell for cell in row.cells.values() if "seconds" in cell]
    alone = [cell for cell in cells if "at_once" not in cell]
    spent = sorted(cell["seconds"] / 60 for cell in alone or cells)
    if not spent:
        return "–"
    shown = f"{spent[0]:.1f}" if spent[-1] - spent[0] < 0.05 else f"{spent[0]:.1f} to {spent[-1]:.1f}"
    return shown if alone else f"{shown}, {max(cell['at_once'] for cell in cells)} at once"


@dataclass(frozen=True, kw_only=True)
class Table:
    """By default one row per case, of table 2's recipe on 10 % of CIFAR-100."""

    name: ClassVar[str]
    """Name of the command and of the folder of cells."""
    group: ClassVar[str] = ""
    """The group of commands and of folders; empty for tables of Dovonon et al."""
    full: ClassVar[Any] = replace(PAPER, share=0.1)
    small: ClassVar[Any] = QUICK
    """The recipe, and its quick version."""
    case_by_name: ClassVar[Mapping[str, Case]] = {}
    """By what --cells calls them."""
    cells_from: ClassVar[Mapping[str, type[Table]]] = {}
    """Cases whose cells are those of another table."""
    cells_help: ClassVar[str] = (
        "The cells to run: a variant (plain), a share (10%), or both (plain:10%); by default all."
    )
    """Help of --cells; by default it names the cases, if there are some."""

    default_data: ClassVar[str] = "cifar100"
    quick_data: ClassVar[str] = ""
    """The data of the quick version, if they differ."""
    data_help: ClassVar[str] = (
        "cifar100, cifar10, fashion-mnist or mnist, searched for by name; or the folder that holds one."
    )
    quick_test_images: ClassVar[int] = 1000
    asks_unknowns: ClassVar[bool] = False
    """Whether settings that Dovonon et al. do not specify are options: wiring, initialisation, bias."""
    trains: ClassVar[bool] = True
    """Whether its cells are training runs; tables that only test models override `fill`."""
    fits_data: ClassVar[bool] = False
    """Whether its recipes are fitted to any data that a user names."""
    loads_data: ClassVar[bool] = True
    """Whether all its cells use one data set, loaded first; otherwise `fill` loads data for each cell."""
    keeps_models: ClassVar[bool] = True
    """Whether its models are saved in results/models."""
    progress_unit: ClassVar[str] = ""
    """The unit of progress, if nothing is trained."""

    rows_are: ClassVar[str] = ""
    """The heading of the first column."""
    column_by_heading: ClassVar[Mapping[str, Column]] = {
        "accuracy, %": percent("accuracy"),
        "HFC/LFC, last": last_snapshot(1),
        "mean |cos|, last": last_snapshot(2),
    }
    published: ClassVar[Mapping[str, Any]] = {}
    """Published figures, or figures and their ±, by case and heading."""
    published_by: ClassVar[str] = "published"
    score: ClassVar[tuple[str, float]] = ("accuracy", 100)
    """What the chart shows of a cell, and what it is multiplied by."""
    label: ClassVar[str] = "test accuracy, %"
    """Of the score in charts."""
    title: ClassVar[str] = "10 % of CIFAR-100"
    """Of the chart."""
    note: ClassVar[str] = ""
    """The paragraph under the table: what the numbers are, and what differs from the paper."""
    quick_note: ClassVar[str] = (
        "quick: small models, trained for minutes on little data. These figures compare with each other and with "
        "nothing that is published; accuracies are uncertain by half a point or more, perplexities are per byte."
    )

    seeds: int = 3
    quick: bool = False
    """A small version for a CPU; do not compare it with published results."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "case_by_name" in vars(cls) and "cells_help" not in vars(cls):
            cls.cells_help = f"The cells to run: {', '.join(cls.case_by_name)}; by default all."

    # What is run, and where it is kept

    def cases(self) -> Mapping[str, Case]:
        return self.case_by_name

    def base(self) -> Any:
        return self.small if self.quick else self.full

    def recipe(self, name: str, seed: int = 0) -> Any:
        return self.base().changed({"seed": seed, **self.cases()[name].changes})

    def recipes(self) -> list[Any]:
        """One per cell, in the order in which they are run: seed by seed, so that a table that is cut short compares
        all of them.
        """
        return [self.recipe(name, seed) for seed in range(self.seeds) for name in self.cases()]

    def case_of(self, recipe: Any) -> str:
        """The case that a recipe is of, whatever data it was fitted to, and of whatever task; empty for none.

        What another task's recipe does not have tells no cases apart.
        """

        def setting(of: Any, key: str, default: Any = None) -> Any:
            return getattr(of, key, getattr(of.shape, key, default))

        cases, usual = self.cases(), self.base()
        keys = {key for case in cases.values() for key in case.changes}
        for name, case in cases.items():
            wanted = {key: case.changes.get(key, setting(usual, key)) for key in keys}
            if all(setting(recipe, key, value) == value for key, value in wanted.items()):
                return name
        return ""

    def names_of(self, recipe: Any) -> Mapping[str, str]:
        """The names by which --cells selects a recipe's cell, by kind."""
        return {"variant": self.case_of(recipe)} if self.cases() else names_of(recipe)

    @classmethod
    def home(cls) -> str:
        """The folder of its cells in the results."""
        return f"{cls.group}/{cls.name}" if cls.group else cls.name

    def folder_of(self, table: type[Table]) -> str:
        """The folder of a table's cells in this version, full or quick."""
        return f"{table.home()}-quick" if self.quick else table.home()

    def folder(self, recipe: Any) -> str:
        """The folder of the results in which a cell is saved; tables that share a cell return the same one."""
        return self.folder_of(self.cells_from.get(self.case_of(recipe), type(self)))

    def fill(self, recipes: Sequence[Any], data: Any, results: Path, running: Running) -> str:
        """Run the cells that are missing; returns "finished", or why some still are."""
        from oversmooth_papers.tables.filling import fill

        return fill(recipes, data, results, self.folder, running)

    # What is shown

    def available(self, results: Path) -> Available:
        """Its cells that are there."""
        return read_cells(self.recipes(), results, self.folder)

    def model_name(self, variant: str) -> str:
        """The paper's name for it; models of the quick version are not a ViT-Ti."""
        title = variant_title(variant)
        return title.replace("ViT-Ti", "ViT") if self.quick else title

    def whose(self) -> str:
        """The last column of our results."""
        return "ours, quick" if self.quick else "ours"

    def columns(self) -> Mapping[str, Column]:
        return self.column_by_heading

    def cells(self, available: Available, name: str) -> Available:
        """Of a case, over seeds."""
        return {recipe: cell for recipe, cell in available.items() if self.case_of(recipe) == name}

    def rows(self, available: Available) -> Rows:
        """Of each case ours, and under it the published one."""
        columns, rows = self.columns(), []
        for name, case in self.cases().items():
            row = Row(case, self.recipe(name), self.cells(available, name))
            rows.append([case.title, *(column(row) for column in columns.values()), self.whose()])
            if name in self.published and not self.quick:
                theirs = [_published(self.published[name].get(heading)) for heading in columns]
                rows.append([case.title, *theirs, self.published_by])
        return [self.rows_are, *columns, "whose"], rows

    def terminal_rows(self, available: Available) -> Rows:
        """The rows for a terminal, which may be narrower."""
        return self.rows(available)

    def charted(self, available: Available, name: str) -> list[float]:
        """What the chart shows of a case, over seeds."""
        return scores(self.cells(available, name), *self.score)

    def gains(self, available: Available, name: str, other: str) -> list[float]:
        """Of a case over another, in the score of the chart, paired by seed."""
        return paired(self.cells(available, name), self.cells(available, other), *self.score)

    def chart(self, available: Available) -> Any:
        points: list[table_charts.Point] = []
        for name, case in self.cases().items():
            points += table_charts.over_seeds(case.title, self.whose(), self.charted(available, name))
        return table_charts.bars(f"{self.name}, quick" if self.quick else self.title, points, self.label)

    def notes(self) -> list[str]:
        """Paragraphs under the table in a file."""
        return [self.quick_note if self.quick else self.note]

    def terminal_note(self) -> str:
        """The paragraph under the table in a terminal: the first of the notes."""
        return next(iter(self.notes()), "")


def _published(figure: float | tuple[float, float] | None) -> str:
    if figure is None:
        return "–"
    return "{:.2f} ± {}".format(*figure) if isinstance(figure, tuple) else f"{figure:.2f}"


TABLES: dict[str, type[Table]] = {}
"""By the folder of their cells, in order of registration."""
_Table = TypeVar("_Table", bound=type[Table])


def register(table: _Table) -> _Table:
    """Add a table to the command line: a decorator."""
    TABLES[table.home()] = table
    return table
