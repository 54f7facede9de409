"""GLUE's metrics against counts of whole tables of outcomes, and against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.glue.task import metric

CLASSES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30)
BINARY = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)
NUMBERS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=3, max_size=30)


def measured(name, found, right, groups=()):
    return metric(name, np.array(found), np.array(right, dtype=float), np.array(groups))


def f1_of(counts, k):
    precision = counts[k, k] / counts[k].sum() if counts[k].sum() else 0
    recall = counts[k, k] / counts[:, k].sum() if counts[:, k].sum() else 0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0


@given(CLASSES)
def test_accuracy_and_f1(pairs):
    found, right = zip(*pairs, strict=True)
    counts = np.zeros((3, 3))
    for pair in pairs:
        counts[pair] += 1
    assert measured("accuracy", found, right) == pytest.approx(np.trace(counts) / counts.sum())
    each = [f1_of(counts, k) for k in range(3) if counts[k].sum() + counts[:, k].sum()]
    assert measured("macro_f1", found, right) == pytest.approx(np.mean(each))
    if not counts[2].sum() + counts[:, 2].sum():
        assert measured("f1", found, right) == pytest.approx(f1_of(counts, 1))


@given(BINARY)
def test_matthews_is_the_correlation_of_the_two_columns(pairs):
    found, right = zip(*pairs, strict=True)
    assert measured("matthews", found, right) == pytest.approx(measured("pearson", found, right), abs=1e-12)


@given(NUMBERS)
def test_correlations_are_those_of_values_and_of_ranks(pairs):
    found, right = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    ranks = [(column[:, None] > column).sum(1) + (column[:, None] == column).sum(1) / 2 for column in (found, right)]
    for name, (a, b) in (("pearson", (found, right)), ("spearman", ranks)):
        constant = np.ptp(a) == 0 or np.ptp(b) == 0
        assert measured(name, found, right) == pytest.approx(0 if constant else np.corrcoef(a, b)[0, 1], abs=1e-9)


def test_exact_match_wants_all_answers_of_a_question():
    assert measured("exact_match", [1, 0, 1, 1], [1, 0, 1, 0], [7, 7, 8, 8]) == 0.5
    assert measured("f1", [0, 0], [0, 0]) == 0.0
    assert measured("f1", [1, 1, 0], [1, 0, 1]) == pytest.approx(0.5)


def test_without_sklearn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.metrics", None)
    with pytest.raises(InputError, match=r"testing on GLUE needs sklearn, .*install oversmooth-papers\[glue\]"):
        measured("f1", [0, 1], [0, 1])
