"""What all commands share: the application, checks of all options, the two consoles, progress bars."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich import progress

import oversmooth
from oversmooth.cli.help import print_help
from oversmooth.cli.streams import err, out
from oversmooth.safety.errors import InputError

__all__ = ["STACK", "Commands", "advance", "app", "duration", "err", "option", "options_in", "out", "parts_done"]
__all__ += ["progress_bar", "status"]


class _Command(typer.core.TyperCommand):
    """A command that refuses options without a value, and numbers that are not finite or exceed 64 bits."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  (printed in colour, not collected)
        print_help(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for index, word in enumerate(args):
            if not word or re.fullmatch("--[a-z-]+=", word):  # an empty path would mean the current directory
                named = word.rstrip("=") or (args[index - 1] if index else "the first argument")
                raise InputError(f"{named} is empty; give a value, or leave it out")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        for name, given in ctx.params.items():
            option = f"--{name.replace('_', '-')}"
            for value in given if isinstance(given, (list, tuple)) else [given]:
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(f"{option} is {value}; give a finite number")
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise InputError(f"{option} is {value}, which exceeds 64 bits; give a smaller number")
        return super().invoke(ctx)


class _Group(typer.core.TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help:
            print_help(self, ctx)
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        print_help(self, ctx)


_Function = TypeVar("_Function", bound=Callable[..., Any])


class Commands(typer.Typer):
    """An application, or a part of one, whose commands share checks and help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, *arguments: Any, **settings: Any) -> Callable[[_Function], _Function]:
        return super().command(*arguments, **{"cls": _Command, **settings})


app = Commands(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
# Between the first two progress lines without a terminal; every further interval doubles, up to 30 times this.
SECONDS_BETWEEN_LINES = 10.0


def options_in(panel: str | None = None) -> Callable[..., Any]:
    """A maker of options that stand in this panel of the help: the name of its value, what it does, and its own names
    where they are not those of the parameter.
    """
    return lambda value, help, *names, **more: typer.Option(
        *names, metavar=value, help=help, rich_help_panel=panel, **more
    )


option = options_in()


def check_outputs(
    inputs: Iterable[str | Path | None], json: Path | None = None, html: Path | None = None, chart: Path | None = None
) -> None:
    """Refuse files that cannot be written, before the work."""
    from oversmooth.safety import files

    for path, endings in ((json, (".json",)), (html, (".html", ".htm")), (chart, (".pdf", ".svg", ".png"))):
        if path is not None:
            files.check_writable(path, endings)
    files.check_apart((json, html, chart), inputs)


def print_written(*paths: Path | None) -> None:
    for path in filter(None, paths):
        out.print(f"wrote {path}")


STACK = "Part of the stack's name, for models with several, such as encoder."


def _version(asked: bool) -> None:
    if asked:
        out.print(f"oversmooth {oversmooth.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, option(None, "Show the version.", "--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Diagnose, predict and steer how transformers mix their tokens with depth."""
    if not version and context.invoked_subcommand is None:
        context.get_help()


class _Bars(progress.Progress):
    """Bars on a terminal; elsewhere, for logs, lines on stderr at growing intervals."""

    def __init__(self, unit: str, *columns: progress.ProgressColumn) -> None:
        super().__init__(*columns, console=err, transient=True, disable=not err.is_terminal)
        self.unit, self.over = unit, threading.Event()
        # A thread, because long computations do not report back.
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
        wait = SECONDS_BETWEEN_LINES
        while not self.over.wait(wait):
            wait = min(2 * wait, 30 * SECONDS_BETWEEN_LINES)
            if begun := [task for task in self.tasks if not task.finished]:
                task = begun[-1]
                done = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f} {self.unit}"
                left = "" if task.time_remaining is None else f", about {duration(task.time_remaining)} left"
                err.print(f"{task.description}{done}, {duration(task.elapsed or 0.0)} so far{left}", soft_wrap=True)


def progress_bar(unit: str) -> progress.Progress:
    """On stderr, removed when done: the step, how far, elapsed and remaining time. Lines without a terminal."""
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


def advance(bars: progress.Progress, title: str) -> Callable[[float, int | None, str], None]:
    """A bar for one model, and the `OnProgress` of its diagnosis."""
    task = bars.add_task(f"{title}: loading", total=None)

    def on_progress(done: float, total: int | None, what: str) -> None:
        bars.update(task, description=f"{title}: {what}", completed=done, total=total)

    return on_progress


@contextlib.contextmanager
def status(what: str) -> Iterator[None]:
    """A spinner for a step of unknown length; removed when done."""
    with _Bars("", progress.SpinnerColumn(), progress.TextColumn("{task.description}", markup=False)) as bars:
        bars.add_task(what, total=None)
        yield


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


@contextlib.contextmanager
def parts_done(unit: str) -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar for each tested model."""
    with progress_bar(unit) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(title: str, done: int, total: int, part: str) -> None:
            if title not in tasks:
                tasks[title] = bars.add_task(title, total=total)
            bars.update(tasks[title], completed=done, description=f"{title}: {part}")

        yield on_progress
