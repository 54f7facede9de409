"""docs/steering-table.md has every method and every family, refuses what the code refuses, and nothing fails in it."""

import pytest
from support import conformance_table
from support.conformance_methods import METHODS
from support.families import FAMILIES

TABLE = conformance_table.TABLE
WRITTEN = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
AGAIN = "run make conformance"


def test_every_family_and_method_is_listed_once():
    assert conformance_table.head() in WRITTEN, AGAIN
    assert [line.split("|")[1].strip() for line in WRITTEN if line.startswith("| ")] == ["family", *FAMILIES], AGAIN


@pytest.mark.parametrize("name", FAMILIES)
def test_cells_are_what_they_should_be(name):
    cells = {method: conformance_table.expected(name, method) for method in METHODS}
    assert conformance_table.row(name, cells) in WRITTEN, AGAIN


def test_reasons_and_the_text_above_are_written():
    text = conformance_table.text({name: dict.fromkeys(METHODS, "yes") for name in FAMILIES}).splitlines()
    table = text.index(conformance_table.head())
    assert text[:table] == WRITTEN[:table], AGAIN
    for line in conformance_table.reasons():
        assert line in WRITTEN, AGAIN
