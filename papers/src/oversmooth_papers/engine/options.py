"""Fields of a dataclass that say what they may hold, and what a command offers as options.

What a user reads of an option, and the range of a number, stand with the field itself.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Callable
from typing import Any, Literal

from oversmooth.safety.errors import InputError

_HIGHEST = 2**62 - 1  # of any number: tensors and generators take 64 bits, and a run needs two seeds
_RULES: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "less than"),
}


def limited(default: Any, **limits: float) -> Any:
    """A field with this default and a range, by the words of `_RULES`."""
    return dataclasses.field(default=default, metadata=limits)


def option(default: Any, help: str, *, after: str = "", **limits: float) -> Any:
    """The same, offered as an option. after: what it follows in the help of its command, if it is not the first."""
    return dataclasses.field(default=default, metadata={"help": help, "after": after, **limits})


def option_fields(of: type) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are options."""
    return [field for field in dataclasses.fields(of) if "help" in field.metadata]


def option_field(of: type, name: str) -> dataclasses.Field[Any]:
    return next(field for field in option_fields(of) if field.name == name)


def check_settings(settings: Any) -> None:
    """Raise `InputError` for a word that is none of its field's `Literal`, and for a number outside its range.

    None, where a field may be None, is in every range.
    """
    kind: Any = type(settings)
    for name, allowed in _choices(kind).items():
        if getattr(settings, name) not in allowed:
            raise InputError(f"{name} is {getattr(settings, name)!r}; choose {' or '.join(allowed)}")
    for field in dataclasses.fields(settings):
        value, limits = getattr(settings, field.name), {"most": _HIGHEST, **field.metadata}
        if value is None or not field.metadata.keys() & _RULES:
            continue
        broken = [
            f"{words} {_shown(limits[rule])}"
            for rule, (keeps, words) in _RULES.items()
            if rule in limits and not keeps(value, limits[rule])
        ]
        if broken:
            raise InputError(f"{field.name} is {_shown(value)}; give {' and '.join(broken)}")


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else f"{number:,}"


@functools.cache  # reading the hints of a class takes milliseconds, and tables make recipes by the thousand
def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    hints = typing.get_type_hints(kind)
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is Literal}
