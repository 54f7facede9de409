"""All methods by name: those that `oversmooth.steering` imports, and those that others register.

A method is named in words as a command line has it, ``neutreno:strength=0.4``, or by its settings, as files have it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, cast

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.typed import typed
from oversmooth.steering.methods.base import METHODS, Method, register

__all__ = ["METHODS", "method_from", "method_named", "register"]


def method_from(settings: dict[str, Any]) -> Method:
    """A method from its settings, as `Method.settings` wrote them.

    Args:
        settings: the method's name as "method", and its fields.

    Raises:
        InputError: there is no such method or setting, or a value does not fit.
    """
    if not isinstance(settings, dict):
        raise InputError(f"the settings of a method are {arguments.kind(settings)}; give the result of Method.settings")
    values = dict(settings)
    name = values.pop("method", None)
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(sorted(METHODS))}")
    values = {METHODS[name].renamed.get(key, key): value for key, value in values.items()}
    known = [f.name for f in dataclasses.fields(METHODS[name])]  # type: ignore[arg-type]
    if unknown := [key for key in values if key not in known]:
        raise InputError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(known)}")
    try:
        return cast(Method, typed(METHODS[name], values))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{name} cannot be made of these settings: {reason(error)}; fix or leave it out") from error


def method_named(text: str) -> Method:
    """A method from ``NAME`` or ``NAME:setting=value,...``; a setting without a value is switched on.

    >>> from oversmooth.steering.methods.registry import method_named
    >>> print(method_named("spectral:mode=smooth,bounded"))
    Spectral(mode='smooth', bounded=True)
    >>> print(method_named("spectral:form=general,interval=-0.5..0.2"))
    Spectral(form='general', interval=(-0.5, 0.2))
    """
    name, _, rest = text.partition(":")
    known = {key.lower(): key for key in METHODS}
    if name.lower() not in known:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(sorted(known))}")
    settings: dict[str, Any] = {"method": known[name.lower()]}
    words = {f.name for f in dataclasses.fields(METHODS[settings["method"]]) if isinstance(f.default, str)}  # type: ignore[arg-type]
    for entry in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if key in settings:
            raise InputError(f"{name}: {key} appears twice in {rest!r}; give it once")
        settings[key] = True if not equals else value if key in words else _value(value)
    return method_from(settings)


def _value(text: str) -> Any:
    if ".." in text:
        return tuple(map(_value, text.split("..", 1)))
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower(), text)
