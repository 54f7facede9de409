"""A sample of the corpus, the same every time; `make adversary` runs all of it."""

import pytest
from support.interpreters import import_path, python
from support.nightly import NIGHTLY
from support.places import TEST_FOLDERS

CASES = 2000 if NIGHTLY else 20
GROUPS = (
    "options", "weights", "configs", "shards", "code", "kinds", "names", "data", "diagnoses", "runs", "outputs",
    "environment", "api", "lists", "sweeps",
)  # fmt: skip
pytestmark = pytest.mark.xdist_group("corpus")  # the sample is run once


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The table's lines, from a process of its own: it forks, which is no good after threads."""
    table = tmp_path_factory.mktemp("corpus") / "table.tsv"
    given = ("--sample", CASES, "--jobs", 1, "--table", table)
    done = python("-m", "adversary.inputs.corpus", *given, PYTHONPATH=import_path(*TEST_FOLDERS))
    assert table.exists(), done.stderr
    return [dict(zip(_LINE, line.split("\t"), strict=True)) for line in table.read_text("utf-8").splitlines()[1:]]


_LINE = ("case", "code", "seconds", "memory", "verdict", "sentence", "command")


@pytest.mark.parametrize("group", GROUPS)
def test_bad_input_holds(rows, group):
    some = [row for row in rows if row["case"].startswith(f"{group}/")]
    assert some
    failed = [f"{row['case']}: {row['verdict']}: {row['sentence']}" for row in some if row["verdict"] != "held"]
    assert not failed, "\n".join(failed)
