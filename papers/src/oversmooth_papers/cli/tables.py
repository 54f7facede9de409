"""`oversmooth reproduce` for every table of trained models, and `oversmooth reproduce status`.

Options common to all tables are parameters of `_reproduce`; a table's own options are its fields.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterable, Sequence
from inspect import Parameter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oversmooth.cli.app import out, parts_done
from oversmooth.cli.examples import EXAMPLES
from oversmooth.cli.launcher import AtOnce as JobsAtOnce
from oversmooth.cli.launcher import LaunchedBy, SlurmOptions, job_settings
from oversmooth.safety.errors import InputError
from oversmooth_papers.cli.options import option_of, parameters_of, take
from oversmooth_papers.cli.reproduce import Results, neutreno, reproduce, text, write_page
from oversmooth_papers.cli.train import Device, Force, OnNan, leave, leaves_when_asked, load, print_message, progress
from oversmooth_papers.engine.options import option_fields
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.table_registry import all_tables
from oversmooth_papers.tasks.images.recipe import Recipe

if TYPE_CHECKING:
    from oversmooth.launching import JobSettings
    from oversmooth_papers.tables.cells import Available

_GROUPS = {"": reproduce, "neutreno": neutreno, "text": text}
_UNKNOWNS = ("wiring", "initialisation", "output_bias")
"""Settings of the recipe that Dovonon et al. do not specify."""
_LISTED = 12
"""The most missing cells that `status` lists per table."""
AtOnce = Annotated[int, typer.Option(help="The number of runs at once, each in its own process.", min=1, max=256)]

Output = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", help="Also write a table (.md) or a chart (.png, .svg, .pdf); may be repeated."),
]
RetryOnNan = Annotated[
    OnNan,
    typer.Option(help="When a step is not finite: retry from the checkpoint with other random numbers, or stop."),
]


def _reproduce(
    table: type[Table],
    own: dict[str, Any],
    *,
    cells: Annotated[list[str] | None, typer.Option("--cells")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="The number of seeds per cell.", min=1, max=1000, show_default="3; 1 with --quick"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run a small version: minutes on a CPU, not comparable with published results."),
    ] = False,
    data: Annotated[str | None, typer.Option("--data")] = None,
    results: Results = Path("results"),
    at_once: JobsAtOnce = None,
    minutes: Annotated[float | None, typer.Option(help="Stop at checkpoints after this many minutes.", min=0)] = None,
    launcher: LaunchedBy = None,
    slurm: SlurmOptions = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing; show the available cells.")] = False,
    output: Output = None,
    device: Device = None,
    on_nan: RetryOnNan = OnNan.retry,
    force: Force = False,
    **unknowns: Any,
) -> None:
    """Run the missing cells of a table, and show it.

    own: the table's own options. unknowns: settings that Dovonon et al. do not specify, for tables that offer them.
    """
    from oversmooth.report import figures
    from oversmooth.safety import files
    from oversmooth_papers.tables.cells import check_there, chosen, fitted_to_cells, read_cells

    files.check_apart(output or [])
    jobs = job_settings(launcher, slurm, at_once)
    if jobs is not None and minutes is not None:
        raise InputError("--minutes ends runs of this process; with --launcher slurm, give each job --slurm time=60")
    for path in output or []:
        figures.check(path, also=(".md",))
    if show:
        check_there(results)
    wanted_table = table(seeds=seeds or (1 if quick else 3), quick=quick, **own)
    recipes = [recipe.changed(unknowns) for recipe in wanted_table.recipes()]
    chosen(recipes, cells or [], wanted_table.names_of)  # raises `InputError` for unknown names even if nothing is run
    why = "finished"
    if not show:
        how = dict(at_once=at_once or 1, minutes=minutes, device=device, on_nan=on_nan.value, force=force)
        how["command"] = _command(wanted_table, cells or [], seeds)
        how["data"] = data or (quick and wanted_table.quick_data) or wanted_table.default_data
        recipes, why = fill_table(wanted_table, recipes, cells or [], results, how, jobs)
    elif quick and wanted_table.loads_data:
        recipes = fitted_to_cells(recipes, results, wanted_table.folder)
    show_table(wanted_table, read_cells(recipes, results, wanted_table.folder), output or [], why)


def show_table(table: Table, available: Available, output: Sequence[Path], why: str) -> None:
    """Print the table, and write it to the files; then exit with the code for why cells are missing, if some are."""
    from oversmooth.report import figures
    from oversmooth_papers.tables import table_text

    out.print(table_text.terminal(*table.terminal_rows(available)))
    for path in output:
        if path.suffix.lower() == ".md":
            write_page(path, table_text.markdown(*table.rows(available), table.notes()))
        else:
            figures.write(table.chart(available), path)
            out.print(f"wrote {path}")
    if note := table.terminal_note():
        out.print(note, style="yellow" if table.quick else "dim")
    if why != "finished":
        from oversmooth_papers.tables.filling import NO_MODELS

        remedy = "make or fetch those named above" if why == NO_MODELS else "the same command goes on"
        out.print(f"{why}: not all cells are there; {remedy}")
        leave(why, 2 if why == NO_MODELS else 0)


def _command(table: Table, cells: Sequence[str], seeds: int | None) -> str:
    """The command that gives these results, without paths of this machine."""
    words = ["oversmooth", "reproduce", *filter(None, (table.group, table.name))]
    words += [word for cell in cells for word in ("--cells", cell)]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    words += ["--quick"] if table.quick else []
    for field in option_fields(type(table)):
        if (value := getattr(table, field.name)) != field.default:
            shown = value.name if isinstance(value, Path) else str(value)
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [shown])]
    return shlex.join(words)


def fill_table(
    table: Table,
    recipes: list[Any],
    words: Sequence[str],
    results: Path,
    how: dict[str, Any],
    jobs: JobSettings | None = None,
) -> tuple[list[Any], str]:
    """Run the cells that the words name.

    Returns the recipes fitted to the data, and "finished" or why cells are missing. how: settings of `filling.Running`.
    """
    from oversmooth.safety import files
    from oversmooth_papers.tables.cells import chosen
    from oversmooth_papers.tables.launched import cut, fill_by_jobs

    files.check_folder(results)  # before the data is read, which takes a while
    with leaves_when_asked() if table.trains else contextlib.nullcontext():
        loaded = load(how["data"], recipes[0]) if table.loads_data else None
        if table.loads_data and (table.quick or (table.fits_data and how["data"] != table.default_data)):
            recipes = [recipe.fitted(loaded) for recipe in recipes]
            loaded = cut(table, loaded)
        if table.quick and how["at_once"] > 1 and jobs is None:
            print_message("--quick runs one cell after the other: starting a process for each would take longer")
            how["at_once"] = 1
        wanted = chosen(recipes, words, table.names_of)
        for recipe in wanted if table.loads_data else ():
            recipe.check_fits(loaded)
        with progress() if table.trains else parts_done(table.progress_unit) as on_progress:
            from oversmooth_papers.tables.filling import Running

            running = Running(on_message=print_message, on_progress=on_progress, **how)
            if jobs is None:
                return recipes, table.fill(wanted, loaded, results, running)
            fill_by_jobs(table, wanted, results, running, jobs)
            return recipes, "finished"


def _add_command(table: type[Table]) -> None:
    """Add `oversmooth reproduce NAME`, with the table's docstring as its help."""
    own = [field.name for field in option_fields(table)]

    def command(**given: Any) -> None:
        _reproduce(table, {name: given.pop(name) for name in own}, **given)

    command.__doc__ = table.__doc__
    take(command, _parameters(table))
    _GROUPS[table.group].command(name=table.name)(command)
    words = " ".join(["reproduce", *table.home().split("/")])
    EXAMPLES.setdefault(words, f"oversmooth {words} --seeds 1 -o {table.name}.md")


def _parameters(table: type[Table]) -> list[Parameter]:
    """The table's own options, and the common ones that apply to it."""
    helps = {
        "cells": Annotated[list[str] | None, typer.Option("--cells", help=table.cells_help)],
        "data": Annotated[str | None, typer.Option(help=table.data_help, show_default=table.default_data)],
    }
    gone = {"table", "own"} | (set() if table.trains else {"cells", "at_once", "minutes", "on_nan"})
    gone |= set() if table.loads_data else {"at_once", "data"}
    shared = [one for one in parameters_of(_reproduce) if one.name not in gone]
    own = [option_of(table, field.name) for field in option_fields(table)]
    common = [one.replace(annotation=helps.get(one.name, one.annotation)) for one in shared]
    return [*own, *common, *(option_of(Recipe, name, changes=True) for name in _UNKNOWNS if table.asks_unknowns)]


for _table in all_tables():
    _add_command(_table)


def _minutes(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.1f} min" if cost >= 0.05 else "under 0.1 min"


def _list(heading: str, rows: Sequence[tuple[str, ...]], *sides: Literal["left", "right"]) -> None:
    from rich.table import Table

    out.print(f"\n{heading}", style="bold")
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number, side in enumerate(sides):
        # In a narrow terminal titles wrap; keys and commands, which people copy, do not.
        shown.add_column(justify=side, no_wrap=number in (0, 3), overflow="fold")
    for row in rows:
        shown.add_row(*row)
    out.print(shown)


@reproduce.command()
def status(
    results: Results = Path("results"),
    seeds: Annotated[int, typer.Option(help="The number of seeds for missing cells.", min=1, max=1000)] = 1,
    everything: Annotated[bool, typer.Option("--all", help="List every missing cell.")] = False,
) -> None:
    """List finished and unfinished cells, the jobs in the queue, and the cost of missing cells."""
    from oversmooth.launching import queued
    from oversmooth_papers.tables import status as recipe
    from oversmooth_papers.tables.cells import check_there
    from oversmooth_papers.tables.launched import jobs_folder

    if results.exists():
        check_there(results)
    damaged: list[str] = []
    rows = recipe.status(results, damaged)
    if not rows and not damaged:
        out.print(f"{results} has no cells yet; oversmooth reproduce table2 makes some")
        return
    for (table, on), group in groupby(rows, key=lambda row: (row[0], row[3])):
        cells = [(key, title, score, when) for _, title, score, _, when, key in group]
        _list(table if on == "–" else f"{table}, on {on}", cells, "left", "left", "right", "left")
    if lacking := recipe.missing_rows(results, seeds):
        for table, missing in groupby(lacking, key=lambda row: row[0]):
            lines = [(_minutes(minutes), cell) for _, cell, minutes in missing]
            if not everything and len(lines) > _LISTED + 1:
                lines[_LISTED:] = [("", f"and {len(lines) - _LISTED} more, which --all lists")]
            _list(f"missing from {table}", lines, "right", "left")
        known = [minutes for *_, minutes in lacking if minutes is not None]
        note = (
            f"{len(lacking)} cells are missing. Minutes are those of the most similar run measured on the same data, "
            f"scaled by epochs, share and blocks: {sum(known):.0f} in all for the {len(known)} cells with a known cost."
        )
        out.print(note, style="dim")
    if waiting := [(state, sent["title"], f"job {sent['job']}") for sent, state in queued(jobs_folder(results))]:
        _list("sent as jobs, and not there yet", waiting, "left", "left", "left")
    for sentence in damaged:
        print_message(sentence)
    if damaged:
        raise typer.Exit(2)


_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0, "": 1.0}


def budget_minutes(text: str) -> float:
    """Minutes of ``30m``, ``1.5h``, ``90s`` or ``45``."""
    number, unit = text.rstrip("smh"), text.lstrip("0123456789.")
    try:
        minutes = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        minutes = 0.0
    if minutes <= 0:
        raise typer.BadParameter(f"{text!r} is not a time; give minutes or hours, such as 30m or 2h")
    return minutes


@reproduce.command()
def paper(
    budget: Annotated[float, typer.Option(help="Stop at checkpoints after this time: 30m, 2h.", parser=budget_minutes)],
    results: Results = Path("results"),
    at_once: AtOnce = 1,
    device: Device = None,
    force: Force = False,
) -> None:
    """Run the missing cells of both papers and of our own results, most valuable first, within a time budget.

    Interrupted runs resume next time. Tables whose data are not on this machine are skipped.
    """
    from oversmooth_papers.tables import status as recipe

    def needed(recipes: Iterable[Any]) -> str:
        runs, recipes = recipe.measured(results), list(recipes)
        minutes = sum(recipe.cost(one, runs) or 0.0 for one in recipes)  # on one GPU; unknown ones count as none
        return f"{len(recipes)} cells are missing, about {_minutes(minutes)} of GPU time"

    end, skipped = time.monotonic() + 60 * budget, []
    for table, words in recipe.steps():
        rest = (end - time.monotonic()) / 60
        todo = recipe.left(table, words, results)
        if rest <= 0 or not todo:
            continue
        out.print(f"{table.home()}: {needed(todo)}; {_minutes(rest)} are left")
        how = dict(at_once=at_once, minutes=rest, device=device, on_nan="retry", force=force, data=table.default_data)
        how["command"] = _command(table, words, table.seeds)
        try:
            _, why = fill_table(table, table.recipes(), words, results, how)
        except InputError as error:
            skipped.append(f"{table.home()}: {error}")
            continue
        if why not in ("finished", "out of time"):
            leave(why, 0)
    remaining = {one.key: one for table, words in recipe.steps() for one in recipe.left(table, words, results)}
    for line in skipped:
        print_message(f"skipped {line}")
    out.print(f"{needed(remaining.values())}; the same command continues")
