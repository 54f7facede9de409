"""Figures of trained models that a user names: a file for each, measured once and never replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oversmooth.models.trained_file import trained_file
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_json
from oversmooth_papers.tables.cells import Cell, write
from oversmooth_papers.tables.filling import Running, one_writer
from oversmooth_papers.tables.provenance import file_hash, provenance


class Trained(NamedTuple):
    """A model file and what is known of it before it is run."""

    path: Path
    recipe: Any
    digest: str
    """Of the file: other weights of the same recipe are another model."""


class CellOrder(NamedTuple):
    """A cell that is asked for."""

    path: Path
    settings: Mapping[str, Any]
    """Those that decide its figures."""
    measure: Callable[[Cell | None], Cell]
    """Given the cell that is there, returns it, or what is to be written."""


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


def measured(
    wanted: Sequence[CellOrder], results: Path, running: Running, settings_of: Callable[[Cell], Mapping[str, Any]]
) -> list[Cell]:
    """The cells asked for; what can be refused is, before any is measured.

    settings_of: those of a cell, which also tries to show its figures.
    """
    cells = []
    with one_writer(results, running):
        before = [_read(one, settings_of) for one in wanted]
        for there, one in zip(before, wanted, strict=True):
            cell = one.measure(there)
            if cell is not there:
                cell = {**cell, **provenance(running.device)}
                write(one.path, cell)
            cells.append(cell)
    return cells


def _read(wanted: CellOrder, settings_of: Callable[[Cell], Mapping[str, Any]]) -> Cell | None:
    """The cell, if it is there; refused where it is damaged, or was measured with other settings."""
    path, remedy = wanted.path, "remove it to run it again"
    if not path.is_file():
        return None
    cell: Cell = read_json(path, remedy)
    try:
        there = settings_of(cell)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no cell of ours or is damaged ({reason(error)}); {remedy}") from error
    for name, value in wanted.settings.items():
        if there.get(name) != value:
            raise InputError(
                f"{path} was measured with {name} {there.get(name)!r} and is asked for with {value!r}; name other "
                f"--results, or {remedy}"
            )
    return cell
