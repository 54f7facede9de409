"""`oversmooth watch` on what runs have written."""

import json

import pytest
from typer.testing import CliRunner

from oversmooth.cli.app import app
from oversmooth.cli.watch import bars
from oversmooth.safety.errors import InputError


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    rows = [{"step": step, "cos": [0.1, 0.2 * step], "hfc_lfc": [2.0, 1.0 / step]} for step in (1, 2, 4)]
    (folder / "smoothing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run_is_drawn_in_the_terminal_and_as_a_page(run, tmp_path):
    done = CliRunner().invoke(app, ["watch", str(run), "--html", str(tmp_path / "film.html")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "plain: 3 snapshots, step 4" in done.output
    assert "0.1 → 0.8" in done.output
    assert bars([0.2, 0.4, 0.8]) in done.output
    assert "wrote" in done.output
    assert "Smoothing over training" in (tmp_path / "film.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], r"nowhere has no smoothing\.jsonl; give the directory of a run"),
        ([".", "--seconds", "0"], "--seconds is 0; give a number above 0"),
        ([".", "--html", "film.txt"], r"film\.txt ends in '\.txt'; choose one of \.html"),
    ],
)
def test_bad_input_gets_one_sentence(words, sentence):
    with pytest.raises(InputError, match=sentence):
        CliRunner().invoke(app, ["watch", *words], catch_exceptions=False)


def test_brackets_in_a_name_and_looks_that_hold_nothing_are_drawn(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "smoothing.jsonl").write_text(
        '{"about": {"name": "lr=[/1e-3]"}}\n{"step": 1, "cos": [null, null], "hfc_lfc": [], "verified": 1.0}\n'
    )
    done = CliRunner().invoke(app, ["watch", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "lr=[/1e-3]: 1 snapshot, step 1" in done.output


def test_a_run_that_is_followed_is_drawn_again_whenever_something_is_new(tmp_path, monkeypatch):
    """From before its first look on; Ctrl-C ends it."""
    folder, page = tmp_path / "run", tmp_path / "film.html"
    folder.mkdir()
    pages = []

    def meanwhile(_seconds):
        pages.append(page.stat().st_mtime_ns if page.is_file() else None)
        if len(pages) == 4:
            raise KeyboardInterrupt
        if len(pages) != 3:  # nothing new, once
            with (folder / "smoothing.jsonl").open("a") as file:
                file.write(json.dumps({"step": len(pages), "cos": [0.1, 0.2 * len(pages)]}) + "\n")

    monkeypatch.setattr("oversmooth.cli.watch.time.sleep", meanwhile)
    done = CliRunner().invoke(app, ["watch", str(folder), "--follow", "--html", str(page)])
    assert isinstance(done.exception, KeyboardInterrupt | SystemExit)
    assert pages[0] is None
    assert pages[1] < pages[2] == pages[3]
    assert "run: 2 snapshots, step 2" in done.output
