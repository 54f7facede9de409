"""Methods and layers as a command line names them: ``neutreno:strength=0.4``, ``first-half``, ``0,2,4-7``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth.steering.method import Method
from oversmooth.steering.saving import method_from


def method_named(text: str) -> Method:
    """``NAME`` or ``NAME:setting=value,...``; a setting without a value is switched on.

    >>> from oversmooth.steering.words import method_named
    >>> print(method_named("spectral:mode=smooth,bounded"))
    Spectral(mode='smooth', bounded=True)
    >>> print(method_named("spectral:form=general,range=-0.5..0.2"))
    Spectral(form='general', range=(-0.5, 0.2))
    """
    from oversmooth.steering import METHODS

    name, _, rest = text.partition(":")
    known = {key.lower(): key for key in METHODS}
    if name.lower() not in known:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(known)}")
    fields = {f.name: f for f in dataclasses.fields(METHODS[known[name.lower()]])}  # type: ignore[arg-type]
    settings: dict[str, Any] = {"method": known[name.lower()]}
    for entry in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if key not in fields:
            raise InputError(f"{name} has no setting {key!r}; it has {', '.join(fields)}")
        settings[key] = _value(name, key, value, fields[key].default) if equals else True
    return method_from(settings)


def _value(method: str, key: str, text: str, default: object) -> Any:
    if key == "range":
        return tuple(_value(method, "an end of range", end, 0.0) for end in text.split("..", 1))
    words = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(default, bool):
        if text.lower() in words:
            return words[text.lower()]
        raise InputError(f"{method}: {key} is {text!r}; give yes or no")
    if isinstance(default, (int, float)):
        try:
            return type(default)(text)
        except ValueError:
            raise InputError(f"{method}: {key} is {text!r}; give a number") from None
    return text


def layers_named(text: str) -> str | Iterator[int]:
    """Places and ranges of places, or a word that `steer` knows. A range is as long as it is asked for, and never made
    as a list: the first place that a model does not have ends it.

    >>> list(layers_named("0,2,4-6")), layers_named("first-half")
    ([0, 2, 4, 5, 6], 'first-half')
    """
    if not any(character.isdigit() for character in text):
        return text
    places: list[range] = []
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-") if not entry.strip().startswith("-") else (entry, "", "")
        try:
            places.append(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise InputError(f"layers {text!r} cannot be read at {entry!r}; give places such as 0,2,4-7") from None
    return itertools.chain.from_iterable(places)
