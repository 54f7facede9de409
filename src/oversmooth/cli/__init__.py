"""The commands. No logic: options in, calls, tables out; bad input ends with one sentence and exit code 2."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

# Each adds its command, and help lists them in this order.
from oversmooth.cli import diagnose  # isort: skip
from oversmooth.cli import demo, doctor, gallery, simulate, spectrum, steer, watch
from oversmooth.cli.app import app
from oversmooth.cli.streams import err, standard_streams
from oversmooth.safety import signals
from oversmooth.safety.errors import InputError
from oversmooth.safety.extensions import extensions

__all__ = ["app", "commands", "demo", "diagnose", "doctor", "gallery", "main", "simulate", "spectrum", "steer", "watch"]


_OF_PAPERS = ("train", "reproduce", "tune")
"""Commands of the distribution oversmooth-papers."""


def main() -> None:
    """The command line, from the arguments to the exit code."""
    message = ""
    with signals.heard() as stop, standard_streams():
        try:
            code = commands()(standalone_mode=False) or 0
            if sys.stdout is not None:
                sys.stdout.flush()  # while it can still be said if that fails
        except BaseException as error:
            if stop.number is None:
                message, code = str(_refusal(error)), 2
            else:  # whatever others made of it, it was the signal
                code = stop.exit_code
        if stop.number is not None and code in (stop.exit_code, 130):  # typer makes 130 of every interrupt
            message, code = stop.said, stop.exit_code
        if message:
            err.print(f"oversmooth: {message}", style="red", soft_wrap=True)
    sys.exit(code)


@functools.cache
def commands() -> Callable[..., Any]:
    """The library's and those of installed packages, built once in a process: that takes a fifth of a second."""
    extensions("oversmooth.commands")
    known = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    for name in _OF_PAPERS:
        if name not in known:
            app.command(name, hidden=True, context_settings={"ignore_unknown_options": True})(_not_installed(name))
    return typer.main.get_command(app)


def _not_installed(name: str) -> Callable[..., None]:
    def command(_words: Annotated[list[str] | None, typer.Argument(metavar="...")] = None) -> None:
        raise InputError(
            f"oversmooth {name} is not installed: it comes with oversmooth-papers; pip install oversmooth-papers"
        )

    command.__doc__ = f"Comes with the package oversmooth-papers, which adds {name}."
    return command


def _refusal(error: BaseException) -> InputError:
    """What can be told in one sentence; anything else is a mistake of ours, and raised as it is."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):
        what = error.filename or "a file or the terminal"
        return InputError(f"{what} cannot be used ({error.strerror or error}); check its name, permissions and room")
    # torch has errors of its own for a machine or a GPU that is full.
    if isinstance(error, MemoryError) or "llocate memory" in str(error) or "out of memory" in str(error):
        return InputError("this takes more memory than there is; give less at once, or a smaller model")
    # What the options' parser refuses: click's exceptions, or those of the copy of click that typer brings along.
    if hasattr(error, "format_message"):
        refused = str(error.format_message()).rstrip(".")
        return InputError(f"{refused}, in {shlex.join(sys.argv[1:])!r}; --help shows what can be given")
    raise error
