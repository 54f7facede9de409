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


def option(default: Any, help: str, **limits: float) -> Any:
    """The same, offered as an option."""
    return dataclasses.field(default=default, metadata={"help": help, **limits})


def option_fields(of: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(of) if "help" in field.metadata]


def option_field(of: type, name: str) -> dataclasses.Field[Any]:
    return next(field for field in option_fields(of) if field.name == name)


def check_settings(settings: Any) -> None:
    """Raise `InputError` for a word that is none of its field's `Literal`, and for a number outside its range.

    None is in every range.
    """
    choices, ranges = _rules_of(settings.__class__)
    for name, allowed in choices.items():
        if getattr(settings, name) not in allowed:
            raise InputError(f"{name} is {getattr(settings, name)!r}; choose {' or '.join(allowed)}")
    for name, limits in ranges.items():
        if (value := getattr(settings, name)) is None:
            continue
        broken = [rule for rule, limit in limits.items() if not _RULES[rule][0](value, limit)]
        if broken:
            remedy = " and ".join(f"{_RULES[rule][1]} {_shown(limits[rule])}" for rule in broken)
            raise InputError(f"{name} is {_shown(value)}; give {remedy}")


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else f"{number:,}"


@functools.cache  # reading the hints of a class takes milliseconds, and tables make recipes by the thousand
def _rules_of(kind: Any) -> tuple[dict[str, tuple[str, ...]], dict[str, dict[str, float]]]:
    """Words and ranges of a dataclass, by field."""
    hints = typing.get_type_hints(kind)
    choices = {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is Literal}
    found = {field.name: {k: v for k, v in field.metadata.items() if k in _RULES} for field in dataclasses.fields(kind)}
    return choices, {name: {"most": _HIGHEST, **limits} for name, limits in found.items() if limits}
