"""The JSON schema of a saved diagnosis, made from the types that reading checks it against.

    python docs/_ext/json_schema.py docs/schema

writes ``diagnosis-VERSION.json``, which the docs publish. Not for checking files: `Diagnosis.load` does that.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.results.data import SCHEMA, VERSION
from oversmooth.safety.typed import fields_of

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}
_AS_SAVED = {"extrapolation", "verdict", "remarks"}  # fields that have a default in Python and are in every file


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what `Diagnosis.to_dict` gives."""
    definitions: dict[str, Any] = {}
    whole = _object(Diagnosis, definitions)
    whole["properties"] = {"schema": {"const": SCHEMA}, "version": {"const": VERSION}, **whole["properties"]}
    whole["required"] = ["schema", "version", *whole["required"], *sorted(_AS_SAVED)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{SCHEMA}/{VERSION}",
        "title": "A diagnosis as oversmooth saves it",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        checked = [part for part in parts[1:] if typing.is_typeddict(part) or typing.get_origin(part)]
        return _of(checked[0] if checked else parts[0], definitions)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(part, definitions) for part in parts]}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin is list:
        return {"type": "array", "items": _of(parts[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(parts[1], definitions)}
    if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        name = kind.__name__.strip("_")
        if name not in definitions:
            definitions[name] = {}  # one that holds itself would never end
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    raise TypeError(f"{kind} is nothing that JSON holds")


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    fields, needed = fields_of(kind)
    return {
        "type": "object",
        "description": " ".join((inspect.getdoc(kind) or kind.__name__).split()),
        "properties": {name: _of(hint, definitions) for name, hint in fields.items()},
        "required": [name for name in fields if name in needed] if dataclasses.is_dataclass(kind) else sorted(needed),
        # Facts about the model and its provenance may have more beside them.
        "additionalProperties": not dataclasses.is_dataclass(kind),
    }


def written() -> str:
    """The schema as the file has it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) / f"diagnosis-{VERSION}.json").write_text(written(), encoding="utf-8")
