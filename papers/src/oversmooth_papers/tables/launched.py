"""Cells of a table as jobs: each loads the data, runs one cell as `Table.fill` does, and writes it into the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from oversmooth.launching import Cell, JobSettings, launch
from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.stopping import was_warned
from oversmooth_papers.tables import cells
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.filling import Running, one_writer
from oversmooth_papers.tasks.images.data import Splits, first_of_test
from oversmooth_papers.tasks.registry import load_data

_Data = TypeVar("_Data")


@dataclass(frozen=True)
class CellRun:
    """What a job runs. It holds settings alone: it is pickled."""

    table: Table
    recipe: Any
    results: Path
    running: Running

    def __call__(self) -> str:
        data = cut(self.table, load_data(self.recipe, self.running.data)) if self.table.loads_data else None
        why = self.table.fill([self.recipe], data, self.results, self.running)
        return "out of time" if why == "preempted" and was_warned() else why


def jobs_folder(results: Path) -> Path:
    return results / "jobs"


def cut(table: Table, data: _Data) -> _Data | Splits:
    """With fewer images to test on, if the table is the quick version."""
    return first_of_test(data, table.quick_test_images) if table.quick and isinstance(data, Splits) else data


def fill_by_jobs(table: Table, recipes: Sequence[Any], results: Path, running: Running, settings: JobSettings) -> None:
    """Run the cells that are missing, a job each; raises `InputError` if some failed."""
    results, share = results.absolute(), running.at_once if settings.launcher == "local" else 1
    there = replace(running, is_job=True, at_once=share, on_message=print, on_progress=None)
    with one_writer(results, running):
        todo = [
            Cell(one.title, cells.cell_path(results, table.folder, one), CellRun(table, one, results, there))
            for one in cells.missing(recipes, results, table.folder)
        ]
        failed = launch(todo, jobs_folder(results), settings, running.on_message)
    if failed:
        first, why = next(iter(failed.items()))
        raise InputError(f"{len(failed)} of {len(todo)} jobs failed; {first} {why}")
