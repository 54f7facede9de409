"""`oversmooth survey`: cells of checkpoints, made once, and their table."""

import json
import os
import shutil

import pyarrow.parquet
import pytest
from support.commands import run
from support.interpreters import import_path

from oversmooth.demo.survey import checkpoints as named
from oversmooth.demo.survey import read_survey
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.safety.errors import InputError


@pytest.fixture
def checkpoints(tmp_path, gpt, vit):
    """Two that are good, and one that is not."""
    for name, source in (("gpt", gpt), ("vit", vit)):
        shutil.copytree(source, tmp_path / "runs" / name)
    shutil.copytree(gpt, tmp_path / "runs" / "broken")
    weights = tmp_path / "runs" / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (tmp_path / "list.toml").write_text(
        f'spectrum = ["{tmp_path}/runs/*"]\ndiagnose = ["{tmp_path}/runs/vit"]\ninputs = 2\n'
    )
    return tmp_path


def test_what_failed_is_tried_again_alone_and_the_table_is_that_of_the_cells(
    checkpoints, gpt, monkeypatch, capsys, tmp_path
):
    given = ("survey", checkpoints / "list.toml", "-o", tmp_path / "out")
    assert run(monkeypatch, *given) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("oversmooth: 1 of 3 checkpoints failed; the same command tries them again")
    assert len([*tmp_path.glob("out/*.json")]) == 2 + 1
    cells = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/*-*.json")}
    shutil.copytree(gpt, tmp_path / "runs" / "broken", dirs_exist_ok=True)
    assert run(monkeypatch, *given) == 0
    shown = capsys.readouterr()
    assert shown.err.count("finished") == 1
    assert all(path.stat().st_mtime_ns == then for path, then in cells.items())
    table = json.loads((tmp_path / "out" / "survey.json").read_text())
    assert [os.path.basename(row["model"]) for row in table] == ["vit", "broken", "gpt"]
    flat = pyarrow.parquet.read_table(tmp_path / "out" / "survey.parquet").to_pylist()
    for row, columns in zip(table, flat, strict=True):
        cell = Diagnosis.load(tmp_path / "out" / f"{row['key']}.json")
        assert (tmp_path / "out" / f"{row['key']}.html").is_file()
        assert row["negative_share"] == columns["negative_share"] == pytest.approx(cell.negative_share, rel=1e-3)
        first = cell.curve("hfc_lfc")[0]
        assert columns["hfc_lfc_first"] == (None if first is None else pytest.approx(first, rel=1e-3))
    assert [row["inputs"] for row in table] == [2, 0, 0]
    assert f"| {tmp_path}/runs/gpt | weights alone |" in (tmp_path / "out" / "survey.md").read_text()
    assert f"{table[0]['key']}.html" in (tmp_path / "out" / "index.html").read_text()


def test_by_jobs_it_is_the_same(checkpoints, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", import_path())
    (checkpoints / "list.toml").write_text(f'spectrum = ["{tmp_path}/runs/gpt"]\n')
    for where, how in (("here", ()), ("jobs", ("--at-once", 2))):
        assert run(monkeypatch, "survey", checkpoints / "list.toml", "-o", tmp_path / where, *how) == 0
    here, jobs = (json.loads((tmp_path / where / "survey.json").read_text()) for where in ("here", "jobs"))
    assert [row | {"seconds": 0} for row in here] == [row | {"seconds": 0} for row in jobs]


def test_a_checkpoint_that_was_written_again_is_another_cell(checkpoints):
    before = named(read_survey(checkpoints / "list.toml"))
    weights = checkpoints / "runs" / "gpt" / "model.safetensors"
    os.utime(weights, ns=(0, 0))
    after = named(read_survey(checkpoints / "list.toml"))
    assert [one.key == other.key for one, other in zip(before, after, strict=True)] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it names no checkpoint"),
        ('models = ["gpt2"]', "it has 'models', which is not known"),
        ('spectrum = "gpt2"', "spectrum is 'gpt2', not a list"),
        ('spectrum = ["no/*/where"]', "no path is like no/\\*/where"),
        ('spectrum = ["gpt2"]\ninputs = 0', "inputs and length are 1 or more"),
        ("spectrum = [", "give spectrum = "),
    ],
)
def test_a_file_that_names_no_survey_is_refused(tmp_path, text, sentence):
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        named(read_survey(tmp_path / "list.toml"))
