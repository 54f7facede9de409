"""Plain JSON values as what a type says they are: dataclasses and what they are made of, checked whole and once.

``Annotated[dict[str, Any], Shape]`` is for a dictionary that stays one and is checked against the typed dictionary
``Shape``: keys that it does not name may hold anything. ``Annotated[str, Literal[...]]`` is for one of a few words.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from functools import cache
from typing import Any

_LARGEST = 1e100
"""Of a number: sums and squares of such stay finite, as do the axes of a chart."""
_SCALARS: dict[Any, set[Any]] = {float: {float}, float | None: {float, type(None)}}
_WORDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    type(None): "null",
}


def typed(kind: Any, value: Any, where: str = "") -> Any:
    """value as this type; ValueError that says where it is and what was expected otherwise."""
    if kind in _WORDS:
        checked = _checked(_is(kind, value), value, where, _WORDS[kind])
        return float(checked) if kind is float else checked  # 1 and 1.0 are one value, and name one thing
    if kind is Any:
        return value
    origin, parts = _parsed(kind)
    if origin is typing.Annotated:
        checked = [part for part in parts[1:] if typing.is_typeddict(part) or typing.get_origin(part)]
        for part in checked:
            typed(part, value, where)
        return value if checked else typed(parts[0], value, where)
    if origin in (typing.Union, types.UnionType):
        return _one_of(parts, value, where)
    if origin is typing.Literal:
        return _checked(isinstance(value, (str, int)) and value in parts, value, where, " or ".join(map(repr, parts)))
    if origin is list:
        return _list(parts[0], value, where)
    if origin is tuple:
        repeated = len(parts) == 2 and parts[1] is ...
        _checked(isinstance(value, (list, tuple)), value, where, "a list")
        _checked(repeated or len(value) == len(parts), value, where, f"{len(parts)} values")
        kinds = [parts[0]] * len(value) if repeated else parts
        return tuple(typed(each, v, f"{where}.{i}") for i, (each, v) in enumerate(zip(kinds, value, strict=True)))
    if origin is dict:
        _checked(isinstance(value, dict), value, where, "an object")
        return {
            _checked(isinstance(k, str), k, where, "text"): typed(parts[1], v, _at(where, k)) for k, v in value.items()
        }
    if typing.is_typeddict(kind):
        return _fields(kind, value, where, kind.__required_keys__, anything_else=True)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**_fields(kind, value, where, _needed(kind), anything_else=False))
    raise TypeError(f"{kind} is nothing that JSON holds")


def _is(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and -_LARGEST <= value <= _LARGEST  # written so that NaN fails
    if kind is int:
        return type(value) is int and -(2**63) <= value < 2**63
    return type(value) is kind


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) == 1:
        return typed(others[0], value, where)
    for kind in others:
        try:
            return typed(kind, value, where)
        except ValueError:
            continue
    return _checked(False, value, where, " or ".join(_WORDS.get(kind, str(kind)) for kind in others))


def _list(kind: Any, value: Any, where: str) -> list[Any]:
    _checked(isinstance(value, list), value, where, "a list")
    # Eigenvalues come by the million, and verdicts by the thousand: looked at without a call for each.
    types = set(map(type, value))
    if types <= _SCALARS.get(kind, set()):
        numbers = [v for v in value if v is not None]
        if all(map(math.isfinite, numbers)) and max(map(abs, numbers), default=0.0) <= _LARGEST:
            return list(value)
    elif types == {str}:
        for v in dict.fromkeys(value):
            typed(kind, v, f"{where}.{value.index(v)}")
        return list(value)
    return [typed(kind, v, f"{where}.{i}") for i, v in enumerate(value)]


def _fields(kind: Any, value: Any, where: str, needed: Any, *, anything_else: bool) -> dict[str, Any]:
    _checked(isinstance(value, dict), value, where, "an object")
    kinds = _kinds(kind)
    if missing := sorted(set(needed) - set(value)):
        raise ValueError(f"{where or 'it'} has no {missing[0]!r}")
    unknown = [name for name in value if name not in kinds]
    if unknown and not anything_else:
        raise ValueError(f"{where or 'it'} has {reprlib.repr(unknown[0])}, which is not known")
    return {name: typed(kinds.get(name, Any), v, _at(where, name)) for name, v in value.items()}


@cache
def _parsed(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


@cache
def _needed(kind: Any) -> frozenset[str]:
    none = dataclasses.MISSING
    return frozenset(f.name for f in dataclasses.fields(kind) if f.default is none and f.default_factory is none)


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if not dataclasses.is_dataclass(kind):
        return hints
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def _at(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _checked(right: bool, value: Any, where: str, wanted: str) -> Any:
    if not right:
        raise ValueError(f"{where or 'it'} is {reprlib.repr(value)}, not {wanted}")
    return value
