"""The site is built without a warning, every link in it leads somewhere, and its search finds pages from disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.browser import browser, executable
from support.interpreters import python
from support.nightly import nightly
from support.places import ROOT

from oversmooth.results.data import VERSION

pytestmark = [nightly, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    if shutil.which("npm") is None:
        pytest.skip("npm fetches MathJax, and is not here")
    folder = tmp_path_factory.mktemp("site")
    for made in ("extra", "static"):
        (ROOT / "docs" / "generated" / made).mkdir(parents=True, exist_ok=True)
    words = ("sphinx", "--fail-on-warning", "--keep-going", "-q", "-b", "html", "docs", folder)
    done = python("-m", *words, cwd=ROOT, PYTHONPATH=ROOT / "src")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_links(site: Path) -> None:
    done = python(ROOT / "docs/_ext/check_links.py", site)
    assert done.returncode == 0, done.stderr[-3000:]


def test_broken_links_are_found(tmp_path: Path) -> None:
    """The check itself: a missing file, a missing place, and something that would be loaded from elsewhere."""
    (tmp_path / "a.html").write_text(
        "<h1 id=here>x</h1><a href='b.html'></a><a href='#there'></a><a href='#here'></a><script src='https://x.org/y'>"
    )
    done = python(ROOT / "docs/_ext/check_links.py", tmp_path)
    assert done.returncode == 1
    assert [line.split(": ")[1].split(" ")[0] for line in done.stderr.splitlines()] == [
        "b.html",
        "#there",
        "https://x.org/y",
    ]


def test_commands_and_schema_are_published(site: Path) -> None:
    text = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert "oversmooth reproduce neutreno language" in text
    schema = json.loads((site / f"schema/diagnosis-{VERSION}.json").read_text(encoding="utf-8"))
    assert schema["$id"] == f"oversmooth/diagnosis/{VERSION}"


@pytest.mark.browser
@pytest.mark.skipif(executable() is None, reason="no Chromium")
def test_search_and_formulas_work_from_disk(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        for dark, width in ((False, 1280), (True, 390)):
            page.open(site / "concepts/spectra.html", width, 900, dark=dark, touch=width < 500)
            page.wait("document.querySelectorAll('mjx-container svg').length > 10")
            assert page.run("document.querySelectorAll('mjx-merror').length") == 0
            assert page.run("document.documentElement.scrollWidth") <= width
            assert not [url for url in page.requests() if not url.startswith(("file:", "data:"))]
        address = (site / "search.html").as_uri() + "?q=massive+tokens"
        page.call("Page.navigate", url=address)
        page.wait("document.querySelectorAll('#search-results li a').length > 0")
        found = page.run("[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))")
        assert any(link.startswith("concepts/massive-tokens.html") for link in found)
