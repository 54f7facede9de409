"""The commands. No logic: options in, calls, tables out; bad input leaves with one sentence and exit code 2."""

from __future__ import annotations

import shlex
import sys
from typing import NoReturn

from oversmooth.cli import cells, demo, diagnose, reproduce, simulate, spectrum, steer, train  # each adds its command
from oversmooth.cli.app import app, err
from oversmooth.errors import InputError

__all__ = ["app", "cells", "demo", "diagnose", "main", "reproduce", "simulate", "spectrum", "steer", "train"]


def main() -> None:
    """The console script."""
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(
            f"{error.filename or 'a file'} cannot be used ({error.strerror or error}); check its name and permissions"
        )
    except KeyboardInterrupt:
        err.print("oversmooth: stopped; nothing was left half-written", highlight=False)
        sys.exit(130)
    except Exception as error:
        # What the options' parser refuses: click's exceptions, or those of the copy of click that typer brings along.
        if not hasattr(error, "format_message"):
            raise
        _refuse(
            f"{error.format_message().rstrip('.')}, in {shlex.join(sys.argv[1:])!r}; --help shows what can be given"
        )
    sys.exit(code or 0)


def _refuse(sentence: str) -> NoReturn:
    err.print(f"oversmooth: {sentence}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)
