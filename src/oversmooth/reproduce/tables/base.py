"""What every table of trained models is: recipes, the cells kept for them, rows and a chart of these, notes.

A new table is one file in this folder, with one class: a frozen dataclass that is registered. Its command, `oversmooth
reproduce NAME`, follows from it: the docstring is the help, and fields made by `option` are options beside those that
all tables share. These files are imported for that help, so what needs torch is imported where it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from oversmooth.reproduce.cells import Kept
from oversmooth.train.tasks.images.recipe import Recipe, variant_title

if TYPE_CHECKING:
    from oversmooth.reproduce.filling import Filled, Running
    from oversmooth.train.tasks.images.data.splits import Splits

Rows = tuple[Sequence[str], list[list[str]]]
"""The heading, and under it the rows; the last column says whose figures they are."""


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """Subclasses say the name, the recipes, the rows and the chart; the rest has defaults."""

    name: ClassVar[str]
    """Of the command and of the folder of cells."""
    published: ClassVar[Mapping[str, Any]] = {}
    """The paper's figures by variant, in % with their ±; empty where none were published as numbers."""
    quick_test_images: ClassVar[int] = 1000
    cells_help: ClassVar[str] = "Which: a variant (plain), a share (10%), or both (plain:10%); by default all."
    """Of --cells."""
    trains: ClassVar[bool] = True
    """Whether its cells are training runs; one that only tests models has a `fill` of its own."""
    progress_unit: ClassVar[str] = ""
    """Where nothing is trained: what progress is counted in."""

    seeds: int = 3
    quick: bool = False
    """A small version for a CPU, whose figures compare with nothing that is published."""

    @abstractmethod
    def recipes(self) -> list[Recipe]:
        """One for each cell, in the order in which they are run."""

    @abstractmethod
    def rows(self, kept: Kept) -> Rows:
        """Of the cells that are there, with what was published."""

    @abstractmethod
    def chart(self, kept: Kept) -> Any:
        """By `table_charts`."""

    def terminal_rows(self, kept: Kept) -> Rows:
        """The same where there is less room."""
        return self.rows(kept)

    def notes(self) -> list[str]:
        """Paragraphs under the table in a file: what the figures are, and what differs from the paper."""
        return []

    def terminal_note(self) -> str:
        """What is said under the table in the terminal."""
        return ""

    def folder(self, recipe: Recipe) -> str:  # noqa: ARG002 (tables that share cells need it)
        """In which folder of the results the cell is kept; tables that share a cell say the same one."""
        return f"{self.name}-quick" if self.quick else self.name

    def fill(self, recipes: Sequence[Recipe], splits: Splits, results: Path, running: Running) -> Filled:
        """Run the cells that are missing."""
        from oversmooth.reproduce.filling import fill

        return fill(recipes, splits, results, self.folder, running)

    def model_name(self, variant: str) -> str:
        """As the paper writes it; the quick version's models are no ViT-Ti."""
        title = variant_title(variant)
        return title.replace("ViT-Ti", "ViT") if self.quick else title


TABLES: dict[str, type[Table]] = {}
"""By name."""
_Table = TypeVar("_Table", bound=type[Table])


def register(table: _Table) -> _Table:
    """Make a table known to the command line by its name: a decorator."""
    TABLES[table.name] = table
    return table
