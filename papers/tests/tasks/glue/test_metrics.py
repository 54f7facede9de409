"""GLUE's metrics against scipy, and against counts of whole tables of outcomes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from oversmooth_papers.tasks.glue import metrics

CLASSES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30)
BINARY = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)
NUMBERS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=3, max_size=30)


def table(pairs, size):
    counts = np.zeros((size, size))
    for found, right in pairs:
        counts[found, right] += 1
    return counts


@given(CLASSES)
def test_accuracy_and_macro_f1(pairs):
    found, right = zip(*pairs, strict=True)
    counts = table(pairs, 3)
    assert metrics.accuracy(found, right) == pytest.approx(np.trace(counts) / counts.sum())
    each = []
    for k in range(3):
        if counts[k].sum() + counts[:, k].sum():
            precision = counts[k, k] / counts[k].sum() if counts[k].sum() else 0
            recall = counts[k, k] / counts[:, k].sum() if counts[:, k].sum() else 0
            each.append(2 * precision * recall / (precision + recall) if precision + recall else 0)
    assert metrics.macro_f1(found, right) == pytest.approx(np.mean(each))


@given(BINARY)
def test_matthews_is_the_correlation_of_the_two_columns(pairs):
    found, right = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    if found.std() == 0 or right.std() == 0:
        assert metrics.matthews(found, right) == 0
    else:
        assert metrics.matthews(found, right) == pytest.approx(stats.pearsonr(found, right).statistic, abs=1e-12)


@given(NUMBERS)
def test_correlations_are_scipys(pairs):
    found, right = zip(*pairs, strict=True)
    if len(set(found)) == 1 or len(set(right)) == 1:
        assert metrics.pearson(found, right) == metrics.spearman(found, right) == 0
        return
    assert metrics.pearson(found, right) == pytest.approx(stats.pearsonr(found, right).statistic, abs=1e-9)
    assert metrics.spearman(found, right) == pytest.approx(stats.spearmanr(found, right).statistic, abs=1e-9)


def test_exact_match_wants_all_answers_of_a_question():
    assert metrics.exact_match([1, 0, 1, 1], [1, 0, 1, 0], [7, 7, 8, 8]) == 0.5
    assert metrics.f1([0, 0], [0, 0]) == 0.0
    assert math.isclose(metrics.f1([1, 1, 0], [1, 0, 1]), 0.5)
