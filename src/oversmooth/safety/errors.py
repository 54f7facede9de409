"""The one way this package refuses bad input."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from oversmooth.safety import foreign


class InputError(ValueError):
    """One sentence that names the thing, its value and the remedy.

    The command line prints it and exits with code 2; in Python it is an ordinary ``ValueError``. Whatever names
    and messages of others are put into it, it is one line of less than 300 letters that any terminal may show.
    """

    def __str__(self) -> str:  # not when it is made: that may be in a graph that is being compiled
        return foreign.sentence(super().__str__())


def reason(error: BaseException, most: int = 120) -> str:
    """What another library says, short enough for a sentence and without addresses; its name where it says nothing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{error.name.partition('.')[0]} is not installed; install it"
    try:
        said = str(error)
    except Exception:  # a class of somebody's own
        said = ""
    text = re.sub(r"\s+", " ", re.sub(r"https?://\S+", "the hub", said)).strip()
    text = text[:most].rstrip(". (")
    if not isinstance(error, InputError) and _OF_PYTHON.search(text):
        return "it does not hold what it should"
    return text if text not in ("", "None") else type(error).__name__


# What a library trips over that was given something else; no one learns from it what is wrong with a file.
_OF_PYTHON = re.compile(
    r"NoneType|object has no attribute|object is not|not subscriptable|unexpected keyword|positional argument|"
    r"unsupported operand|indices must be|object at 0x"
)


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say what a refusal inside is about, such as a layer."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
