"""The interface of every table of trained models: recipes, their cells, rows, a chart, and notes.

A table is a frozen dataclass: `table_registry` lists those of the papers, and `register` adds others. Tables whose rows
are cases of one recipe are declarations (`case_table`). The command `oversmooth reproduce NAME` is made from the class:
its docstring is the help, and its fields made by `option` are options in addition to the common ones. The help needs
these modules, so they import torch only inside functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from oversmooth_papers.tables.cells import Available, names_of
from oversmooth_papers.tasks.images.recipe import variant_title

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Filled, Running

Rows = tuple[Sequence[str], list[list[str]]]
"""The heading and the rows; the last column is the source: ours, or published."""


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """Subclasses define the name, the recipes, the rows and the chart; the rest has defaults."""

    name: ClassVar[str]
    """Name of the command and of the folder of cells."""
    group: ClassVar[str] = ""
    """The group of commands and of folders; empty for tables of Dovonon et al."""
    asks_unknowns: ClassVar[bool] = True
    """Whether settings that Dovonon et al. do not specify are options: wiring, initialisation, bias."""
    default_data: ClassVar[str] = "cifar100"
    quick_data: ClassVar[str] = ""
    """The data of the quick version, if they differ."""
    data_help: ClassVar[str] = (
        "cifar100, cifar10, fashion-mnist or mnist, searched for by name; or the folder that holds one."
    )
    published: ClassVar[Mapping[str, Any]] = {}
    """Published results by variant, in % with their ±; empty if none were published as numbers."""
    quick_test_images: ClassVar[int] = 1000
    cells_help: ClassVar[str] = (
        "The cells to run: a variant (plain), a share (10%), or both (plain:10%); by default all."
    )
    """Help of --cells."""
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

    label: ClassVar[str] = "test accuracy, %"
    """Of the score that charts show."""

    seeds: int = 3
    quick: bool = False
    """A small version for a CPU; do not compare it with published results."""

    @abstractmethod
    def recipes(self) -> list[Any]:
        """One per cell, in the order in which they are run."""

    @abstractmethod
    def rows(self, available: Available) -> Rows:
        """The available cells, with published results."""

    @abstractmethod
    def chart(self, available: Available) -> Any:
        """A chart made by `table_charts`."""

    def terminal_rows(self, available: Available) -> Rows:
        """The rows for a terminal, which may be narrower."""
        return self.rows(available)

    def notes(self) -> list[str]:
        """Paragraphs under the table in a file: what the numbers are, and what differs from the paper."""
        return []

    def terminal_note(self) -> str:
        """The paragraph under the table in a terminal: the first of the notes."""
        return next(iter(self.notes()), "")

    def standings(self, available: Available) -> dict[str, float]:  # noqa: ARG002 (a table may have no one score)
        """What each model reached, the unmodified one first; for the sentence under the quick version."""
        return {}

    def conclusion(self, available: Available) -> str:
        """One sentence on what a quick run shows; empty where there is no one score."""
        reached = self.standings(available)
        if len(reached) < 2:
            return ""
        choose, first = min if "perplexity" in self.label else max, next(iter(reached))
        best = choose(reached, key=reached.__getitem__)
        against = "ahead of all others" if best == first else f"against {reached[first]:.4g} of {first}"
        return (
            f"Best {self.label} in this run: {reached[best]:.4g} of {best}, {against}. Single small runs show that "
            "everything works, not which model is better."
        )

    def whose(self) -> str:
        """The last column of our results."""
        return "ours, quick" if self.quick else "ours"

    def folder(self, recipe: Any) -> str:  # noqa: ARG002 (tables that share cells need it)
        """The folder of the results in which a cell is saved; tables that share a cell return the same one."""
        return self.folder_of(type(self))

    def folder_of(self, table: type[Table]) -> str:
        """The folder of a table's cells in this version, full or quick."""
        return f"{table.home()}-quick" if self.quick else table.home()

    @classmethod
    def home(cls) -> str:
        """The folder of its cells in the results."""
        return f"{cls.group}/{cls.name}" if cls.group else cls.name

    def names_of(self, recipe: Any) -> Mapping[str, str]:
        """The names by which --cells selects a recipe's cell, by kind."""
        return names_of(recipe)

    def fill(self, recipes: Sequence[Any], data: Any, results: Path, running: Running) -> Filled:
        """Run the cells that are missing."""
        from oversmooth_papers.tables.filling import fill

        return fill(recipes, data, results, self.folder, running)

    def model_name(self, variant: str) -> str:
        """The paper's name for it; models of the quick version are not a ViT-Ti."""
        title = variant_title(variant)
        return title.replace("ViT-Ti", "ViT") if self.quick else title


TABLES: dict[str, type[Table]] = {}
"""By the folder of their cells, in order of registration."""
_Table = TypeVar("_Table", bound=type[Table])


def register(table: _Table) -> _Table:
    """Add a table to the command line: a decorator."""
    TABLES[table.home()] = table
    return table
