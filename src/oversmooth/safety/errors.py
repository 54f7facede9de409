"""`InputError`, the package's error for bad input."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oversmooth.safety import foreign


class InputError(ValueError):
    """One sentence that names the thing, its value and the remedy.

    The command line prints it and exits with code 2; in Python it is a ``ValueError``. It is one line of fewer than 300
    printable characters, whatever foreign names and messages it contains.
    """

    def __str__(self) -> str:  # not in __init__, which may be inside a compiled graph
        return foreign.sentence(super().__str__())


def reason(error: BaseException, most: int = 120) -> str:
    """Another library's message, shortened and without URLs; the error's type if it has none."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{error.name.partition('.')[0]} is not installed; install it"
    text = re.sub(r"\s+", " ", re.sub(r"https?://\S+", "the hub", str(error))).strip()[:most].rstrip(". (")
    if not isinstance(error, InputError) and _OF_PYTHON.search(text):
        return "unexpected content"
    return text if text not in ("", "None") else type(error).__name__


# Python errors inside a library, which do not explain what is wrong with a file.
_OF_PYTHON = re.compile(
    r"NoneType|object has no attribute|object is not|not subscriptable|unexpected keyword|positional argument|"
    r"unsupported operand|indices must be|object at 0x"
)


def refusal(call: Callable[..., object], *arguments: object) -> str:
    """The sentence with which a call refuses; empty if it does not."""
    try:
        call(*arguments)
    except InputError as error:
        return str(error)
    return ""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Prefix an `InputError` raised inside with its subject, such as a layer."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
