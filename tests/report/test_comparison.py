"""Diagnoses from Python and in notebooks."""

import sys

import pytest
from support.report_example import example, rows_of

import oversmooth
from oversmooth import InputError, compare
from oversmooth.metrics import METRICS


@pytest.fixture(scope="module")
def two():
    return [example("<one>", layers=2, heads=1, head_dim=2), example("other", layers=3, heads=1, head_dim=2, seed=1)]


@pytest.mark.parametrize("name", ["hfc_lfc", "cos", "effective_rank"])
def test_a_plot_of_a_metric_has_its_numbers_and_a_title(two, name):
    spec = two[0].plot(name).to_dict()
    values = [row["value"] for row in rows_of(spec) if row.get("value") is not None]
    assert values == two[0].curve(name)
    assert spec["title"]["text"] == f"{METRICS[name].label} over depth"
    assert spec["title"]["subtitle"] == "<one>"
    both = [row["model"] for row in rows_of(compare(*two).plot(name).to_dict()) if row.get("value") is not None]
    assert sorted(set(both)) == ["<one>", "other"]


def test_a_plot_is_shown_by_notebooks_and_saves_itself(two, tmp_path):
    made = two[0].plot()
    assert made._repr_svg_().startswith("<svg")
    made.save(tmp_path / "curves.svg")
    assert "Tokens over depth" in (tmp_path / "curves.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["hfc-lfc", "log_hfc", None, 3])
def test_plots_that_do_not_exist(two, name):
    with pytest.raises(InputError, match=r"there is no plot .*; choose one of hfc_lfc, cos, .*curves"):
        two[0].plot(name)


def test_plots_without_data(two):
    with pytest.raises(InputError, match="these diagnoses have no data for accuracy; choose another plot"):
        two[0].plot("accuracy")


def test_a_notebook_shows_the_finding_the_chart_and_a_table(two):
    shown = two[0]._repr_html_()
    assert "&lt;one&gt; smooths" in shown
    assert "<one>" not in shown
    assert "<svg" in shown
    assert shown.count("<tr>") == 2
    together = compare(*two)._repr_html_()
    assert together.count("<tr>") == 3
    assert "comparison.to_html" in together


def test_a_page_of_several(two, tmp_path):
    together = compare(*two)
    together.to_html(tmp_path / "page.html")
    assert "Mean cosine ends" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert list(together) == two
    assert len(together) == 2
    assert repr(together) == "<Comparison of <one>, other>"
    with pytest.raises(InputError, match=r"\.html"):
        together.to_html(tmp_path / "page.txt")


def test_a_table_of_several(two):
    pandas = pytest.importorskip("pandas")
    table = compare(two[0], two[0], two[1]).to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.groupby("model", sort=False).size().items()) == [("<one>", 3), ("<one> (2)", 3), ("other", 4)]


def test_what_cannot_be_compared(two):
    with pytest.raises(InputError, match="give two or more"):
        compare()
    with pytest.raises(InputError, match=r"argument 2 is .*; give diagnoses, one by one"):
        compare(two[0], [two[1]])


def test_it_is_found_by_its_name_alone():
    assert oversmooth.compare is sys.modules["oversmooth.report.comparison"].compare
    assert "compare" in dir(oversmooth)
