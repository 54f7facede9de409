"""Cells of tuned models: one per method, kept, and gone on with where it stopped."""

import json
import re

import pytest
from support.commands import refusal, run
from support.tuning_example import write_parquet

from oversmooth_papers.tables.neutreno import adaptation

FEW = ("--folds", 2, "--steps", 1, "--batch", 4)


@pytest.fixture
def data(tmp_path):
    return write_parquet(tmp_path / "data.parquet", count=8)


def cells(results):
    return {file.name.partition("-")[0]: file for file in (results / "neutreno" / "adaptation").glob("*.json")}


def test_cells_are_kept_and_the_same_command_goes_on(vit, data, tmp_path, monkeypatch, capsys):
    results, tested = tmp_path / "r", []
    given = ("reproduce", "neutreno", "adaptation", vit, "--data", data, *FEW, "--results", results)
    cross_validate = adaptation.cross_validate

    def counted(model, method, *more):
        tested.append(type(method).__name__)
        return cross_validate(model, method, *more)

    monkeypatch.setattr(adaptation, "cross_validate", counted)
    assert run(monkeypatch, *given, "-m", "featscale") == 0
    assert list(cells(results)) == ["featscale"]
    written = cells(results)["featscale"].read_bytes()
    assert run(monkeypatch, *given, "-o", tmp_path / "table.md") == 0
    assert tested == ["FeatScale", "NeuTRENO", "AttnScale", "ValueResidual"]
    assert cells(results)["featscale"].read_bytes() == written
    assert cells(results).keys() == {"featscale", "neutreno", "attnscale", "valueresidual"}
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0].startswith("| method | top-1, % | tuned | difference | gained, lost |")
    names = ["| NeuTRENO, per head", "| FeatScale", "| AttnScale", "| ValueResidual"]
    assert [line.split(" | ")[0] for line in lines[2:6]] == names
    cell = json.loads(written)
    assert cell["settings"]["steps"] == 1
    assert {"hardware", "versions", "day", "digests", "right"} <= cell.keys()
    assert str(tmp_path) not in written.decode()
    assert "8 images" in re.sub(r"\s+", " ", capsys.readouterr().out)
    # Other settings are another measurement.
    assert run(monkeypatch, *given, "-m", "featscale", "--lr", 0.5) == 0
    assert len([*(results / "neutreno" / "adaptation").glob("featscale-*.json")]) == 2


def test_a_damaged_cell_is_told(vit, data, tmp_path, monkeypatch, capsys):
    given = ("reproduce", "neutreno", "adaptation", vit, "--data", data, *FEW, "--results", tmp_path, "-m", "featscale")
    assert run(monkeypatch, *given) == 0
    file = cells(tmp_path)["featscale"]
    written = file.read_text()
    for spoil in (
        lambda cell: cell.pop("accuracy"),
        lambda cell: cell["accuracy"].update(before="all"),
        lambda cell: cell["cross_entropy"].update(interval=[]),
        lambda cell: cell["method"].update(method="magic"),
    ):
        cell = json.loads(written)
        spoil(cell)
        file.write_text(json.dumps(cell))
        assert run(monkeypatch, *given) == 2
        assert re.search(r"damaged.*remove it", re.sub(r"\s+", " ", capsys.readouterr().err))


def test_without_data_it_is_asked_for(vit, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    said = refusal(monkeypatch, capsys, "reproduce", "neutreno", "adaptation", vit, "--results", tmp_path)
    assert "give --data, or set OVERSMOOTH_DATA" in said


def test_data_and_weights_are_looked_for_where_the_environment_points(tmp_path, monkeypatch):
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    assert adaptation.default_model() == adaptation.HUB
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    (tmp_path / "weights" / "deit-tiny").mkdir(parents=True)
    (tmp_path / "imagenet-val-1k").mkdir()
    assert adaptation.default_model() == str(tmp_path / "weights" / "deit-tiny")
    assert adaptation.default_data() == tmp_path / "imagenet-val-1k"
    (tmp_path / "data" / "imagenet-val-1k").mkdir(parents=True)
    assert adaptation.default_data() == tmp_path / "data" / "imagenet-val-1k"
