"""What all commands share: the application, what no option may be, the two consoles, progress bars."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import typer
from rich import progress
from rich.markup import escape

import oversmooth
from oversmooth.cli.examples import EXAMPLES
from oversmooth.cli.streams import err, out
from oversmooth.safety.errors import InputError

__all__ = ["Commands", "advance", "app", "duration", "err", "out", "parts_done", "progress_bar", "status"]


class _Command(typer.core.TyperCommand):
    """A command whose options hold a value, and numbers that can be computed with; its help ends with an example."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        words = ctx.command_path.removeprefix(ctx.find_root().command_path).strip()
        if example := EXAMPLES.get(words):
            self.epilog = f"Example: {example}"
        with _brackets_as_they_are(self):
            super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for index, word in enumerate(args):
            if not word or re.fullmatch("--[a-z-]+=", word):  # a path of no letters would be the directory one is in
                named = word.rstrip("=") or (args[index - 1] if index else "the first argument")
                raise InputError(f"{named} is empty; give a value, or leave it out")
            if "\0" in word:
                raise InputError(f"{word} has a zero byte in it, which no name has; leave it out")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        for name, given in ctx.params.items():
            option = f"--{name.replace('_', '-')}"
            for value in given if isinstance(given, (list, tuple)) else [given]:
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(f"{option} is {value}; give a finite number")
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise InputError(f"{option} is {value}, which takes more than 64 bits; give a smaller number")
        return super().invoke(ctx)


@contextlib.contextmanager
def _brackets_as_they_are(command: Any) -> Iterator[None]:
    """Rich reads the extra of oversmooth[models] as markup and drops it, unless help texts escape it."""
    marked = [(one, one.help) for one in (command, *command.params) if getattr(one, "help", None)]
    try:
        if command.rich_markup_mode is not None:
            for one, help in marked:
                one.help = escape(help)
        yield
    finally:
        for one, help in marked:
            one.help = help


_Function = TypeVar("_Function", bound=Callable[..., Any])


class Commands(typer.Typer):
    """An application, or a part of one, whose commands are all checked alike."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[_Function], _Function]:
        return super().command(*arguments, **{"cls": _Command, **settings})


app = Commands(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
SECONDS_BETWEEN_LINES = 10.0
"""Where progress is told in lines, as there is no terminal."""


def _version(asked: bool) -> None:
    if asked:
        out.print(f"oversmooth {oversmooth.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  (its callback answers)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Diagnose, predict and steer how transformers mix their tokens with depth."""
    if context.invoked_subcommand is None:
        out.print(context.get_help())


class _Bars(progress.Progress):
    """Bars on a terminal; elsewhere, for logs, a line on stderr now and then while the block runs."""

    def __init__(self, unit: str, *columns: progress.ProgressColumn) -> None:
        super().__init__(*columns, console=err, transient=True, disable=not err.is_terminal)
        self.unit, self.over = unit, threading.Event()
        # A thread, since what takes long does not always come back to tell.
        self.thread = threading.Thread(target=self._lines, daemon=True)

    def start(self) -> None:
        super().start()
        if self.disable:
            self.thread.start()

    def stop(self) -> None:
        self.over.set()
        if self.disable:  # it would leave an empty line
            self.thread.join()
        else:
            super().stop()

    def _lines(self) -> None:
        while not self.over.wait(SECONDS_BETWEEN_LINES):
            if begun := [task for task in self.tasks if not task.finished]:
                task = begun[-1]
                done = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f} {self.unit}"
                err.print(f"{task.description}{done}, {duration(task.elapsed or 0.0)} so far", soft_wrap=True)


def progress_bar(unit: str) -> progress.Progress:
    """On stderr, gone when done: what, how far, how long, how much longer. Without a terminal a line now and then."""
    return _Bars(
        unit,
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(f"{unit},", markup=False),
        progress.TimeElapsedColumn(),
        progress.TextColumn("so far, left"),
        progress.TimeRemainingColumn(),
    )


def advance(bars: progress.Progress, title: str) -> Callable[[int, int | None, str], None]:
    """A bar for one model: what a diagnosis calls with how many inputs are done, of how many, and what it does."""
    task = bars.add_task(f"{title}: loading", total=None)

    def on_progress(done: int, total: int | None, what: str) -> None:
        bars.update(task, description=f"{title}: {what}", completed=done, total=total)

    return on_progress


@contextlib.contextmanager
def status(what: str) -> Iterator[None]:
    """What is going on, for steps that cannot say how far they are; gone when done."""
    spinner = progress.SpinnerColumn("dots" if err.encoding.startswith("utf") else "line")
    with _Bars("", spinner, progress.TextColumn("{task.description}", markup=False)) as bars:
        bars.add_task(what, total=None)
        yield


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


@contextlib.contextmanager
def parts_done(unit: str) -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar for each model that is tested."""
    with progress_bar(unit) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(title: str, done: int, total: int, part: str) -> None:
            if title not in tasks:
                tasks[title] = bars.add_task(title, total=total)
            bars.update(tasks[title], completed=done, description=f"{title}: {part}")

        yield on_progress
