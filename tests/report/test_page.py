"""The page: what it holds, and what a reader's browser makes of it."""

import json
import re

import pytest
from support import browser
from support.nightly import some
from support.report_example import example, held, rows_of

from oversmooth import InputError
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report import fitting, headline, page
from oversmooth.results import verdict
from oversmooth.results.parts import Accuracy

NASTY = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def small():
    return example(layers=3, heads=2, head_dim=4, inputs=3)


def visible(text):
    """A page without its scripts and styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def test_the_data_in_the_page_is_the_diagnosis(small):
    (data,) = held(page.render([small]), "diagnoses")
    assert Diagnosis.from_dict(data) == small


def test_what_the_page_says(small):
    text = visible(page.render([small]))
    assert "made-up images · 3 inputs · 197 tokens · float32 · oversmooth 0.1.0 · torch 2.11.0 · 2025-01-31" in text
    words = re.sub(r"</?button.*?>", "", text)
    for said in small.verdict + small.remarks:
        assert said in words
    hfc = small.layers[2].tokens["hfc_lfc"]
    assert f"<td>{hfc:.4g}</td>" in text
    assert f"<h1>{verdict.headline(small)}</h1>" in text
    assert headline.cosine(small) in text
    places = ["<h1>", 'id="verdict"', 'id="chart-changes"', 'id="chart-hfc"', 'id="tokens"', 'id="numbers"']
    headings = ["In plain words", "Which sublayer", "Tokens over depth", "One input", "Spectra of H", "More depth"]
    for order in (places, [*headings, "Numbers"]):
        assert sorted(order, key=text.index) == order


def test_models_of_its_kind_stand_beside_it(small):
    text = page.render([small])
    panels = held(text, "drawn")["charts"]["references"]["drawings"][0]["panels"]
    assert [panel["place"] for panel in panels] == ["hfc-lfc-ratio", "cosine", "smoothing-share"]
    values = {row["title"]: row["value"] for row in rows_of(panels[1]["spec"])}
    assert values["this model"] == small.layers[-1].tokens["cos"]
    assert values["DeiT-Tiny"] == 0.321
    assert "MiniLM-L6" not in values
    unknown = Diagnosis.from_json(small.to_json())
    unknown.one_input = None
    text = page.render([unknown])
    assert "references" not in held(text, "drawn")["charts"]
    assert "No reference for this kind of model." in text


def test_names_cannot_become_markup():
    nasty = example(name=NASTY, layers=2, heads=1, head_dim=2)
    nasty.one_input.labels = [NASTY] * nasty.one_input.groups
    nasty.one_input.grid = nasty.one_input.picture = None
    nasty.one_input.what = NASTY
    nasty.layers[1].name = NASTY
    nasty.verdict, nasty.remarks, nasty.provenance["data"] = [NASTY], [NASTY], NASTY
    nasty.extrapolation[0].note = NASTY
    text = page.render([nasty, nasty])
    assert "alert(1)</script>" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert text.count("<script") == text.count("</script>") == 4  # two of data, the library, and our own
    assert held(text, "diagnoses")[0]["model"]["name"] == NASTY


def test_every_value_may_be_missing(small):
    bare = Diagnosis.from_json(small.to_json())
    for layer in bare.layers:
        layer.tokens = dict.fromkeys(layer.tokens)
        layer.spread, layer.without_massive, layer.massive = {}, None, None
        layer.spectrum = layer.dominance = None
        layer.changes = []
    bare.extrapolation, bare.verdict, bare.remarks, bare.one_input = [], [], [], None
    bare.provenance = {}
    text = visible(page.render([bare]))
    assert "Numbers" in text
    sections = "Tokens over depth|Which sublayer|Spectra of H|dominates|More depth|One input:|without-massive"
    assert not re.search(sections, text)
    assert "Tokens over depth" in visible(page.render([bare, small]))


def test_several_models(small):
    text = visible(page.render([small] * 6))
    assert "tiny vit (6)" in text
    assert text.count("<table>") == 7  # one has them side by side
    assert "Side by side" in text
    for count in (0, 25):
        with pytest.raises(InputError, match=f"1 to 24 models and {count} were given"):
            page.render([small] * count)


def test_models_side_by_side_and_what_they_get_right(small):
    other = Diagnosis.from_json(small.to_json())
    other.accuracy = Accuracy(512, 0.9101, [0.838, 0.631], 512, "all corrupted", trained=0.9)
    assert Diagnosis.from_json(other.to_json()) == other
    text = visible(page.render([small, other], [("another <page>", "other.html")]))
    first, last = (small.layers[place].tokens["hfc_lfc"] for place in (0, -1))
    assert f"<td>{first:.3g} → {last:.3g}</td>" in text
    assert f"<td>{small.smoothing_share:.0%}</td>" in text
    for part, sign in (("attention", "Δ attention"), ("mlp", "Δ MLPs")):
        total = sum(layer.change(part) or 0 for layer in small.layers)
        assert f"<td>{total:+.2f}</td>".replace("-", "−") in text
        assert sign in text
    accuracies = r"91.0<small> ± 1.3</small></td><td>83.8<small> ± 1.6</small></td><td>63.1<small> ± 2.1</small></td>"
    assert re.search(rf"tiny vit \(2\)</th><td>{accuracies}", text)
    assert '<a href="other.html">another &lt;page&gt;</a>' in text
    alone = visible(page.render([small]))
    assert "Side by side" not in alone
    assert "Accuracy" not in alone


def test_many_eigenvalues_are_thinned_and_the_page_says_so(small, monkeypatch):
    monkeypatch.setattr(fitting, "MOST_EIGENVALUES", 60)
    assert "this page contains" not in visible(page.render([example(layers=1, heads=1, head_dim=4)]))
    text = page.render([small])
    kept = held(text, "diagnoses")[0]["layers"][1]["spectrum"]
    whole = small.layers[1].spectrum
    assert "this page contains" in visible(text)
    assert len(kept["joined"]["raw"]["real"]) < len(whole.joined["raw"].real) == 8
    assert kept["joined"]["raw"]["rho_smooth"] == whole.joined["raw"].rho_smooth
    outer = max(abs(1 + complex(*z)) for z in zip(*(kept["joined"]["raw"][k] for k in ("real", "imag")), strict=True))
    assert outer == pytest.approx(whole.joined["raw"].rho_smooth, rel=1e-3)  # what decides is still there
    kept_in_all = sum(
        len(e["real"]) for layer in held(text, "diagnoses")[0]["layers"] if layer["spectrum"] for e in all_of(layer)
    )
    assert kept_in_all <= 60


def all_of(layer):
    return [*layer["spectrum"]["joined"].values(), *(e for heads in layer["spectrum"]["heads"].values() for e in heads)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One of BERT-base's size, one with everything that is awkward, one with six models."""
    folder = tmp_path_factory.mktemp("pages")
    bert = example("bert", layers=12, heads=12, head_dim=64, inputs=16)
    awkward = example(NASTY, layers=48, heads=32, head_dim=2, inputs=2, post_norm=True)
    for depth, layer in enumerate(awkward.layers):
        layer.name = f"{NASTY}.{'a_very_long_prefix.' * 5}{depth}"
        if depth % 5 == 2:
            layer.tokens = dict.fromkeys(layer.tokens)
            layer.spectrum = layer.dominance = None
            layer.changes = []
    awkward.extrapolation[0].predicted = None
    six = [example(f"model {i}", layers=[1, 2, 3, 3, 5, 8][i], heads=2, head_dim=4, seed=i) for i in range(6)]
    six[5].extrapolation = []
    for layer in six[4].layers:
        layer.spectrum = layer.dominance = layer.without_massive = None
        layer.changes = []
    three = [example(f"model {i}", layers=3, heads=2, head_dim=4, seed=i) for i in range(3)]
    for place, one in enumerate(three[1:]):
        one.accuracy = Accuracy(100, 0.9, [0.8, 0.7 - place / 10], 100, "corrupted")
    for name, diagnoses in {"bert": [bert], "awkward": [awkward], "six": six, "three": three}.items():
        page.save(diagnoses, folder / f"{name}.html")
    return {"folder": folder, "bert": bert}


def opened(chromium, pages, name, **settings):
    path = pages["folder"] / f"{name}.html"
    chromium.open(path, **settings)
    chromium.wait(browser.READY)
    return path


def centre_of(chromium, element):
    """Where it is now: what is drawn above it may still move it, so that whoever points there looks again."""
    return chromium.run(f"""(() => {{
        const element = {element};
        element.scrollIntoView({{ block: 'center' }});
        const box = element.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    }})()""")


def quiet(chromium, path):
    assert chromium.complaints() == []
    outside = [url for url in chromium.requests() if not url.startswith(("data:", "blob:"))]
    assert outside == [path.as_uri()]


@browser.needed
@pytest.mark.parametrize("name", some(["awkward", "bert", "six"], 2))
def test_a_page_of_its_own_on_a_phone(chromium, pages, name):
    path = opened(chromium, pages, name, width=360, height=740, touch=True)
    assert path.stat().st_size < 3e6
    assert chromium.run("document.documentElement.scrollWidth") <= 360
    for chart in ("hfc", "cos", "rank", "changes", "plane", "dominance", "radii"):
        assert chromium.run(f"document.querySelectorAll('#chart-{chart} svg path').length") > 0
    assert chromium.run("document.querySelectorAll('[data-chart=extrapolation] svg').length") > 0
    quiet(chromium, path)


@browser.needed
def test_the_tooltip_shows_the_number_in_the_json(chromium, pages):
    path = opened(chromium, pages, "bert")
    depth = 5

    def pointed_at():
        x, y = centre_of(chromium, f"[...document.querySelectorAll('#chart-hfc .mark-symbol path')][{depth}]")
        chromium.move(x + 1, y + 1)
        chromium.move(x, y)
        return chromium.run("!document.getElementById('tip').hidden && document.getElementById('tip').innerText")

    text = browser.until(pointed_at, "the tooltip")
    layer = pages["bert"].layers[depth]
    assert layer.name in text
    assert float(re.search(r"HFC/LFC\s+([\d.]+)", text)[1]) == pytest.approx(layer.tokens["hfc_lfc"], rel=1e-3)
    chromium.move(2, 2)
    chromium.wait("document.getElementById('tip').hidden")
    quiet(chromium, path)


@browser.needed
def test_accuracies_are_drawn(chromium, pages):
    path = opened(chromium, pages, "three", width=360, height=740)
    assert chromium.run("document.documentElement.scrollWidth") <= 360
    assert chromium.run("document.querySelectorAll('#chart-accuracy .mark-line path').length") == 2
    assert chromium.run("document.querySelectorAll('#chart-accuracy .mark-symbol path').length") == 6
    assert chromium.run("document.getElementById('accuracy-legend').innerText").split() == ["model", "1", "model", "2"]
    quiet(chromium, path)


@browser.needed
def test_choosing_a_layer_and_a_head(chromium, pages):
    path = opened(chromium, pages, "bert")
    drawing = "document.querySelector('#chart-plane svg')?.outerHTML"
    plane = f"""(() => {{ const now = {drawing}; return now && now !== window.before && now.includes('<path') }})()"""
    remember = f"window.before = {drawing}; 0"
    chromium.run(remember)
    chromium.run("""{ const layer = document.getElementById('layer'); layer.value = '7';
        layer.dispatchEvent(new Event('change')); }""")
    chromium.wait(plane)
    assert "encoder.layer.6" in chromium.run("document.getElementById('spectrum-finding').innerText")
    chromium.run(remember)

    def clicked():
        chromium.click(*centre_of(chromium, "document.querySelector('#strip button[data-layer=\"3\"]')"))
        return chromium.run("document.getElementById('layer').value") == "3"

    browser.until(clicked, "the layer that was clicked")
    chromium.wait(plane)
    chromium.run(remember)
    chromium.run("document.querySelector('#heads input[value=\"4\"]').click()")
    chromium.wait(plane)
    said = chromium.run("document.getElementById('spectrum-finding').innerText")
    share = pages["bert"].layers[3].spectrum.heads["raw"][4].negative_share
    assert f"head 4, raw: {share:.1%} of eigenvalues" in said
    quiet(chromium, path)


@browser.needed
def test_choosing_a_model_and_leaving_out_massive_tokens(chromium, pages):
    path = opened(chromium, pages, "six")
    for model in (5, 4, 0, 3):
        chromium.run(f"""{{ const model = document.getElementById('model'); model.value = '{model}';
            for (const chart of document.querySelectorAll('.chart[id]')) delete chart.dataset.ready;
            document.getElementById('without-massive').click();
            model.dispatchEvent(new Event('change')); }}""")
        chromium.wait(browser.READY)
    quiet(chromium, path)


@browser.needed
def test_dark_mode_recolours_page_and_charts(chromium, pages):
    opened(chromium, pages, "six")
    colours = """[getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('#chart-hfc .mark-line path')).stroke,
        getComputedStyle(document.querySelector('#chart-hfc .role-axis-label text')).fill]"""
    light = chromium.run(colours)
    chromium.dark(True)
    chromium.wait(f"{colours}.every((colour, place) => colour !== {json.dumps(light)}[place])")
    assert light[0] == "rgb(255, 255, 255)"
    chromium.dark(False)


@browser.needed
def test_the_download_is_the_diagnosis(chromium, pages, tmp_path):
    opened(chromium, pages, "bert")
    chromium.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.run("document.querySelector('#downloads a').click()")
    path = tmp_path / "bert.json"  # it has another name until it is whole
    browser.until(path.exists, "the download")
    assert Diagnosis.load(path) == pages["bert"]
    assert chromium.complaints() == []


@browser.needed
def test_every_chart_answers_the_mouse(chromium, pages):
    path = opened(chromium, pages, "bert")
    layer = pages["bert"].layers[4]
    smooth = sum(row[0] == "smooth" for row in layer.dominance.verdict_heads)
    cell = 3 * 12 + 1
    cases = {
        "#chart-eigenvalues-0 .mark-rect path:nth-of-type(40)": r"Re λ from .* to .*\n+of all eigenvalues\n+\d+\.\d\d%",
        "#chart-changes .mark-rect path:nth-of-type(7)": rf"{layer.name}\n(.*\n)*attention(.*\n)*mlp(.*\n)*whole block",
        "#chart-plane .mark-symbol:last-of-type path": r"λ = .*\n+of\n+all heads jointly\n+\|1 \+ λ\|\n+",
        f"#chart-dominance .mark-rect path:nth-of-type({cell})": rf"{layer.name}\n+head\n+0\n+smooth\n+{smooth} of 16",
        "#chart-radii .mark-symbol path:nth-of-type(7)": rf"{layer.name}\n+ρ smooth\n+[\d.]+\n+ρ rough\n+",
        "#chart-further-stack .mark-rect path:nth-of-type(3)": r"2 more blocks\n+real blocks\n+",
    }
    for mark, expected in cases.items():
        x, y = centre_of(chromium, f"document.querySelector({json.dumps(mark)})")
        chromium.move(x + 1, y + 1)
        chromium.move(x, y)
        text = chromium.wait("!document.getElementById('tip').hidden && document.getElementById('tip').innerText")
        assert re.search(expected, text), (mark, text)
        if "dominance" in mark:
            chromium.click(x, y)
            chromium.wait("document.getElementById('chart-plane').dataset.shown === '0/4/0/raw'")
        chromium.move(2, 2)
        chromium.wait("document.getElementById('tip').hidden")
    quiet(chromium, path)
