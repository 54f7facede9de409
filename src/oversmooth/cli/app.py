"""What all commands share: the application, the two consoles, progress bars."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import oversmooth

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out, err = Console(), Console(stderr=True)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"oversmooth {oversmooth.__version__}", highlight=False)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Diagnose, predict and steer how transformers mix their tokens with depth."""
    if context.invoked_subcommand is None:
        out.print(context.get_help(), highlight=False)


def progress_bar(unit: str) -> Progress:
    """On stderr, gone when done: what, how far, how long, how much longer."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit},"),
        TimeElapsedColumn(),
        TextColumn("so far, left"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )
