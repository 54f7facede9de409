"""What every table of trained models is: recipes, the cells kept for them, rows and a chart of these, notes.

A table is a class, a frozen dataclass: `table_registry` lists those of the papers, and `register` adds others. Tables
whose rows are cases of one recipe are declarations (`case_table`). The command, `oversmooth reproduce NAME`, follows
from the class: the docstring is the help, and fields made by `option` are options beside those that all tables share.
These files are imported for that help, so they import what needs torch where it is used.
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
"""The heading, and under it the rows; the last column says whose figures they are."""


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """Subclasses say the name, the recipes, the rows and the chart; the rest has defaults."""

    name: ClassVar[str]
    """Of the command and of the folder of cells."""
    group: ClassVar[str] = ""
    """Of commands, and of folders, that the table is one of; none for Dovonon et al.'s."""
    asks_unknowns: ClassVar[bool] = True
    """Whether what Dovonon et al. leave open can be chosen: wiring, initialisation, bias."""
    default_data: ClassVar[str] = "cifar100"
    quick_data: ClassVar[str] = ""
    """Of the quick version, where it is another."""
    data_help: ClassVar[str] = (
        "cifar100, cifar10, fashion-mnist or mnist, wherever it lies; or the folder that holds one."
    )
    published: ClassVar[Mapping[str, Any]] = {}
    """The paper's figures by variant, in % with their ±; empty where none were published as numbers."""
    quick_test_images: ClassVar[int] = 1000
    cells_help: ClassVar[str] = "Which: a variant (plain), a share (10%), or both (plain:10%); by default all."
    """Of --cells."""
    trains: ClassVar[bool] = True
    """Whether its cells are training runs; one that only tests models has a `fill` of its own."""
    fits_data: ClassVar[bool] = False
    """Whether its recipes take whatever data a user names, and are fitted to them."""
    loads_data: ClassVar[bool] = True
    """Whether all its cells are of one data set, which is loaded first; else its `fill` loads what it needs, cell after
    cell.
    """
    keeps_models: ClassVar[bool] = True
    """Whether results/models gets what it trains."""
    progress_unit: ClassVar[str] = ""
    """Where nothing is trained: what progress is counted in."""

    seeds: int = 3
    quick: bool = False
    """A small version for a CPU, whose figures compare with nothing that is published."""

    @abstractmethod
    def recipes(self) -> list[Any]:
        """One for each cell, in the order in which they are run."""

    @abstractmethod
    def rows(self, available: Available) -> Rows:
        """Of the cells that are there, with what was published."""

    @abstractmethod
    def chart(self, available: Available) -> Any:
        """By `table_charts`."""

    def terminal_rows(self, available: Available) -> Rows:
        """The same where there is less room."""
        return self.rows(available)

    def notes(self) -> list[str]:
        """Paragraphs under the table in a file: what the figures are, and what differs from the paper."""
        return []

    def terminal_note(self) -> str:
        """What is said under the table in the terminal: the first of the notes."""
        return next(iter(self.notes()), "")

    def whose(self) -> str:
        """What the last column says of our figures."""
        return "ours, quick" if self.quick else "ours"

    def folder(self, recipe: Any) -> str:  # noqa: ARG002 (tables that share cells need it)
        """In which folder of the results the cell is kept; tables that share a cell say the same one."""
        return self.folder_of(type(self))

    def folder_of(self, table: type[Table]) -> str:
        """Of a table's cells, in this version: full or quick."""
        return f"{table.home()}-quick" if self.quick else table.home()

    @classmethod
    def home(cls) -> str:
        """The folder of its cells in the results."""
        return f"{cls.group}/{cls.name}" if cls.group else cls.name

    def names_of(self, recipe: Any) -> Mapping[str, str]:
        """What --cells calls a recipe's cell, by what the names are of."""
        return names_of(recipe)

    def fill(self, recipes: Sequence[Any], data: Any, results: Path, running: Running) -> Filled:
        """Run the cells that are missing."""
        from oversmooth_papers.tables.filling import fill

        return fill(recipes, data, results, self.folder, running)

    def model_name(self, variant: str) -> str:
        """As the paper writes it; the quick version's models are no ViT-Ti."""
        title = variant_title(variant)
        return title.replace("ViT-Ti", "ViT") if self.quick else title


TABLES: dict[str, type[Table]] = {}
"""By the folder of their cells, in the order in which they were registered."""
_Table = TypeVar("_Table", bound=type[Table])


def register(table: _Table) -> _Table:
    """Make a table known to the command line by its name: a decorator."""
    TABLES[table.home()] = table
    return table
