"""Figures of trained models that a user names: a file for each, measured once and never replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth.models.trained_file import trained_file
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_json
from oversmooth_papers.tables.cells import Cell, write
from oversmooth_papers.tables.filling import Running, one_writer
from oversmooth_papers.tables.provenance import file_hash, provenance

Settings = Mapping[str, Any]
"""That decide the figures."""
Measure = Callable[[Cell | None], Cell]
"""Given the cell that is there, returns it, or what is to be written."""


@dataclass(frozen=True)
class Trained:
    """A model file and what is known of it before it is run."""

    path: Path
    recipe: Any
    digest: str
    """Of the file: other weights of the same recipe are another model."""


def named(paths: Sequence[Path], load: Callable[[Path], tuple[Any, Any]]) -> list[Trained]:
    """The files, or those of these folders, each of a recipe of its own; a damaged one is refused before any is run.

    load: reads one, the model and its recipe.
    """
    models: dict[str, Trained] = {}
    for path in paths:
        file = trained_file(path) or path
        if not file.is_file():  # a file that is none of ours is told apart where it is read
            raise InputError(f"{path} is no trained model; give a file that oversmooth train wrote, or its folder")
        _, recipe = load(file)
        if recipe.key in models:
            raise InputError(f"{models[recipe.key].path} and {file} are of one recipe, {recipe.key}; name one of them")
        models[recipe.key] = Trained(file, recipe, file_hash(file)[:16])
    return list(models.values())


def _read(path: Path, settings_of: Callable[[Cell], Settings], wanted: Settings) -> Cell | None:
    """A file of figures, if it is there.

    settings_of: those of a cell, which also tries to show its figures.

    Raises:
        InputError: it is damaged, or was measured with other settings than those asked for.
    """
    if not path.is_file():
        return None
    remedy = "remove it to run it again"
    cell: Cell = read_json(path, remedy)
    try:
        there = settings_of(cell)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no cell of ours or is damaged ({reason(error)}); {remedy}") from error
    for name, value in wanted.items():
        if there.get(name) != value:
            raise InputError(
                f"{path} was measured with {name} {there.get(name)!r} and is asked for with {value!r}; name other "
                f"--results, or {remedy}"
            )
    return cell


def measured(
    wanted: Sequence[tuple[Path, Settings, Measure]],
    results: Path,
    running: Running,
    settings_of: Callable[[Cell], Settings],
) -> list[Cell]:
    """The cells asked for, by file; what can be refused is, before any is measured."""
    cells = []
    with one_writer(results, running):
        before = [_read(path, settings_of, settings) for path, settings, _ in wanted]
        for there, (path, _, measure) in zip(before, wanted, strict=True):
            cell = measure(there)
            if cell is not there:
                cell = {**cell, **provenance(running.device)}
                write(path, cell)
            cells.append(cell)
    return cells
