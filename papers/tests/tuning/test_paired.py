"""Paired comparisons against scipy, and what could be seen at all against simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from oversmooth.steering import AttnScale
from oversmooth_papers.tuning import Answers, Outcome, report
from oversmooth_papers.tuning.paired import (
    compare_right,
    mcnemar,
    mean_difference,
    smallest_detectable,
)

answers = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200)


@given(answers)
def test_the_difference_and_its_error_are_those_of_numbers_1_0_and_minus_1(pairs):
    before, after = zip(*pairs, strict=True)
    compared = compare_right(before, after)
    differences = np.array(after, float) - np.array(before, float)
    assert compared["difference"] == pytest.approx(differences.mean(), abs=1e-12)
    error = compared["standard_error"]
    assert error == pytest.approx(differences.std(ddof=0) / math.sqrt(len(pairs)), abs=1e-9)
    theirs = stats.norm.interval(0.95, differences.mean(), error or 1e-300)
    assert compared["interval"] == pytest.approx(theirs, abs=1e-9)
    assert (compared["before"], compared["after"]) == pytest.approx((np.mean(before), np.mean(after)))
    assert compared["gained"] + compared["lost"] == np.abs(differences).sum()


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_exact_test_is_the_binomial_one(gained, lost):
    theirs = stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(theirs, rel=1e-9)


def test_a_p_value_beyond_floats_is_small_and_not_an_error():
    assert 0 <= mcnemar(5000, 0) < 1e-300


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=2, max_size=60))
def test_the_mean_difference_is_scipys_paired_t(pairs):
    before, after = (np.array(column) for column in zip(*pairs, strict=True))
    ours = mean_difference(before.tolist(), after.tolist())
    differences = after - before
    if differences.std() < 1e-9:
        assert ours["difference"] == pytest.approx(differences.mean(), abs=1e-9)
        return
    theirs = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert ours["interval"] == pytest.approx((theirs.low, theirs.high), rel=1e-7, abs=1e-9)
    assert (ours["before"], ours["after"]) == pytest.approx((before.mean(), after.mean()))


def test_the_smallest_detectable_difference_is_detected_in_four_of_five_simulated_cases():
    images, discordance = 1000, 0.05
    difference = smallest_detectable(images, discordance)
    draw = np.random.default_rng(0)
    better, worse = (discordance + difference) / 2, (discordance - difference) / 2
    counts = draw.multinomial(images, [better, worse, 1 - discordance], size=4000)
    gained, lost = counts[:, 0].astype(float), counts[:, 1].astype(float)
    detected = np.abs(gained - lost) / np.sqrt(gained + lost) > stats.norm.ppf(0.975)
    assert 0.77 < detected.mean() < 0.85
    assert difference == pytest.approx((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * math.sqrt(discordance / images))


def test_where_no_answer_changed_nothing_is_known_of_what_would_show():
    assert smallest_detectable(1000, 0.0) is None
    same = Answers([True, False, True], [0.1, 2.0, 0.3])
    outcome = Outcome(AttnScale(), same, same, {}).to_dict()
    assert outcome["accuracy"]["smallest_detectable"] is None
    assert report.row(outcome)[3] == "0.0 (no answer changed)"
