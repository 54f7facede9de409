"""`oversmooth reproduce` for every registered table of trained models, and `oversmooth reproduce status`.

The options that tables share are those of `_reproduce`; a table's own are its fields.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oversmooth.cli.app import out, parts_done
from oversmooth.safety.options import option_fields
from oversmooth_papers.cli.neutreno import neutreno
from oversmooth_papers.cli.options import own_option, parameters_of, take
from oversmooth_papers.cli.reproduce import reproduce
from oversmooth_papers.cli.text import text
from oversmooth_papers.cli.train import Device, Force, leave, leaves_when_asked, load, on_nan_named, progress, say
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.table_registry import all_tables

if TYPE_CHECKING:
    from oversmooth_papers.tables.cells import Kept
    from oversmooth_papers.tasks.images.recipe import Recipe

_UNKNOWNS = ("wiring", "initialisation", "output_bias")
_OF_TRAINING = ("cells", "at_once", "minutes", "on_nan")
"""Options that a table which trains nothing does without."""
Results = Annotated[Path, typer.Option(help="Directory that keeps the cells.")]


def _reproduce(
    table: type[Table],
    own: dict[str, Any],
    *,
    cells: Annotated[list[str] | None, typer.Option("--cells")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of each cell.", min=1, max=1000, show_default="3; 1 with --quick")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, minutes on a CPU; not to be compared.")
    ] = False,
    data: Annotated[str | None, typer.Option("--data")] = None,
    results: Results = Path("results"),
    at_once: Annotated[int, typer.Option(help="Runs at once, each in a process.", min=1, max=256)] = 1,
    minutes: Annotated[float | None, typer.Option(help="Stop at checkpoints after so long.", min=0)] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show what is there.")] = False,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Table (.md) or chart (.png, .svg, .pdf) to write as well."),
    ] = None,
    wiring: Annotated[
        str | None, typer.Option(help="paper or code, an unknown of the recipe.", show_default="paper")
    ] = None,
    initialisation: Annotated[
        str | None, typer.Option(help="truncated or torch, an unknown of the recipe.", show_default="truncated")
    ] = None,
    output_bias: Annotated[
        bool | None,
        typer.Option(
            "--output-bias/--no-output-bias",
            help="Of ViT⁺'s and ViT⁻'s attention, an unknown of the recipe.",
            show_default="output-bias",
        ),
    ] = None,
    device: Device = None,
    on_nan: Annotated[
        str,
        typer.Option("--on-nan", help="retry: a step that is not finite sends a run back to its checkpoint; or stop."),
    ] = "retry",
    force: Force = False,
) -> None:
    """Run what is missing of a table, and show it. own: the options that are the table's alone."""
    from oversmooth_papers.tables.cells import check_there, chosen, fitted_to_kept, read_kept, with_unknowns

    _check_outputs(output)
    if show:
        check_there(results)
    asked = table(seeds=seeds or (1 if quick else 3), quick=quick, **own)
    recipes = with_unknowns(asked.recipes(), wiring=wiring, initialisation=initialisation, output_bias=output_bias)
    chosen(recipes, cells or [], asked.names_of)  # what can be refused is, also where nothing is run
    on_nan_named(on_nan)
    why = "finished"
    if not show:
        recipes, why = _fill(
            asked,
            recipes,
            cells or [],
            results,
            data=data or (quick and asked.quick_data) or asked.default_data,
            at_once=at_once,
            minutes=minutes,
            device=device,
            on_nan=on_nan,
            force=force,
            command=_command(table, own, cells, seeds, quick),
        )
    elif quick and asked.loads_data:
        recipes = fitted_to_kept(recipes, results, asked.folder)
    _present(asked, read_kept(recipes, results, asked.folder), output or [])
    if note := asked.terminal_note():
        out.print(note, style="yellow" if quick else "dim", highlight=False, markup=False)
    if why != "finished":
        from oversmooth_papers.tables.filling import NO_MODELS

        remedy = "make or fetch those named above" if why == NO_MODELS else "the same command goes on"
        out.print(f"{why}: not all cells are there; {remedy}", highlight=False)
        if why == NO_MODELS:
            raise typer.Exit(2)
        leave(why)


def _command(table: type[Table], own: dict[str, Any], cells: list[str] | None, seeds: int | None, quick: bool) -> str:
    """What decides the figures, as a user types it; not where things lie on one machine."""
    words = ["oversmooth", "reproduce", *filter(None, (table.group, table.name))]
    words += [word for cell in cells or [] for word in ("--cells", cell)]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    words += ["--quick"] if quick else []
    for field in option_fields(table):
        value = own[field.name]
        if value != field.default:
            shown = value.name if isinstance(value, Path) else str(value)
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [shown])]
    return shlex.join(words)


def _fill(
    table: Table, recipes: list[Recipe], words: list[str], results: Path, *, data: str, on_nan: str, **how: Any
) -> tuple[list[Recipe], str]:
    """Run the cells that the words name; the recipes as they fit the data, and "finished" or why cells are missing.

    how: settings of `filling.Running`.
    """
    from oversmooth.safety import files
    from oversmooth_papers.tables.cells import chosen
    from oversmooth_papers.tasks.registry import check_fits

    files.check_folder(results)  # before the data is read, which takes a while
    with leaves_when_asked() if table.trains else contextlib.nullcontext():
        loaded = load(data, recipes[0]) if table.loads_data else None
        if table.loads_data and (table.quick or (table.fits_data and data != table.default_data)):
            recipes, loaded = _fitted(recipes, loaded, table.quick_test_images)
        if table.quick and how["at_once"] > 1:
            say("--quick runs one cell after the other: they take less than starting a process for each")
            how["at_once"] = 1
        wanted = chosen(recipes, words, table.names_of)
        for recipe in wanted if table.loads_data else ():
            check_fits(recipe, loaded)
        with progress() if table.trains else parts_done(table.progress_unit) as on_progress:
            from oversmooth_papers.tables.filling import Running

            running = Running(data=data, on_nan=on_nan_named(on_nan), on_message=say, on_progress=on_progress, **how)
            filled = table.fill(wanted, loaded, results, running)
    return recipes, filled.why


def _fitted(recipes: list[Any], data: Any, test_images: int) -> tuple[list[Any], Any]:
    """A quick version takes any data set, and tests on a part of it, where that is images."""
    from oversmooth_papers.tasks.images.data.splits import Splits, first_of_test
    from oversmooth_papers.tasks.registry import fitted

    part = first_of_test(data, test_images) if isinstance(data, Splits) else data
    return [fitted(recipe, data) for recipe in recipes], part


def _check_outputs(output: list[Path] | None) -> None:
    from oversmooth.report import figures
    from oversmooth.safety import files

    files.check_apart(output or [])
    for path in output or []:
        figures.check(path, also=(".md",))


def _present(table: Table, kept: Kept, output: list[Path]) -> None:
    from oversmooth.report import figures
    from oversmooth.safety import files
    from oversmooth_papers.tables import table_text

    out.print(table_text.terminal(*table.terminal_rows(kept)))
    for path in output:
        if path.suffix.lower() == ".md":
            with files.whole_file(path) as temporary:
                temporary.write_text(table_text.markdown(*table.rows(kept), table.notes()), encoding="utf-8")
        else:
            figures.write(table.chart(kept), path)
        out.print(f"wrote {path}", highlight=False, markup=False)


def _add_command(table: type[Table]) -> None:
    """`oversmooth reproduce NAME`, with the table's docstring as its help."""
    own = [field.name for field in option_fields(table)]

    def command(**given: Any) -> None:
        _reproduce(table, {name: given.pop(name) for name in own}, **given)

    command.__doc__ = table.__doc__
    take(command, _parameters(table))
    group = {"": reproduce, "neutreno": neutreno, "text": text}[table.group]
    group.command(name=table.name)(command)


def _parameters(table: type[Table]) -> list[Parameter]:
    """The options that tables share, with the table's own among them."""
    left_out = ("table", "own", *(() if table.trains else _OF_TRAINING), *(() if table.asks_unknowns else _UNKNOWNS))
    left_out += (() if table.at_once_allowed else ("at_once",)) + (() if table.loads_data else ("data",))
    shared = {one.name: one for one in parameters_of(_reproduce) if one.name not in left_out}
    if "cells" in shared:
        which = Annotated[list[str] | None, typer.Option("--cells", help=table.cells_help)]
        shared["cells"] = shared["cells"].replace(annotation=which)
    if "data" in shared:
        what = Annotated[str | None, typer.Option(help=table.data_help, show_default=table.default_data)]
        shared["data"] = shared["data"].replace(annotation=what)
    parameters = list(shared.values())
    for field in reversed(option_fields(table)):
        names = [parameter.name for parameter in parameters]
        after = field.metadata["after"]
        parameters.insert(names.index(after) + 1 if after else 0, own_option(table, field.name))
    return parameters


for _table in all_tables():
    _add_command(_table)


def _minutes(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.1f} min" if cost >= 0.05 else "under 0.1 min"


_LISTED = 12
"""Cells that are listed of a table that misses more."""


@reproduce.command()
def status(
    results: Results = Path("results"),
    seeds: Annotated[int, typer.Option(help="Of what is missing.", min=1, max=1000)] = 1,
    everything: Annotated[bool, typer.Option("--all", help="List every cell that is missing, however many.")] = False,
) -> None:
    """Which cells are there, which are on their way, and what those that are missing would cost."""
    from itertools import groupby

    from rich.table import Table

    from oversmooth_papers.tables.cells import check_there
    from oversmooth_papers.tables.status import missing_rows
    from oversmooth_papers.tables.status import status as status_rows

    def show(heading: str, rows: Sequence[tuple[str, ...]], aligned: tuple[Literal["left", "right"], ...]) -> None:
        out.print(f"\n{heading}", style="bold", highlight=False, markup=False)
        shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for number, side in enumerate(aligned):
            # Where it is narrow, titles break over lines; what is copied to another command never does.
            shown.add_column(justify=side, no_wrap=number in (0, 3), overflow="fold")
        for row in rows:
            shown.add_row(*row)
        out.print(shown)

    if results.exists():
        check_there(results)
    damaged: list[str] = []
    rows = status_rows(results, damaged)
    if not rows and not damaged:
        out.print(f"{results} has no cells yet; oversmooth reproduce table2 makes some", highlight=False)
        return
    for (table, on), group in groupby(rows, key=lambda row: (row[0], row[3])):
        cells = [(key, title, score, when) for _, title, score, _, when, key in group]
        show(table if on == "–" else f"{table}, on {on}", cells, ("left", "left", "right", "left"))
    if lacking := missing_rows(results, seeds):
        for table, missing in groupby(lacking, key=lambda row: row[0]):
            lines = [(_minutes(minutes), cell) for _, cell, minutes in missing]
            few = lines if everything or len(lines) <= _LISTED + 1 else lines[:_LISTED]
            more = [("", f"and {len(lines) - len(few)} more, which --all lists")] if few is not lines else []
            show(f"missing from {table}", [*few, *more], ("right", "left"))
        known = [minutes for *_, minutes in lacking if minutes is not None]
        note = (
            f"{len(lacking)} cells are missing. Minutes: of the run most like it that was measured on the same data, "
            f"scaled by epochs, share and blocks; {sum(known):.0f} for the {len(known)} of which they are known."
        )
        out.print(note, style="dim", highlight=False)
    for sentence in damaged:
        say(sentence)
    if damaged:
        raise typer.Exit(2)
