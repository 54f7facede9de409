"""Fields of a dataclass that a command offers as options: what a user reads of each stands with the field itself."""

from __future__ import annotations

import dataclasses
from typing import Any


def option(default: Any, help: str, *, after: str = "") -> Any:
    """A field with this default. after: the option that it follows in the help of its command, if not the first."""
    return dataclasses.field(default=default, metadata={"help": help, "after": after})


def option_fields(of: type) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are options."""
    return [field for field in dataclasses.fields(of) if "help" in field.metadata]


def option_field(of: type, name: str) -> dataclasses.Field[Any]:
    return next(field for field in option_fields(of) if field.name == name)
