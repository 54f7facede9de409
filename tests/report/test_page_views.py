"""What a reader does with a page: hides, enlarges, looks at tokens, sends a view, prints; and who can read it."""

import base64
import json

import numpy
import pytest
from support import axe, browser
from support.nightly import nightly, some
from support.report_example import example, one_input

from oversmooth.report import page, simulation, training
from oversmooth.theory.toy import PRESETS, with_options

pytestmark = browser.MARKS


@pytest.fixture(scope="module")
def found():
    """Eight models, the second of which was given a text."""
    models = [example(f"model {i}", layers=3, heads=2, head_dim=4, inputs=3, seed=i) for i in range(8)]
    models[1].one_input = one_input(numpy.random.default_rng(0), 3, 2, grid=None)
    return models


@pytest.fixture(scope="module")
def pages(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("pages")
    page.save(found[:3], folder / "three.html")
    page.save(found, folder / "eight.html")
    small = with_options(PRESETS["cases"], tokens=6, width=4, layers=8)
    simulation.save([case.run() for case in small], folder / "simulation.html", "six tokens")
    rows = [{"step": step, "cos": [0.2, step / 100], "asymmetry": [0.5]} for step in (1, 50, 90)]
    training.save([training.Run("plain", rows), training.Run("steered", rows[:2])], folder / "training.html")
    return folder


def opened(chromium, path, **settings):
    chromium.open(path, **settings)
    chromium.wait(browser.READY)


def again(chromium, action):
    """Do something that draws again, and wait until it is drawn."""
    chromium.run("for (const chart of document.querySelectorAll('.chart[id]')) delete chart.dataset.ready")
    chromium.run(action)


def lines(chromium, chart):
    return chromium.run(f"document.querySelectorAll('#chart-{chart} .mark-line path').length")


def test_legends_hide_and_show_in_every_chart(chromium, pages):
    opened(chromium, pages / "three.html")
    assert lines(chromium, "cos") == 6
    assert lines(chromium, "hfc") == 3
    chromium.run("document.querySelectorAll('#curves-legend button')[1].click()")
    chromium.wait("document.querySelectorAll('#chart-hfc .mark-line path').length === 2")
    pressed = "[...document.querySelectorAll('#curves-legend button')].map((b) => b.getAttribute('aria-pressed'))"
    assert chromium.run(pressed) == ["true", "false", "true"]
    assert "models=0%2C2" in chromium.run("location.hash")
    chromium.run("document.querySelectorAll('#curves-legend button')[1].click()")
    chromium.wait("document.querySelectorAll('#chart-hfc .mark-line path').length === 3")
    assert chromium.run("location.hash") == ""
    chromium.run("document.querySelector('#changes-legend button').click()")
    # bars of one part, and sums
    chromium.wait("document.querySelectorAll('#chart-changes .mark-rect path').length === 6")
    assert chromium.complaints() == []


def test_a_view_can_be_sent(chromium, pages):
    path = pages / "three.html"
    opened(chromium, path)
    wanted = "models=0&rank=stable+rank&massive=without&model=2&layer=3&head=1&variant=folded&depth=1&token=4"
    again(chromium, f"location.hash = {json.dumps(wanted)}")
    chromium.wait(browser.READY)
    chromium.wait("document.getElementById('chart-plane').dataset.shown === '2/3/1/folded'")
    assert lines(chromium, "hfc") == 1
    assert chromium.run("document.getElementById('option-rank').value") == "stable rank"
    assert chromium.run("document.getElementById('without-massive').checked")
    said = chromium.run("document.getElementById('tokens-finding').innerText")
    assert said.startswith("Depth 1, patch in row 1, column 4:")
    chromium.run("document.getElementById('tokens-depth').value = 2")
    chromium.run("document.getElementById('tokens-depth').dispatchEvent(new Event('input'))")
    assert "depth=2" in chromium.run("location.hash")
    assert chromium.complaints() == []
    for odd in ("model=99&layer=x&head=-1&variant=none&depth=1e9&token=2.5&models=7,8&off=%3A&rank=", "numbers"):
        again(chromium, f"location.hash = {json.dumps(odd)}")
        assert chromium.complaints() == []


def cosine(shown, depth, i, j):
    """By the description of the format alone."""
    bytes_of = base64.b64decode(shown.similarity[depth])
    pairs = [(a, b) for a in range(shown.groups) for b in range(a + 1, shown.groups)]
    return bytes_of[pairs.index((min(i, j), max(i, j)))] / 127 - 1


def test_the_tokens_of_one_input(chromium, pages, found):
    path = pages / "three.html"
    opened(chromium, path)
    shown = found[0].one_input
    token, last = 1 + 1 * 4 + 2, 3  # the middle
    others = [cosine(shown, last, token, j) for j in range(shown.groups) if j != token]
    said = chromium.run("document.getElementById('tokens-finding').innerText").replace("−", "-")
    assert f"Depth 3, patch in row 2, column 3: mean cosine with the others {sum(others) / len(others):.2f}" in said
    assert f"({max(others):.2f})" in said
    chromium.run("""document.getElementById('tokens-map').dispatchEvent(
        new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))""")
    assert "row 2, column 4" in chromium.run("document.getElementById('tokens-finding').innerText")
    chromium.run("document.querySelectorAll('#tokens-by-depth button')[0].click()")
    assert "Depth 0, patch in row 2, column 4" in chromium.run("document.getElementById('tokens-finding').innerText")
    assert chromium.run("document.querySelectorAll('#tokens-heads canvas').length") == 2
    chromium.run("{ const m = document.getElementById('model'); m.value = 1; m.dispatchEvent(new Event('change')); }")
    words = chromium.run("[...document.querySelectorAll('#tokens-map span')].map((span) => span.innerText)")
    assert words == found[1].one_input.labels
    chromium.run("document.querySelectorAll('#tokens-map span')[5].click()")
    assert "token 5 “word5”" in chromium.run("document.getElementById('tokens-finding').innerText")
    assert chromium.complaints() == []


@nightly
def test_a_panel_fills_the_window_and_gives_its_data(chromium, pages, found):
    opened(chromium, pages / "three.html", height=800)
    before = chromium.run("document.querySelector('#chart-hfc svg').clientHeight")
    again(chromium, "document.querySelectorAll('[data-chart=curves] .enlarge')[0].click()")
    chromium.wait("document.querySelector('dialog #chart-hfc')?.dataset.ready === 'yes'")
    assert chromium.run("document.querySelector('#chart-hfc svg').clientHeight") > before + 200
    chromium.run("""{ const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { window.kept = blob; return make(blob); };
        const link = document.getElementById('large-data');
        link.addEventListener('click', (event) => event.preventDefault());
        link.click(); }""")
    data = json.loads(chromium.run("window.kept.text()"))
    values = [row["value"] for row in data["rows"] if row.get("model") == 0 and row.get("value") is not None]
    assert [layer.tokens["hfc_lfc"] for layer in found[0].layers] == values[:4]
    again(chromium, "document.getElementById('large').close()")
    chromium.wait("document.querySelector('[data-chart=curves] #chart-hfc')?.dataset.ready === 'yes'")
    assert chromium.run("document.activeElement.className") == "tool enlarge"


@nightly
def test_terms_are_explained_where_they_stand(chromium, pages):
    opened(chromium, pages / "three.html", width=390, height=800, touch=True)
    for term in ("cos", "hfc", "h", "case"):
        chromium.run(f"document.querySelector('.term[data-term={term}]').scrollIntoView()")
        chromium.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # has scrolled
        chromium.run(f"document.querySelector('.term[data-term={term}]').click()")
        box = chromium.run(f"document.getElementById('term-{term}').getBoundingClientRect().toJSON()")
        assert box["width"] > 100
        assert box["left"] >= 0
        assert box["right"] <= 390
    chromium.run("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))")
    assert chromium.run("[...document.querySelectorAll('.meaning')].every((one) => one.hidden)")


@nightly
def test_more_models_than_colours(chromium, pages):
    opened(chromium, pages / "eight.html")
    assert lines(chromium, "hfc") == 6
    box = "document.querySelectorAll('#chosen-models input')"
    assert chromium.run(f"[{box}[0].checked, {box}[7].checked, {box}[7].disabled]") == [True, False, True]
    chromium.run(f"{box}[0].click()")
    chromium.wait("document.querySelectorAll('#chart-hfc .mark-line path').length === 5")
    chromium.run(f"{box}[7].click()")
    chromium.wait("document.querySelectorAll('#chart-hfc .mark-line path').length === 6")
    strokes = "[...document.querySelectorAll('#chart-hfc .mark-line path')].map((p) => getComputedStyle(p).stroke)"
    assert len(set(chromium.run(strokes))) == 6
    chromium.run(
        "{ const f = document.getElementById('find-model'); f.value = 'L 3'; f.dispatchEvent(new Event('input')); }"
    )
    assert chromium.run("[...document.querySelectorAll('#chosen-models label')].filter((l) => !l.hidden).length") == 1
    assert "models=1%2C2%2C3%2C4%2C5%2C7" in chromium.run("location.hash")
    assert chromium.complaints() == []


def test_a_simulation_looks_the_same(chromium, pages):
    path = pages / "simulation.html"
    opened(chromium, path, width=390, height=800, touch=True)
    assert chromium.run("document.documentElement.scrollWidth") <= 390
    assert chromium.run("document.title").endswith("· oversmooth")
    assert chromium.run("document.querySelectorAll('.chart svg').length") == 3
    light = chromium.run("getComputedStyle(document.body).backgroundColor")
    chromium.dark(True)
    assert chromium.run("getComputedStyle(document.body).backgroundColor") != light
    chromium.dark(False)
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith(("data:", "blob:"))] == [path.as_uri()]


@nightly
def test_it_prints(chromium, pages):
    opened(chromium, pages / "three.html")
    made = chromium.call("Page.printToPDF", printBackground=False)
    assert base64.b64decode(made["data"]).startswith(b"%PDF")
    chromium.call("Emulation.setEmulatedMedia", media="print")
    hidden = "['.chooser', '.tool', '#downloads'].map((one) => getComputedStyle(document.querySelector(one)).display)"
    assert chromium.run(hidden) == ["none"] * 3
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chromium.call("Emulation.setEmulatedMedia", media="")


CASES = [("three", False, 390), ("three", True, 1200), ("eight", False, 1200), ("simulation", True, 390)]
CASES += [("training", False, 390), ("training", True, 1200)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    found = axe.script(tmp_path_factory.mktemp("axe"))
    if found is None:
        pytest.skip("no axe-core: npm is not there, or could not install it; set OVERSMOOTH_AXE to its file")
    return found


@pytest.mark.parametrize(("name", "dark", "width"), some(CASES, 4))
def test_nothing_keeps_readers_out(chromium, pages, installed, name, dark, width):
    opened(chromium, pages / f"{name}.html", width=width, height=800, dark=dark, touch=width < 500)
    assert axe.violations(chromium, installed) == []
    chromium.dark(False)
