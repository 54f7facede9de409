"""Models for others: one archive with checksums, a figure tested again, what cells record, what missing ones cost."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace

import pytest
import torch
from support import segmentation_example
from support.commands import refusal, run
from support.places import ROOT
from support.train_example import RECIPE, splits

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import loop as training_run
from oversmooth_papers.tables import cells, filling, provenance, status, trained_models, verify
from oversmooth_papers.tables.base import Case, Row, minutes
from oversmooth_papers.tables.filling import Running, fill
from oversmooth_papers.tasks.images.evaluate import Evaluator
from oversmooth_papers.tasks.images.recipe import PAPER
from oversmooth_papers.tasks.registry import load_trained

SHORT = replace(RECIPE, epochs=1, warmup=0)
SHARP = replace(SHORT, variant="sharpen")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A results directory with two cells and their models."""
    results = tmp_path_factory.mktemp("results")
    running = Running(device="cpu", command="oversmooth reproduce table2")
    assert fill([SHORT, SHARP], splits(), results, "table2", running) == "finished"
    return results


def test_a_cell_keeps_what_steering_learned(kept, tmp_path):
    words = "neutreno:strength=0,learned,per=head + featscale"
    recipe = replace(
        segmentation_example.RECIPE, variant=words, epochs=1, shape=replace(segmentation_example.SHAPE, width=80)
    )
    assert fill([recipe], segmentation_example.splits(), tmp_path, "segmentation", Running(device="cpu")) == "finished"
    learned = cells.read(cells.cell_path(tmp_path, "segmentation", recipe))["strengths"]
    model, _ = load_trained(cells.model_path(tmp_path, recipe))
    for stack, first in (("encoder", 1), ("decoder", 1)):
        name = f"{stack}.blocks.{first}.attn.oversmooth.neutreno.strength"
        assert learned[name] == model.get_parameter(name).tolist()
        assert len(learned[name]) == 2
        assert any(learned[name])
        scale = model.get_parameter(f"{stack}.blocks.0.attn.oversmooth.featscale.t").detach()  # one per channel
        ends = learned[f"{stack}.blocks.0.attn.oversmooth.featscale.t"]
        assert ends["least"] == float(scale.min()) < ends["mean"] < ends["greatest"] == float(scale.max())
    assert "strengths" not in cells.read(cells.cell_path(kept, "table2", SHORT))


# Archives


def test_an_archive_there_and_back(kept, tmp_path):
    titles = trained_models.pack(kept, tmp_path / "models.zip")
    assert sorted(titles) == sorted([SHORT.title, SHARP.title])
    assert sorted(trained_models.unpack(tmp_path / "models.zip", tmp_path / "new")) == sorted(titles)
    for recipe in (SHORT, SHARP):
        one, other = (cells.model_path(where, recipe).read_bytes() for where in (kept, tmp_path / "new"))
        assert one == other
        os.utime(cells.model_path(tmp_path / "new", recipe), (2**33, 2**33))  # of any day: equal models, equal archives
    trained_models.pack(tmp_path / "new", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "models.zip").read_bytes()
    assert trained_models.unpack(tmp_path / "models.zip", tmp_path / "new") == []  # they are there
    cells.model_path(tmp_path / "new", SHORT).write_bytes(b"mine")
    with pytest.raises(InputError, match="is there already and differs"):
        trained_models.unpack(tmp_path / "models.zip", tmp_path / "new")


def evil(path, files, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_an_archive_of_an_earlier_version_is_read(kept, tmp_path):
    path = cells.model_path(kept, SHORT)
    sums = json.dumps({path.name: hashlib.sha256(path.read_bytes()).hexdigest()})
    archive = evil(tmp_path / "old.zip", {"checksums.json": sums, path.name: path.read_bytes()})
    assert trained_models.unpack(archive, tmp_path / "new") == [SHORT.title]


def test_archives_that_are_refused_leave_nothing(kept, tmp_path):
    good = cells.model_path(kept, SHORT)
    name, data = good.name, good.read_bytes()
    other = cells.model_path(kept, SHARP).name
    cut, damaged = tmp_path / "cut.zip", tmp_path / "damaged.zip"
    trained_models.pack(kept, cut)
    cut.write_bytes(cut.read_bytes()[:-2000])
    evil(damaged, {name: data})
    damaged.write_bytes(damaged.read_bytes()[:600] + bytes(30) + damaged.read_bytes()[630:])
    (tmp_path / "begun.zip").write_bytes(b"PK\3\4 and no more")
    for path, words in (
        (evil(tmp_path / "a.zip", {"../" + name: data}), "no name of a model"),
        (evil(tmp_path / "b.zip", {"/tmp/" + name: data}), "no name of a model"),
        (evil(tmp_path / "d.zip", {other: data}), "not the model it is named by"),
        (evil(tmp_path / "e.zip", {name: data}, kind=zipfile.ZIP_DEFLATED), "is compressed"),
        (evil(tmp_path / "f.zip", {name: data, "more.txt": b"x"}), "no name of a model"),
        (evil(tmp_path / "g.zip", {name: b"no model"}), "not the model it is named by"),
        *((path, "cannot be read") for path in (cut, damaged, tmp_path / "begun.zip")),
    ):
        with pytest.raises(InputError, match=words):
            trained_models.unpack(path, tmp_path / "out")
        assert not [left for left in tmp_path.rglob("*") if left.suffix == ".safetensors"], path
    with pytest.raises(InputError, match="has no models"):
        trained_models.pack(tmp_path, tmp_path / "k.zip")


# A figure again


def test_a_cell_is_verified_and_a_wrong_one_is_not(kept, monkeypatch, capsys):
    _, cell = verify.find_cell(SHARP.key, kept)
    file = verify.model_of(cell, kept)
    model, recipe = load_trained(file)
    test = splits().test
    again = Evaluator(recipe, model, torch.device("cpu")).accuracy(test.images, test.labels)
    checked = verify.verify(cell, file, splits(), device="cpu")
    assert [(f.score, f.recorded, f.again) for f in checked.figures] == [
        ("accuracy", again, again),
        ("accuracy before rounding", cell["accuracy"], again),
    ]
    assert checked.agrees
    assert checked.notes == [f"The hash of the {what} is the one in the cell." for what in ("data", "model")]
    wrong = {**cell, "rounded": {"accuracy": again - 0.2}}
    assert not verify.verify(wrong, file, splits(), device="cpu").agrees
    boasts = {**cell, "accuracy": min(1.0, again + 0.3)}  # what tables show, where the rounded file has its own figure
    assert not verify.verify(boasts, file, splits(), device="cpu").agrees
    early = {name: value for name, value in cell.items() if name not in ("rounded", "data_sha256", "checkpoint_sha256")}
    notes = verify.verify(early, file, splits(), device="cpu").notes
    assert any("before they were rounded" in note for note in notes)
    assert sum("records no hash" in note for note in notes) == 2
    other = verify.verify(cell, file, splits(32), device="cpu")
    assert any("hash of the data is not the one" in note for note in other.notes)
    few = verify.verify(cell, file, splits(), device="cpu", images=12)
    tolerance = 0.003 + 3 * math.sqrt(max(again * (1 - again), 1e-4) * 0.5 / 12)
    assert few.figures[0].allowed == pytest.approx(tolerance)
    assert {figure.verdict for figure in few.figures} == {"cannot tell"}  # what so few images cannot tell apart
    assert not few.agrees
    far = verify.verify({**cell, "rounded": {"accuracy": 5.0}}, file, splits(), device="cpu", images=12)
    assert far.figures[0].verdict == "DIFFERS"
    monkeypatch.setattr("oversmooth_papers.cli.reproduce.load", lambda *_: splits())
    assert run(monkeypatch, "reproduce", "verify", SHARP.key, "--results", kept, "--device", "cpu") == 0
    assert "agrees" in capsys.readouterr().out
    few = ("--images", "12", "--results", kept, "--device", "cpu")
    assert run(monkeypatch, "reproduce", "verify", SHARP.key, *few) == 1
    assert "cannot tell" in capsys.readouterr().out
    spoilt = kept / "table2" / f"{SHORT.key}.json"
    before = spoilt.read_text()
    spoilt.write_text(json.dumps({**json.loads(before), "rounded": {"accuracy": 5.0}}))
    assert run(monkeypatch, "reproduce", "verify", spoilt, "--results", kept, "--device", "cpu") == 1
    assert "DIFFERS" in capsys.readouterr().out
    spoilt.write_text(before)


def test_a_segmenter_is_verified_by_its_validation_whatever_its_cell_calls_it(tmp_path):
    recipe, data = replace(segmentation_example.RECIPE, epochs=1), segmentation_example.splits()
    assert fill([recipe], data, tmp_path, "segmentation", Running(device="cpu")) == "finished"
    cell = cells.read(cells.cell_path(tmp_path, "segmentation", recipe))
    assert cell["rounded"].keys() == {"miou_val", "pixel_accuracy_val"}
    before = {**cell, "rounded": {name.removesuffix("_val"): value for name, value in cell["rounded"].items()}}
    file = verify.model_of(cell, tmp_path)
    for one in (cell, before):
        checked = verify.verify(one, file, data, device="cpu")
        exact = {f"{name} before rounding": cell[name] for name in cell["rounded"]}
        assert {f.score: f.recorded for f in checked.figures} == {**cell["rounded"], **exact}
        assert checked.agrees


def test_what_cannot_be_verified_says_why(kept, tmp_path):
    with pytest.raises(InputError, match="there is no cell 'abc'"):
        verify.find_cell("abc", kept)
    with pytest.raises(InputError, match=r"safetensors is no cell, which a \.json holds; give the twelve digits"):
        verify.find_cell(str(cells.model_path(kept, SHORT)), kept)
    _, cell = verify.find_cell(SHORT.key, kept)
    with pytest.raises(InputError, match=r"is not there; take it .* or run oversmooth reproduce .* --results again"):
        verify.model_of(cell, tmp_path)
    of_glue = cells.read(next((ROOT / "results/text/glue").glob("*.json")))
    with pytest.raises(InputError, match=r"text/glue keeps none; run oversmooth reproduce text glue --cells \S+:"):
        verify.model_of(of_glue, ROOT / "results")
    with pytest.raises(InputError, match="nowhere is no file; name that of the model of"):
        verify.model_of(cell, kept, tmp_path / "nowhere")
    with pytest.raises(InputError, match="not the model of this cell: variant"):
        verify.model_of(cell, kept, cells.model_path(kept, SHARP))
    with pytest.raises(InputError, match="its hash differs"):
        verify.model_of({**cell, "checkpoint_sha256": "0"}, kept)


# What a cell records


def test_an_interrupted_cell_goes_on_and_says_what_each_part_ran_on(kept, tmp_path, monkeypatch):
    (machine,) = cells.read(cells.cell_path(kept, "table2", SHORT))["machines"]
    assert machine["from_step"] == 0
    told = []
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(training_run, "hardware_name", lambda _device: "a GPU")
        running = Running(device="cpu", minutes=0, on_message=told.append)
        assert fill([SHORT], splits(), tmp_path, "table2", running) != "finished"
    assert "out of time" in told[1]
    assert status.status(tmp_path)[0][:3] == ("on its way", SHORT.title, "epoch 0 of 1")
    assert fill([SHORT], splits(), tmp_path, "table2", Running(device="cpu")) == "finished"
    cell = cells.read(cells.cell_path(tmp_path, "table2", SHORT))
    shown = ("table2", SHORT.title, f"accuracy {100 * cell['accuracy']:.2f} %")
    assert [row[:3] for row in status.status(tmp_path)] == [shown]
    first, then = cell["machines"]
    assert (first["from_step"], first["hardware"], then["from_step"]) == (0, "a GPU", 1)
    assert then["hardware"] != "a GPU"


@pytest.mark.parametrize("moved", [-0.2, 0.0, 0.2])
def test_a_file_that_tests_unlike_its_run_is_told_of(tmp_path, monkeypatch, moved):
    """24 test images: two of them may fall on the other side."""
    keep = filling.keep_model

    def moved_away(*given):
        kept = keep(*given)
        return {**kept, "rounded": {"accuracy": kept["rounded"]["accuracy"] + moved}}

    monkeypatch.setattr(filling, "keep_model", moved_away)
    told = []
    assert fill([SHORT], splits(), tmp_path, "table2", Running(device="cpu", on_message=told.append)) == "finished"
    assert any("more than rounding explains" in line for line in told) == (moved != 0)
    cell = cells.read(cells.cell_path(tmp_path, "table2", SHORT))
    assert ("by its kept file's accuracy" in cell.get("remark", "")) == (moved != 0)


def test_a_score_that_is_not_finite_makes_no_cell_and_loses_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(filling, "keep_model", lambda *_: {"rounded": {"accuracy": math.nan}})
    with pytest.raises(InputError, match="accuracy is nan after training"):
        fill([SHORT], splits(), tmp_path, "table2", Running(device="cpu"))
    assert not cells.cell_path(tmp_path, "table2", SHORT).exists()
    monkeypatch.undo()
    assert (
        fill([SHORT], splits(), tmp_path, "table2", Running(device="cpu", minutes=0)) == "finished"
    )  # nothing is left to train


def test_cells_record_where_they_come_from(kept):
    cell = cells.read(cells.cell_path(kept, "table2", SHARP))
    assert cell["command"] == "oversmooth reproduce table2"
    assert cell["minutes"] == round(cell["seconds"] / 60, 2)
    data = splits()
    digest = hashlib.sha256()
    for images in (data.train, data.test):  # the bytes as numpy has them
        for array in (images.images.numpy(), images.labels.numpy()):
            kind = {"uint8": "torch.uint8", "int64": "torch.int64"}[str(array.dtype)]
            digest.update(f"{kind} {array.shape} ".encode() + array.tobytes())
    assert cell["data_sha256"] == digest.hexdigest()


def test_the_commit_is_that_of_the_code(monkeypatch, tmp_path):
    monkeypatch.delenv(provenance.COMMIT, raising=False)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert provenance.commit_of(tmp_path) == ""
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "code.py").write_text("1")
    (tmp_path / "guest").mkdir()
    (tmp_path / "guest" / "code.py").write_text("1")
    subprocess.run([*git, "add", "own"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.commit_of(tmp_path / "own") == head
    assert provenance.commit_of(tmp_path / "guest") == ""  # installed into another's repository
    (tmp_path / "own" / "code.py").write_text("2")
    assert provenance.commit_of(tmp_path / "own") == head + "+"
    monkeypatch.setenv(provenance.COMMIT, "abc")
    assert provenance.commit_of() == "abc"


# What is missing


def test_costs_are_those_of_the_likest_run():
    runs = [
        (replace(PAPER, share=0.1), 2.0),
        (replace(PAPER, share=0.1, seed=1), 5.0),
        (replace(PAPER, share=0.1, variant="sharpen"), 3.0),
    ]
    assert status.cost(replace(PAPER, share=1.0), runs) == pytest.approx(20.0)
    assert status.cost(replace(PAPER, share=0.1, variant="sharpen", seed=4), runs) == pytest.approx(3.0)
    deep = replace(PAPER, share=0.1, variant="sharpen", shape=replace(PAPER.shape, depth=48))
    assert status.cost(deep, runs) == pytest.approx(12.0)
    assert status.cost(PAPER, []) is None
    assert status.cost(replace(PAPER, data="cifar10"), runs) is None  # of which there may be more or less


def test_runs_that_shared_a_device_count_where_none_had_it_alone(tmp_path):
    some = replace(PAPER, share=0.1)
    deep, elsewhere = replace(some, shape=replace(PAPER.shape, depth=24)), replace(PAPER, data="cifar10")
    for recipe, times in (
        (some, {"seconds": 120}),
        (deep, {"seconds": 840, "at_once": 4}),
        (elsewhere, {"seconds": 720, "at_once": 4}),
    ):
        named = {"table": "table2", "title": recipe.title, "accuracy": 0.5, "hardware": "GPU", "day": "2026-01-01"}
        cells.write(tmp_path / "table2" / f"{recipe.key}.json", {**named, **times, "recipe": recipe.to_dict()})
    runs = status.measured(tmp_path)
    assert status.cost(deep, runs) == pytest.approx(4.0)
    assert status.cost(elsewhere, runs) == pytest.approx(3.0)


def test_a_last_cell_that_runs_alone_says_nothing_of_others(tmp_path):
    assert (
        fill([SHORT], splits(), tmp_path, "table2", Running(device="cpu", at_once=4, keep_models=False)) == "finished"
    )
    assert "at_once" not in json.loads(cells.cell_path(tmp_path, "table2", SHORT).read_text())


def test_minutes_of_runs_that_had_the_device_for_themselves_come_first():
    def shown(*cells):
        return minutes(Row(Case(""), SHORT, dict(enumerate(cells))))

    alone, shared = {"seconds": 120.0}, {"seconds": 420.0, "at_once": 4}
    assert shown() == "–"
    assert shown(alone, shared) == "2.0"
    assert shown(shared) == "7.0, 4 at once"
    assert shown(alone, {"seconds": 180.0}) == "2.0 to 3.0"


def test_status_lists_every_cell_once_and_what_is_missing_with_its_minutes():
    """Also where one table's name begins another's, as language does language-ablation."""
    results = ROOT / "results"
    there = [row[0::5] for row in status.status(results)]
    assert len(there) == len(set(there))
    assert ("neutreno/language-ablation", "553b4498bc9c") in there
    rows = status.missing_rows(results)
    assert len(rows) == len(set(rows))
    kept = {cell["title"] for cell in cells.read_folder(results / "table2")}
    assert not kept & {title for table, title, _ in rows if table == "table2"}
    assert all(minutes > 0 for table, _, minutes in rows if table in ("depth", "neutreno/language-ablation"))


def test_status_lists_a_dozen_and_says_how_many_more(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "results" / "neutreno" / "language", tmp_path / "neutreno" / "language")
    assert run(monkeypatch, "reproduce", "status", "--results", tmp_path) == 0
    shown = capsys.readouterr().out
    glue = shown.split("missing from text/glue")[1].split("missing from")[0]
    assert glue.count("masked language model") == 12
    assert "and 23 more, which --all lists" in glue
    assert run(monkeypatch, "reproduce", "status", "--all", "--results", tmp_path) == 0
    glue = capsys.readouterr().out.split("missing from text/glue")[1].split("missing from")[0]
    assert glue.count("masked language model") == 35


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seconds": None}, "seconds is None, not a finite number"),
        ({"at_once": 0}, "at_once is 0, not a number of runs"),
        ({"at_once": []}, r"at_once is \[\], not a whole number"),
        ({"rounded": {"accuracy": None}}, r"rounded.accuracy is None, not a finite number"),
        ({"epochs": [{"lr": 1.0}]}, "epochs.0 has no 'loss'"),
        ({"pretraining_perplexity": "x"}, "pretraining_perplexity is 'x'"),
        ({"table": "rules"}, "it has no rules"),
        ({"table": "rules", "rules": {"heads": {"smooth": 1}}}, "rules.heads has no 'rough'"),
        ({"accuracy": "0.5"}, "accuracy is '0.5', not a finite number"),
        ({"accuracy": 7}, "accuracy is 7, not a share"),
        ({"title": 3}, "title is 3, not text"),
        ({"hardware": None}, "hardware is None, not text"),
        ({"recipe": []}, "recipe is "),
        ({"recipe": {"epochs": "x"}}, "its recipe cannot be read"),
        ({"smoothing": 3}, "smoothing is 3, not a list"),
        ({"smoothing": [{"hfc_lfc": [], "abs_cos": []}]}, "smoothing has a look without numbers"),
        ({"mean": ["x"]}, "mean.0 is 'x'"),
    ],
)
def test_a_cell_with_a_wrong_value_is_named(kept, tmp_path, change, said):
    path = tmp_path / f"{SHORT.key}.json"
    path.write_text(json.dumps({**json.loads(cells.cell_path(kept, "table2", SHORT).read_text()), **change}))
    with pytest.raises(InputError, match=rf"is no cell of ours or is damaged \({said}.*; remove it to run it again"):
        cells.read(path)


def test_cells_of_a_folder_that_is_not_there_are_not_shown(monkeypatch, capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a page of before")
    monkeypatch.chdir(tmp_path)
    for given in (("table2", "--show"), ("first-paper", "-o", page), ("table2", "--show", "--results", page)):
        assert "so there are no cells to show" in refusal(monkeypatch, capsys, "reproduce", *given)
    assert page.read_text() == "a page of before"
