"""README and docs as texts: lengths, words, links, the notebooks that are kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.documents import pages
from support.nightly import nightly
from support.places import ROOT

_LINK = re.compile(r"(?<!`)\]\((?!https?://|mailto:)([^)\s]+)\)")
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def _anchors(page: Path) -> set[str]:
    """As GitHub and MyST make them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", title).lower()) for title in titles]
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in _LINK.findall(text):
        path, _, fragment = link.partition("#")
        target = page if not path else page.parent / path
        assert target.exists(), f"{page.name} links to {link}"
        if fragment and target.suffix == ".md":
            assert fragment in _anchors(target), f"{page.name} links to {link}; there are {sorted(_anchors(target))}"


def test_readme_is_short_and_names_the_authors() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1500
    assert "Dovonon" in text
    assert "Nguyen" in text


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_trained_albert_is_called_a_chemistry_model(page: Path) -> None:
    """Where a trained ALBERT is meant; tables of families name the architecture."""
    if page.name in ("models.md", "steering-table.md", "steering.md"):
        return
    for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
        if "ALBERT" in paragraph:
            assert "chemistry" in paragraph, paragraph


def test_the_gallery_shows_the_figures_that_are_kept() -> None:
    from oversmooth.demo import gallery_table

    kept = json.loads((ROOT / "results" / "gallery.json").read_text(encoding="utf-8"))
    table = gallery_table.markdown(kept)
    assert (ROOT / "results" / "gallery.md").read_text(encoding="utf-8") == table
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert table in page, "copy results/gallery.md into docs/gallery.md"


@nightly
def test_the_reference_of_commands_is_what_the_commands_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept for whoever reads the repository without the site."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    import made_pages

    kept = (ROOT / made_pages.COMMANDS).read_text(encoding="utf-8")
    assert kept == made_pages.command_line(), "write docs/reference/commands.md again with make docs"


def test_pages_can_be_read_without_the_site() -> None:
    """What only the site puts together is linked beside it, and nothing links to what is made at build time."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert "(generated/" not in text, page.name
        for included in re.findall(r"^```\{include\} (\S+)$", text, re.M):
            assert f"]({included})" in text, f"{page.name} includes {included}, and does not link to it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_keep_their_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs), "a notebook without a picture"


@nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.chdir(tmp_path)
    nbclient.NotebookClient(nbformat.read(path, 4), timeout=600, kernel_name="python3").execute()
