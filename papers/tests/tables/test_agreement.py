"""The rule of agreement, against scipy's t intervals."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from oversmooth_papers.tables.agreement import agrees, agrees_in_sign, interval

SEEDS = st.lists(st.floats(20, 40).map(lambda value: round(value, 2)), min_size=2, max_size=8)


@given(SEEDS)
def test_intervals_are_those_of_students_t(values):
    low, high = interval(values)
    spread = statistics.stdev(values)
    if spread == 0:
        assert low == high == values[0]
        return
    expected = stats.t.interval(0.95, len(values) - 1, loc=statistics.fmean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected, rel=1e-6)


@given(SEEDS, st.floats(20, 40))
def test_a_figure_agrees_where_the_whole_interval_does(values, published):
    low, high = (end - published for end in interval(values))
    inside = max(abs(low), abs(high)) <= 1.5
    outside = min(abs(low), abs(high)) > 1.5 and low * high > 0
    assert agrees(values, published) == ("yes" if inside else "no" if outside else "inconclusive")


def test_what_few_seeds_show():
    assert agrees([33.0 - 0.61, 33.0, 33.0 + 0.61], 33.0) == "inconclusive"
    assert agrees([33.0 - 0.59, 33.0, 33.0 + 0.59], 33.0) == "yes"
    assert agrees([33.0], 33.0) == "inconclusive"  # one shows no more than a sign
    assert [agrees_in_sign([gain], 0.84) for gain in (1.4, -1.4)] == ["in sign", "opposite sign"]
    assert agrees([], 1.0) == agrees_in_sign([], 1.0) == "missing"


@given(SEEDS, st.floats(20, 40))
def test_signs(values, origin):
    differences = [value - origin for value in values]
    low, high = interval(differences)
    verdict = "yes" if low > 0 else "no" if high < 0 else "inconclusive"
    assert agrees_in_sign(differences, 2.0) == verdict
    opposite = {"yes": "no", "no": "yes", "inconclusive": "inconclusive"}
    assert agrees_in_sign(differences, -2.0) == opposite[verdict]
