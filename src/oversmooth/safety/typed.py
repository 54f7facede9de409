"""Convert values of JSON and TOML to typed dataclasses, with checks.

``Annotated[dict[str, Any], Shape]`` keeps a dictionary and checks it against the typed dictionary ``Shape``, whose
unnamed keys may have any value. ``Annotated[str, Literal[...]]`` is one of a few words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import reprlib
import tomllib
import typing
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_text

_LARGEST = 1e100  # limit of numbers: their sums, squares and chart axes stay finite
_PLAIN: dict[Any, tuple[str, typing.Callable[[Any], bool]]] = {
    str: ("text", lambda value: type(value) is str),
    bool: ("true or false", lambda value: type(value) is bool),
    int: ("a whole number", lambda value: type(value) is int and abs(value) < 2**63),
    float: ("a finite number", lambda value: type(value) in (int, float) and abs(value) <= _LARGEST),
}


def typed(kind: Any, value: Any, where: str = "") -> Any:
    """value as this type; ValueError names its position and the expected type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind in _PLAIN:
        words, fits = _PLAIN[kind]
        _check(fits(value), value, where, words)
        return float(value) if kind is float else value  # 1 and 1.0 are the same value
    if origin is typing.Annotated:
        typed(parts[1], value, where)
        return value
    if origin in (typing.Union, UnionType):
        *first, last = (part for part in parts if part is not NoneType)
        if value is None and NoneType in parts:
            return None
        for part in first:
            with contextlib.suppress(ValueError):
                return typed(part, value, where)
        return typed(last, value, where)
    if origin is typing.Literal:
        _check(isinstance(value, (str, int)) and value in parts, value, where, " or ".join(map(repr, parts)))
        return value
    if origin in (list, tuple):
        _check(isinstance(value, (list, tuple)), value, where, "a list")
        if origin is list and parts[0] is float and all(type(v) is float and abs(v) <= _LARGEST for v in value):
            return list(value)  # eigenvalues come by the million
        repeated = origin is list or parts[1:] == (...,)
        _check(repeated or len(value) == len(parts), value, where, f"{len(parts)} values")
        kinds = parts[:1] * len(value) if repeated else parts
        return origin(typed(part, v, f"{where}.{i}") for i, (part, v) in enumerate(zip(kinds, value, strict=True)))
    _check(isinstance(value, dict), value, where, "an object")
    if origin is dict:
        return {key: typed(parts[1], v, _at(where, key)) for key, v in value.items()}
    fields, needed = fields_of(kind)
    if missing := sorted(needed - value.keys()):
        raise ValueError(f"{where or 'it'} has no {missing[0]!r}")
    unknown = [name for name in value if name not in fields]
    if unknown and not typing.is_typeddict(kind):
        raise ValueError(f"{where or 'it'} has {reprlib.repr(unknown[0])}, which is not known")
    made = {name: typed(fields.get(name, Any), v, _at(where, name)) for name, v in value.items()}
    return made if typing.is_typeddict(kind) else kind(**made)


def read_toml(kind: Any, path: Path, remedy: str) -> Any:
    """A TOML file as this dataclass."""
    text = read_text(path, remedy)
    try:
        return typed(kind, tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {reason(error)}; {remedy}") from error


@cache
def fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Types of a dataclass's or typed dictionary's fields by name, and the required names."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        return hints, kind.__required_keys__
    fields, none = [field for field in dataclasses.fields(kind) if field.init], dataclasses.MISSING
    needed = (field.name for field in fields if field.default is none and field.default_factory is none)
    return {field.name: hints[field.name] for field in fields}, frozenset(needed)


def _at(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _check(right: bool, value: Any, where: str, wanted: str) -> None:
    if not right:
        raise ValueError(f"{where or 'it'} is {reprlib.repr(value)}, not {wanted}")
