"""The training report: what it contains and refuses, and that it plays in a browser without asking the network."""

import itertools
import math
import re

import pytest
from support import browser
from support.nightly import some
from support.report_example import held, rows_of

from oversmooth.monitor import Alarm, History
from oversmooth.report import training, training_charts, training_words
from oversmooth.safety.errors import InputError


def run(name, rate, depth=4):
    rows = [
        {
            "step": step,
            "hfc_lfc": [2 * math.exp(-rate * d * step / 100) for d in range(depth + 1)],
            "cos": [None if d == 0 and step == 1 else rate * d * step / 1000 for d in range(depth + 1)],
            "asymmetry": [1.0 + d for d in range(depth)],
            "verified": 1.0,
        }
        for step in (1, 50, 100)
    ]
    return training.Run(name, rows)


def test_cells_reach_half_the_way_to_their_neighbours():
    cells = training_charts.cells(run("a", 1.0), "hfc_lfc")
    assert len(cells) == 15
    assert {(cell["from"], cell["to"]) for cell in cells} == {(1, 25.5), (25.5, 75), (75, 100)}
    (one,) = [cell for cell in cells if cell["from"] == 25.5 and cell["low"] == 1.5]
    assert one["shown"] == pytest.approx(math.log10(2 * math.exp(-1.0)))
    assert len(training_charts.cells(run("a", 1.0), "cos")) == 14  # one has no meaning
    assert min(cell["low"] for cell in training_charts.cells(run("a", 1.0), "asymmetry")) == 0.5
    alone = training.Run("a", [{"step": 7, "cos": [0.1]}])
    assert [(cell["from"], cell["to"]) for cell in training_charts.cells(alone, "cos")] == [(6.5, 7.5)]


def test_the_page_holds_everything_and_shows_names_as_text():
    text = training.render([run("<b>plain</b>", 1.0), run("other", 0.1)])
    assert "<b>plain</b>" not in text
    assert "&lt;b&gt;plain" in text
    assert not re.search(r'(src|href)="https?:', text)
    payload, drawn = held(text, "diagnoses"), held(text, "drawn")
    assert list(drawn["panels"]) == ["hfc_lfc", "cos", "asymmetry"]
    assert payload["steps"] == [1, 50, 100]
    assert [one["name"] for one in payload["runs"]] == ["<b>plain</b>", "other"]


def test_many_snapshots_are_thinned_and_the_last_stays():
    rows = [{"step": step, "cos": [0.1, 0.2]} for step in range(1, 2001)]
    text = training.render([training.Run("long", rows)])
    payload = held(text, "diagnoses")
    assert len(payload["runs"][0]["rows"]) <= training.MOST_SNAPSHOTS + 1
    assert payload["runs"][0]["rows"][-1]["step"] == 2000
    assert "long: this page contains 401 of 2,000 snapshots" in text


def course(*values, metric="cos", every=100, name="plain"):
    return training.Run(name, [{"step": every * place, metric: [0.5, value]} for place, value in enumerate(values)])


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([course(0.41, 0.7, 0.93)], "Mean cosine after the last block rises from 0.41 to 0.93 over 200 steps"),
        ([course(0.414, 0.406, every=1)], "Mean cosine after the last block stays at 0.41 over 1 step"),
        ([course(0.41)], "Mean cosine after the last block is 0.41"),
        (
            [course(0.4, 0.9, 0.42)],
            "Mean cosine after the last block rises from 0.40 to 0.42 over 200 steps, "
            "with a maximum of 0.90 at step 100",
        ),
        ([course(None, 0.4, 0.5)], "Mean cosine after the last block rises from 0.40 to 0.50 over 100 steps"),
        (
            [course(0.1, 0.9), course(0.3, 0.3, name="a, b")],
            "Mean cosine after the last block ends highest in plain, at 0.90, and lowest in a, b, at 0.30",
        ),
        (
            [course(0.1, 0.4, name=f"r{place}") for place in range(1, 7)],
            "Mean cosine after the last block ends about equal in all 6 runs, at 0.40",
        ),
        (
            [course(0.1, 0.4, name="a"), course(None, None, name="b")],
            "Mean cosine after the last block of a rises from 0.10 to 0.40 over 100 steps",
        ),
        ([course(2.0, 0.5, metric="hfc_lfc")], "HFC/LFC after the last block falls from 2 to 0.5 over 100 steps"),
        (
            [course(9.0, 9.01, metric="effective_rank")],
            "Effective rank after the last block rises from 9 to 9.01 over 100 steps",
        ),
        ([course(0.5, 0.6, metric="asymmetry")], "2 snapshots of a training, without tokens"),
        ([course(None, None)], "2 snapshots of a training, without tokens"),
    ],
)
def test_the_headline_is_the_finding(runs, said):
    assert training_words.finding(runs) == said
    assert said in training.render(runs)


def test_a_title_says_what_it_is_and_of_which_run():
    title = re.compile("<title>(.*?)</title>")
    assert title.search(training.render([course(0.1, name="run")]))[1] == "Smoothing over training · oversmooth"
    assert title.search(training.render([course(0.1)]))[1] == "Smoothing over training: plain · oversmooth"
    one = training.Run("run", course(0.1, 0.2).rows, {"model": "ViT", "blocks": ["a"]})
    assert "ViT of 1 block · 2 snapshots, steps 0 to 100" in training.render([one])


def test_alarms_are_shown_with_their_thresholds_and_what_set_them_off():
    history = History()
    history.rows = course(0.2, 0.7, 0.5, metric="cos").rows
    history.about = {"name": "a run", "alarms": [Alarm("cos", above=0.6, depth=-1).settings()]}
    text = training.render([history])
    assert "mean cos above 0.6 after the last block" in text
    assert "step 100: mean cos is 0.7 after block 1, above 0.6" in text
    panels = held(text, "drawn")["panels"]["cos"]
    assert [row for row in rows_of(panels["depth"]) if row] == [{"depth": 1, "value": 0.6}]
    assert {"depth": 1, "value": 0.6} in rows_of(panels["time"])
    (crossed,) = [row for row in rows_of(panels["heat"]) if "text" in row]
    assert (crossed["step"], crossed["depth"], crossed["value"]) == (100, 1, 0.7)
    history.about["alarms"] = [{"metric": "cos", "over": 1}]
    with pytest.raises(InputError, match=r"the history has the alarm .*; remove it"):
        training.render([history])
    history.about["alarms"] = [Alarm("cos", falls_by=2.0).settings()]
    text = training.render([history])
    assert "did not go off" in text
    limits = rows_of(held(text, "drawn")["panels"]["cos"]["depth"])
    assert [row["value"] for row in limits if row] == [0.25, 0.1]


@browser.needed
def test_ends_of_lines_are_labelled_apart(chromium, tmp_path):
    runs = [course(0.1, end, name=f"run {end}") for end in (0.5, 0.501, 0.502)]
    training.save(runs, tmp_path / "training.html")
    chromium.open(tmp_path / "training.html")
    chromium.wait("document.body.dataset.ready === 'yes'")
    labels = """[...document.querySelectorAll('#last-block text')].filter((one) => one.textContent === '0.50')
        .map((one) => one.getBoundingClientRect().top)"""
    tops = sorted(chromium.run(labels))
    assert len(tops) == 3
    assert min(b - a for a, b in itertools.pairwise(tops)) > 10


@pytest.mark.parametrize("ending", some(["svg", "png", "pdf"], 3))
def test_still_figures(ending, tmp_path):
    training.figures([run("a", 1.0), run("b", 0.5)], tmp_path / f"still.{ending}", "hfc_lfc")
    begins = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<svg"}[ending]
    assert (tmp_path / f"still.{ending}").read_bytes().startswith(begins)


def test_bad_input_gets_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no snapshots yet"):
        training.render([training.Run("a", [])])
    with pytest.raises(InputError, match="a training report shows 1 to 6 runs and 0 were given"):
        training.render([])
    with pytest.raises(InputError, match="'rank' was not recorded; choose one of hfc_lfc"):
        training.figures([run("a", 1.0)], tmp_path / "a.png", "rank")


@browser.needed
@pytest.mark.parametrize(("width", "dark"), some([(390, False), (1280, True), (1280, False)], 3))
def test_it_plays_in_a_browser(width, dark, tmp_path):
    training.save([run("plain", 1.0), run("steered", 0.1)], tmp_path / "training.html")
    with browser.browser(tmp_path) as page:
        page.open(tmp_path / "training.html", width, 900, dark)
        page.wait("document.body.dataset.ready === 'yes'")
        assert page.run("document.body.dataset.step") == "100"
        page.run("document.getElementById('time').value = '0'")
        page.run("document.getElementById('time').dispatchEvent(new Event('input'))")
        assert page.run("document.body.dataset.step") == "1"
        page.run("document.getElementById('keep').click()")
        assert page.run("document.getElementById('clear').hidden") is False
        drawn = page.run("[...document.querySelectorAll('.chart')].every((c) => c.querySelector('svg path'))")
        assert drawn is True
        assert page.run("document.documentElement.scrollWidth") <= width
        page.run("document.getElementById('time').focus()")
        page.press("ArrowRight")  # the clock goes by keyboard
        page.wait("document.body.dataset.step === '50'")
        assert page.run("location.hash") == "#step=50&kept=1"
        page.run("document.querySelector('#runs-legend button').click()")
        assert page.run("document.getElementById('heat-cos-0').closest('figure').hidden") is True
        page.run("document.querySelector('#last-block .enlarge').click()")
        page.wait("document.querySelector('dialog[open] .chart svg path') !== null")
        page.run("document.getElementById('large-close').click()")
        page.wait("document.querySelector('#last-block .chart svg path') !== null")
        assert page.complaints() == []
        assert [url for url in page.requests() if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_metric_that_was_never_a_number_leaves_an_empty_map(tmp_path):
    nothing = training.Run("a", [{"step": step, "hfc_lfc": [None, None], "cos": [None, 0.5]} for step in (1, 2)])
    training.save([nothing], str(tmp_path / "training.html"))
    assert (tmp_path / "training.html").stat().st_size > 1000
    assert training_charts.cells(nothing, "hfc_lfc") == []
    training.figures([nothing], str(tmp_path / "map.svg"), "hfc_lfc")
    assert "<svg" in (tmp_path / "map.svg").read_text()
    with pytest.raises(InputError, match="a run is 3; give a History"):
        training.figures([3], tmp_path / "map.svg")
