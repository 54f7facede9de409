"""The examples run, as a reader would run them, with fewer steps."""

import json

import pytest
from support.interpreters import import_path, python
from support.nightly import nightly
from support.places import ROOT

from oversmooth.demo.language import MINILM, folder
from oversmooth.monitor import History
from oversmooth.safety.errors import InputError


def ran(name, *words):
    done = python(ROOT / "examples" / name, *words, PYTHONPATH=import_path(ROOT / "src", ROOT / "examples"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@nightly
def test_a_loop_of_ones_own(tmp_path):
    said = ran("watch_loop.py", "--steps", 4, "--every", 2, "-o", tmp_path / "film.html")
    assert [line.partition(":")[0] for line in said.splitlines()[:3]] == [
        "plain",
        "NeuTRENO 0.6",
        "Spectral, sharpening",
    ]
    page = (tmp_path / "film.html").read_text(encoding="utf-8")
    assert "NeuTRENO 0.6" in page
    assert "Asymmetry of H" in page


@nightly
def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    ran("watch_lightning.py", "--steps", 4, "-o", tmp_path)
    assert (tmp_path / "film.html").is_file()
    (metrics,) = tmp_path.rglob("metrics.csv")
    assert "oversmooth/last/cos" in metrics.read_text()


@nightly
@pytest.mark.parametrize("start", ["ramp", "learned", "now", "plain"])
def test_trainer(start, tmp_path):
    try:
        folder(MINILM)
    except InputError as error:
        pytest.skip(str(error))
    ran("watch_trainer.py", "--start", start, "--steps", 2, "-o", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["strength_at_the_end"] == pytest.approx(
        {"ramp": 0.6, "now": 0.6, "plain": 0}.get(start, 0), abs=1e-3
    )
    assert History.load(tmp_path).steps == [1, 2]
