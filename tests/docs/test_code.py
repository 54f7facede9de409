"""The code of README and docs runs as it stands, page by page, each page in one session."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from support.documents import has_python, pages, run_python
from support.interpreters import import_path, python
from support.nightly import NIGHTLY, nightly
from support.places import ROOT

import oversmooth

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_OF_DOCS = [page for page in pages() if page.name != "README.md" and has_python(page)]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new directory to write into, from which results/ and docs/ can be read."""
    for name in ("results", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore")  # of the Trainer, about pinned memory and the like
@pytest.mark.xdist_group("trainer")
def test_readme_runs_in_order_in_one_session(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not NIGHTLY:  # what README prints does not show the extrapolation, which takes half of the time
        monkeypatch.setitem(inspect.unwrap(oversmooth.diagnose).__kwdefaults__, "depth", 0)
    printed = run_python(ROOT / "README.md")
    shown = [(out, expected) for out, expected in printed if expected]
    assert shown, "README shows no output"
    for out, expected in shown:
        assert re.sub(_NUMBER, "#", out.strip()) == re.sub(_NUMBER, "#", expected.strip())
        numbers = [[float(one) for one in re.findall(_NUMBER, text)] for text in (out, expected)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=0.05)
    assert (elsewhere / "report.html").stat().st_size > 100_000
    assert (elsewhere / "steered").is_dir()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [p for p in _OF_DOCS if p.parent.name == "concepts"], ids=lambda page: page.stem)
@pytest.mark.usefixtures("elsewhere")
def test_concepts_run(page: Path) -> None:
    assert all(out.strip() for out, _ in run_python(page)), "an example that shows nothing"


@nightly
@pytest.mark.parametrize("page", [p for p in _OF_DOCS if p.parent.name != "concepts"], ids=lambda page: page.stem)
def test_pages_run(page: Path, elsewhere: Path) -> None:
    # In a process of its own: pages register layouts and methods.
    code = f"from support.documents import run_python; import pathlib; run_python(pathlib.Path({str(page)!r}))"
    done = python("-c", code, cwd=elsewhere, PYTHONPATH=import_path(ROOT / "src", ROOT / "tests"))
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_block_says_its_language() -> None:
    from support.documents import blocks

    known = {"python", "text", "console", "bibtex", ""}
    found = {(language, page.name) for page in pages() for language, _, _ in blocks(page)}
    assert {language for language, _ in found} <= known, found
