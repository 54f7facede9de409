"""The published JSON schema: that of the types, and of the same mind as reading is."""

from __future__ import annotations

import copy
import functools
import json
import runpy
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from support.places import ROOT
from support.report_example import example as made_example

from oversmooth import Diagnosis, InputError
from oversmooth.results.data import VERSION

schema: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "_ext" / "json_schema.py")))
example = functools.cache(made_example)
_FILE = ROOT / "docs" / "schema" / f"diagnosis-{VERSION}.json"
_VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())


def test_the_published_file_is_that_of_the_types() -> None:
    assert _FILE.read_text(encoding="utf-8") == schema.written(), "make schema writes it again"


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())


def _set(path: str, value: Any) -> Any:
    def change(data: dict[str, Any]) -> None:
        *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
        for word in way:
            data = data[word]
        data[last] = value

    return change


DAMAGE = {
    "another schema": _set("schema", "other"),
    "a later version": _set("version", VERSION + 1),
    "a number that is text": _set("layers.1.tokens.hfc_lfc", "much"),
    "layers that are none": _set("layers", {}),
    "a name that is missing": _set("model.name", None),
    "an unknown field of a layer": _set("layers.0.colour", "blue"),
    "no remarks": lambda data: data.pop("remarks"),
}


@pytest.mark.parametrize("damage", [None, *DAMAGE])
def test_files_and_schema_agree(damage: str | None) -> None:
    data = json.loads(example().to_json())
    if damage is None:
        _VALIDATOR.validate(data)
        assert Diagnosis.from_dict(copy.deepcopy(data)).to_dict() == example().to_dict()
        return
    DAMAGE[damage](data)
    with pytest.raises(jsonschema.ValidationError):
        _VALIDATOR.validate(data)
    with pytest.raises(InputError):
        Diagnosis.from_dict(data)
