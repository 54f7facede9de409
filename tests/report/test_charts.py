"""Charts: described once, and drawn from the same description in the page and in files."""

import copy
import json
import math
import re

import altair
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from support.report_example import example, held, rows_of, spans

from oversmooth.report import figures, page, shell
from oversmooth.report.charts import base as charts
from oversmooth.report.charts.pieces import log_ticks
from oversmooth.report.charts.spectra import _bars
from oversmooth.report.style import PAGE, PALETTE, PAPER, css_variables, number, number_expression
from oversmooth.results.parts import Accuracy, Change, Course

IN_BOTH = [name for name, chart in charts.CHARTS.items() if chart.in_page and chart.in_files and name != "plane"]
"""The page puts the eigenvalues that a reader chooses into the plane; a test of the page clicks them."""


@pytest.fixture(scope="module")
def several():
    found = [example(f"model {i}", layers=3 + i, heads=2, head_dim=4, inputs=3, seed=i) for i in range(2)]
    for place, one in enumerate(found):
        one.accuracy = Accuracy(100, 0.9, [0.8, 0.7 - place / 10], 100, "corrupted")
        one.spans = spans(len(one.layers) - 1)
        one.model |= {"state": "trained", "mode": ["smooth", "sharpen"][place]}
    return found


@pytest.fixture
def norms():
    """A chart of one's own: one function."""
    before = dict(charts.CHARTS)

    @charts.chart(title="Massive & <long>", lead="How far the longest token stands out.", one_model=True)
    def norms(models, medium):
        panels = []
        for model in models:
            layers = model.diagnosis.layers
            rows = [{"depth": i, "ratio": x.massive["largest_ratio"]} for i, x in enumerate(layers) if x.massive]
            encoding = {"x": {"field": "depth", "type": "ordinal"}, "y": {"field": "ratio", "type": "quantitative"}}
            mark = {"type": "bar", "color": medium.colour(model.colour)}
            spec = {**medium.size(200, 100), "data": {"values": rows}, "mark": mark, "encoding": encoding}
            panels += [charts.Panel(model.label, spec)] if rows else []
        return charts.Drawing(panels)

    yield norms
    charts.CHARTS.clear()
    charts.CHARTS.update(before)


def drawn(text):
    return held(text, "drawn")


def marks_of(spec):
    if isinstance(spec, list):
        return [mark for part in spec for mark in marks_of(part)]
    if not isinstance(spec, dict):
        return []
    own = [spec["mark"] if isinstance(spec["mark"], str) else spec["mark"]["type"]] if "mark" in spec else []
    return own + [mark for key, part in spec.items() if key != "mark" for mark in marks_of(part)]


def test_a_chart_of_ones_own_is_one_function(norms, several, tmp_path):
    assert norms.__name__ in figures.names()
    text = page.render(several)
    assert '<h2 id="norms-title">Massive &amp; &lt;long&gt;</h2>' in text
    assert 'data-chart="norms"' in text
    given = drawn(text)["charts"]["norms"]
    assert [len(drawing["panels"]) for drawing in given["drawings"]] == [1, 1]
    assert given["drawings"][1]["panels"][0]["spec"]["mark"]["color"] == "var(--model-1)"
    written = figures.save(several, tmp_path, "svg")
    svg = (tmp_path / "norms.svg").read_text(encoding="utf-8")
    assert tmp_path / "norms.svg" in written
    assert "model 1" in svg
    assert PALETTE["model-1"].light in svg


@pytest.mark.parametrize("name", IN_BOTH)
def test_the_page_and_a_file_draw_the_same(name, several):
    """What a file shows of a model, the page shows too: the same rows, and the same marks in the same order."""
    draw, one = charts.CHARTS[name].draw, several[:1]
    in_page = draw(charts.shown(one, PAGE), PAGE).panels
    for panel in draw(charts.shown(one, PAPER), PAPER).panels:
        drawn_too = [twin for twin in in_page if _rows(panel) <= _rows(twin)]
        assert drawn_too
        marks = iter(marks_of(drawn_too[0].spec))
        assert all(mark in marks for mark in marks_of(panel.spec))


def _rows(panel):
    """What is drawn, however the model is called and whatever is said under the mouse."""
    beside = {"model", "title", "tip", "layer", "kind" if panel.place == "cos" else ""}
    found = {json.dumps({k: v for k, v in row.items() if k not in beside}) for row in rows_of(panel.spec)}
    assert len(found) > 2
    return found


@pytest.mark.parametrize("name", [name for name, chart in charts.CHARTS.items() if chart.in_files])
def test_every_figure_is_sound_vega_lite(name, several):
    spec = figures.drawn(several, name).to_dict()
    altair.ConcatChart.validate(spec)
    assert spec["title"]["text"]


@pytest.mark.parametrize("name", [name for name, chart in charts.CHARTS.items() if chart.in_page])
def test_every_panel_of_the_page_is_sound_vega_lite(name, several):
    for panel in charts.CHARTS[name].draw(charts.shown(several[:1], PAGE), PAGE).panels[:2]:
        (altair.LayerChart if "layer" in panel.spec else altair.Chart).validate(panel.spec)
        for row in rows_of(panel.spec):
            assert all(0 <= key < len(panel.tips) for key, _ in row.get("tip", []))


def test_the_page_holds_what_is_drawn_and_what_models_share_once(several):
    given = drawn(page.render(several))["charts"]
    assert given.keys() == {name for name, chart in charts.CHARTS.items() if chart.in_page}
    models = charts.shown(several, PAGE)
    whole = [charts.CHARTS["changes"].draw([m], PAGE).panels[0].spec for m in models]
    held_there = [given["changes"]["drawings"][i]["panels"][0]["spec"] for i in given["changes"]["of_model"]]
    assert held_there == json.loads(json.dumps(whole))
    assert len(given["plane"]["drawings"]) == 1


def test_every_colour_of_the_page_is_in_the_palette(several):
    text = page.render([*several, copy.deepcopy(several[0])])
    library = shell.library()
    own = text.replace(library, "") + json.dumps(drawn(text))
    used = set(re.findall(r"var\(--([\w-]+)", own)) - {"model-"}  # of many models, the page gives them out
    set_here = {"key", "own", "cell", "on-cell", "least", "most", "sans", "serif", "shadow"}
    assert {"model-0", "smooth", "attention", "ink"} <= used <= PALETTE.keys() | set_here
    for name, colour in PALETTE.items():
        assert css_variables().count(f"--{name}: ") == 2
        assert f"--{name}: {colour.light};" in css_variables()
        assert f"--{name}: {colour.dark};" in css_variables()
    css = shell.text_of("page.css")
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?!-)", re.sub(r"#[a-z][\w-]*", "", css)) == []


def test_paper_has_no_variables_and_no_mouse(several):
    for name in figures.names():
        text = json.dumps(figures.drawn(several, name).to_dict())
        assert not re.search(r'var\(--|"tip"|"tooltip"|"hover"|container', text)


def test_models_have_one_colour_everywhere(several):
    """Smoothing is blue and sharpening orange, in the page's cards as in figures."""
    text = page.render(several)
    assert re.findall(r'<details class="card" style="--own: var\(--([\w-]+)\)">', text) == ["model-0", "model-1"]
    turned = [several[1], several[0]]
    assert re.findall(r'class="card" style="--own: var\(--([\w-]+)\)">', page.render(turned)) == ["model-1", "model-0"]
    curve = json.dumps(figures.drawn(turned, "curves").to_dict())
    assert f'"range": ["{PALETTE["model-1"].paper}", "{PALETTE["model-0"].paper}"]' in curve


@pytest.mark.parametrize("digits", [3, 4])
def test_a_number_that_a_chart_computes_is_written_as_everywhere(digits):
    values = [0.0, 1.0, -0.25, 0.98765, 123.456, -9999.0, 12345.6, 0.001, 4.567e-5, -2.5e-9, 1e300]
    spec = {
        "data": {"values": [{"x": i, "value": value} for i, value in enumerate(values)]},
        "transform": [{"calculate": number_expression("datum.value", digits), "as": "text"}],
        "mark": "text",
        "encoding": {"x": {"field": "x", "axis": None}, "text": {"field": "text", "type": "nominal"}},
    }
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", vl_convert.vegalite_to_svg(spec))
    assert texts == [number(value, digits) for value in values]


def test_the_largest_possible_rank_is_a_line(several):
    """The smaller of tokens and features, and the axis goes there from zero."""
    panels = {p.option: p for p in charts.CHARTS["curves"].draw(charts.shown(several, PAGE), PAGE).panels}
    for name in ("effective rank", "stable rank"):
        text = json.dumps(panels[name].spec)
        assert '"largest possible: 8"' in text  # 2 heads of 4 features, 197 tokens
        assert '"domain": [0, 9.04' in text
    assert "largest possible" not in json.dumps(panels["σ₂/σ₁"].spec)
    wider = copy.deepcopy(several)
    wider[0].model["width"] = 100
    panels = {p.option: p for p in charts.CHARTS["curves"].draw(charts.shown(wider, PAGE), PAGE).panels}
    text = json.dumps(panels["effective rank"].spec)
    assert text.count("largest possible") == 1  # above the highest, where no curve crosses it
    assert '"largest possible: 8, 100"' in text


@given(st.floats(-200, 200), st.floats(0.02, 40))
def test_labels_of_a_logarithmic_axis_reach_both_ends(start, decades):
    """A few, in order, inside, and no gap at either end is larger than half of the axis."""
    low, high = 10.0**start, 10.0 ** (start + decades)
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 12
    assert ticks == sorted(set(ticks))
    assert low * 0.999 <= ticks[0]
    assert ticks[-1] <= high * 1.001
    gaps = [math.log10(ticks[0] / low), math.log10(high / ticks[-1])]
    assert max(gaps) <= decades / 2


def test_the_page_draws_the_headline_s_cosine_solid(several):
    """The mean cosine is what the headline is of; its absolute value is dashed beside it, and on paper left out."""
    on_page = charts.CHARTS["curves"].draw(charts.shown(several, PAGE), PAGE).panels
    panel = next(p for p in on_page if p.place == "cos")
    assert [(key.kind, key.label) for key in panel.keys] == [("line", "cos"), ("line dashed", "|cos|")]
    titles = [
        p.spec["layer"][0]["encoding"]["y"]["title"]
        for p in charts.CHARTS["curves"].draw(charts.shown(several, PAPER), PAPER).panels
    ]
    assert titles == ["HFC/LFC", "mean cos", "effective rank"]


def test_two_norms_of_a_block_are_told_apart():
    one = example(layers=2, heads=1, head_dim=2)
    for layer in one.layers[1:]:
        parts = ["attention", "norm", "mlp", "norm"]
        layer.changes = [Change(part, 0.1 * i, None, None, None) for i, part in enumerate(parts)]
    drawing = charts.CHARTS["changes"].draw(charts.shown([one], PAGE), PAGE)
    names = ["attention", "norm after attention", "mlp", "norm after mlp"]
    assert [key.label for key in drawing.legend] == [*names, "whole block"]
    assert len({key.colour for key in drawing.legend}) == 5
    bars = [row for row in rows_of(drawing.panels[0].spec) if "part" in row]
    assert [(row["part"], row["value"]) for row in bars[:4]] == list(zip(names, [0.0, 0.1, 0.2, 0.1 * 3], strict=True))


def test_bars_of_eigenvalues_have_the_share_that_is_counted_as_negative():
    """Zeros that rounding has given a sign are not negative."""
    rows = _bars([-0.5, -1e-9, -1e-18, 0.0, 2e-18, 0.25], 1.0)
    assert sum(row["share"] for row in rows if row["sign"] == "Re λ < 0") == pytest.approx(1 / 6, abs=1e-4)
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=1e-4)


def test_accuracies_have_error_bars(several):
    """One standard error of a share: √(p (1 − p) / n)."""
    (panel,) = charts.CHARTS["accuracy"].draw(charts.shown(several, PAPER), PAPER).panels
    rows = [row for row in rows_of(panel.spec) if "low" in row]
    assert len(rows) == 6
    for row in rows:
        share = row["value"] / 100
        assert row["high"] - row["value"] == pytest.approx(100 * (share * (1 - share) / 100) ** 0.5, abs=1e-3)
        assert row["high"] + row["low"] == pytest.approx(2 * row["value"], abs=2e-3)


def test_more_depth_begins_at_one_point_and_ends_where_the_prediction_does(several):
    """Real blocks, what is predicted from there, and attention alone at the rate of its radii."""
    (last, _stack) = charts.CHARTS["extrapolation"].draw(charts.shown(several[:1], PAGE), PAGE).panels
    entry = several[0].extrapolation[0]
    courses = {}
    for row in rows_of(last.spec):
        if "kind" in row and "value" in row:
            courses.setdefault(row["kind"], []).append((row["depth"], row["value"]))
    real, predicted, spectra = courses.values()
    assert list(courses) == ["real blocks", "predicted from there", "attention alone, by its spectra"]
    assert (real[-1], predicted[-1][0], spectra[-1][0]) == (predicted[0], 48, 48)
    assert spectra[0] == real[0]
    rate = entry.rho_rough / entry.rho_smooth
    assert spectra[-1][1] == pytest.approx(spectra[0][1] * rate**48, rel=1e-4)
    assert '"values": [0, 1, 3, 10, 48]' in json.dumps(last.spec)


def test_a_geometric_prediction_is_straight_over_depth_and_not_over_its_logarithm(several):
    one = copy.deepcopy(several[0])
    entry = one.extrapolation[0]
    entry.way, entry.predicted = "geometric", Course([16.0, 48.0], [entry.real.log_hfc_lfc[-1], -20.0])
    (last, _stack) = charts.CHARTS["extrapolation"].draw(charts.shown([one], PAGE), PAGE).panels
    rows = [row for row in rows_of(last.spec) if row.get("kind") == "predicted from there" and "value" in row]
    assert len(rows) > 20
    slopes = {(math.log(row["value"]) + 20) / (48 - row["depth"]) for row in rows[:-1]}
    assert max(slopes) == pytest.approx(min(slopes), rel=1e-3)


def test_histograms_have_one_axis(several):
    panels = charts.CHARTS["eigenvalues"].draw(charts.shown(several, PAGE), PAGE).panels
    scales = [panel.spec["encoding"]["y"]["scale"] for panel in panels]
    assert scales[0] == scales[1]
    assert scales[0]["domain"][1] >= max(row["share"] for panel in panels for row in rows_of(panel.spec))


def test_maps_are_darker_where_there_is_more():
    def light(colour):
        return sum(int(colour[at : at + 2], 16) for at in (1, 3, 5))

    for medium in (PAGE, PAPER):
        none, more = medium.ramp()["range"]
        assert light(none) > light(more) + 300
    for name in ("map-none", "map-more", "map-below", "map-negative"):
        assert PALETTE[name].light == PALETTE[name].dark
