"""The mean cosine of tokens per layer: against the hidden states of the model itself, and as table and figure."""

import json
import re

import pytest
import torch
from support.commands import refusal, run
from support.oracles import mean_metric
from support.places import ROOT
from support.tuning_example import classifier

from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.models import load
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tables.neutreno import cosine


@torch.no_grad()
def by_hand(model, batches):
    """Mean cosine per layer."""
    states = [model(**batch.inputs, output_hidden_states=True).hidden_states for batch in batches]
    return [mean_metric("cos", torch.cat(layer)) for layer in zip(*states, strict=True)]


def test_the_table_has_the_cosines_of_the_hidden_states(vit):
    loaded = load(str(vit))
    inputs = loaded.inputs(count=3, batch=2).kept()
    head, rows = cosine.rows([cosine.curve_of(diagnose(loaded, inputs, spectra=False))])
    assert head == ["after block", "tiny-vit"]
    theirs = by_hand(loaded.model, inputs)
    assert len(rows) == len(theirs) == 3
    for (_, ours), value in zip(rows, theirs, strict=True):
        assert float(ours.replace("−", "-")) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize(
    ("names", "short", "common"),
    [
        (["A with x, 10 %, seed 0", "A, 10 %, seed 0"], ["A with x", "A"], "10 %, seed 0"),
        (["A, 10 %, seed 0", "A, 10 %, seed 1"], ["A, 10 %, seed 0", "A, 10 %, seed 1"], ""),
        (["A, s", "s"], ["A, s", "s"], ""),
        (["A, s", "A, s"], ["A", "A"], "s"),
        (["A, s"], ["A, s"], ""),
    ],
)
def test_names_leave_out_how_all_of_them_end(names, short, common):
    renamed, end = cosine.shortened([cosine.Curve(name, [0.5], "8 inputs") for name in names])
    assert ([curve.name for curve in renamed], end) == (short, common)
    assert (f"All models: {common}." in cosine.notes(renamed, end)[0]) == bool(common)


def test_models_of_other_depths_and_kinds_stand_side_by_side(vit, tmp_path, monkeypatch, capsys):
    model, recipe = classifier()
    save_model(model, recipe, tmp_path / "model.safetensors")
    files = [tmp_path / name for name in ("c.md", "c.svg", "c.png", "c.pdf")]
    outputs = [word for file in files for word in ("-o", file)]
    given = ("reproduce", "neutreno", "cosine", vit, tmp_path / "model.safetensors", vit, "--inputs", 2, *outputs)
    assert run(monkeypatch, *given) == 0
    assert "after block" in capsys.readouterr().out
    lines = files[0].read_text().splitlines()
    names = [name.strip() for name in lines[0].strip("|").split("|")]
    assert names[0] == "after block"
    assert len(set(names)) == 4  # the same model twice is told apart
    assert len([line for line in lines if re.match(r"\| \d", line)]) == 3
    drawing = files[1].read_text()
    assert "mean cos" in drawing
    assert all(name in drawing for name in names[1:])
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert files[3].read_bytes().startswith(b"%PDF")


def test_a_shallower_model_has_dashes():
    _, rows = cosine.rows([cosine.Curve("a", [0.5, 0.25], ""), cosine.Curve("b", [0.125], "")])
    assert rows == [["0", "0.500", "0.125"], ["1", "0.250", "–"]]


def test_cells_have_the_curve_of_their_last_look(vit, monkeypatch, capsys, tmp_path):
    folder = ROOT / "results" / "neutreno" / "segmentation"
    paths = sorted(folder.glob("*.json"))
    written = tmp_path / "c.md"
    assert run(monkeypatch, "reproduce", "neutreno", "cosine", *paths, "-o", written) == 0
    assert "All models: camvid, seed 0." in re.sub(r"\s+", " ", capsys.readouterr().out)
    lines = [[word.strip() for word in line.strip("|").split("|")] for line in written.read_text().splitlines()]
    curves = [json.loads(path.read_text())["smoothing"][-1]["cos"] for path in paths]
    for depth, values in enumerate(zip(*curves, strict=True)):
        assert lines[2 + depth] == [str(depth), *(f"{value:.3f}" for value in values)]
    shown = ROOT / "results" / "neutreno" / "cosine" / "segmentation-camvid.md"
    assert written.read_text() == shown.read_text()
    given = (monkeypatch, capsys, "reproduce", "neutreno", "cosine")
    assert "is no cell and others are" in refusal(*given, paths[0], vit)
    assert ".md" in refusal(*given, paths[0], "-o", tmp_path / "c.png")
    blind = tmp_path / paths[0].name
    blind.write_text(json.dumps({**json.loads(paths[0].read_text()), "smoothing": []}))
    assert "has no cosines" in refusal(*given, blind)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("nowhere",), "nowhere"),
        (("VIT", "-o", "x.txt"), "choose one of .md"),
        (("VIT", "-o", "x.md", "-o", "x.md"), "named for two outputs"),
    ],
)
def test_bad_options_are_one_sentence(vit, tmp_path, monkeypatch, capsys, options, sentence):
    monkeypatch.chdir(tmp_path)
    given = [vit if word == "VIT" else word for word in options]
    assert sentence in refusal(monkeypatch, capsys, "reproduce", "neutreno", "cosine", *given)


def test_the_conclusion_is_the_last_known_cosine():
    curves = [cosine.Curve("a", [0.1, 0.25], ""), cosine.Curve("b", [0.1, 0.5, None], "")]
    assert cosine.conclusion(curves) == "The mean cosine ends at 0.25 in a, 0.50 in b."
