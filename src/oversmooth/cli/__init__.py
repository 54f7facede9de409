"""The commands: options in, calls, tables out; bad input ends with one sentence and exit code 2."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

# Each adds its command, and help lists them in this order.
from oversmooth.cli import diagnose  # isort: skip
from oversmooth.cli import layers  # isort: skip
from oversmooth.cli import demo, doctor, gallery, simulate, spans, spectrum, steer, survey, watch
from oversmooth.cli.app import app
from oversmooth.cli.streams import err, out, standard_streams
from oversmooth.safety import signals
from oversmooth.safety.errors import InputError
from oversmooth.safety.extensions import extensions

__all__ = ["app", "commands", "demo", "diagnose", "doctor", "gallery", "layers", "main", "simulate", "spans"]
__all__ += ["spectrum", "steer", "survey", "watch"]


_OF_PAPERS = ("train", "reproduce", "sweep", "tune")  # commands of the distribution oversmooth-papers
_NEEDED = ("numpy", "vl_convert", "jinja2", "safetensors")  # imported where they are first used


def main() -> None:
    """The command line, from the arguments to the exit code."""
    message = ""
    with signals.catch_signals() as stop, standard_streams():
        try:
            code = commands()(standalone_mode=False) or 0
            if sys.stdout is not None:
                sys.stdout.flush()  # an error here can still be reported
        except BaseException as error:
            if stop.number is None:
                message, code = str(_refusal(error)), 2
            else:  # whatever the exception became, the signal caused it
                code = stop.exit_code
        if stop.number is not None and code in (stop.exit_code, 130):  # typer makes 130 of every interrupt
            message, code = stop.message, stop.exit_code
        out.quiet = err.quiet = False  # under torchrun only the first process prints, but each names its own error
        if message:
            err.print(f"oversmooth: {message}", style="red", soft_wrap=True)
    sys.exit(code)


@functools.cache
def commands() -> Callable[..., Any]:
    """Commands of the library and of installed packages, built once per process, which takes 0.2 s."""
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

    command.__doc__ = f"Needs the package oversmooth-papers, which adds {name}."
    return command


def _refusal(error: BaseException) -> InputError:
    """The sentence for an error of the user or the machine; anything else is a bug, and raised."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):
        what = error.filename or "a file or the terminal"
        return InputError(
            f"{what} cannot be used ({error.strerror or error}); check its name, permissions and free space"
        )
    if isinstance(error, ModuleNotFoundError) and (name := (error.name or "").partition(".")[0]) in _NEEDED:
        return InputError(f"{name} is not installed, which oversmooth needs; install oversmooth again")
    # torch has its own errors for a full machine or GPU.
    if isinstance(error, MemoryError) or "llocate memory" in str(error) or "out of memory" in str(error):
        return InputError("out of memory; reduce --inputs, --batch or --length, or use a smaller model")
    # Errors of the option parser: click, or the copy of click in typer.
    if hasattr(error, "format_message"):
        refused = str(error.format_message()).replace("Value error, ", "").rstrip(".")
        return InputError(f"{refused}, in {shlex.join(sys.argv[1:])!r}; --help lists the options")
    raise error
