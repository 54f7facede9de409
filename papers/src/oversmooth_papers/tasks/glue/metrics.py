"""The published metrics of GLUE and SuperGLUE, as pure functions of what was found and what is right."""

from __future__ import annotations

import math
from collections.abc import Sequence

Numbers = Sequence[float]


def accuracy(found: Sequence[int], right: Sequence[int]) -> float:
    """Share that agree."""
    return sum(one == other for one, other in zip(found, right, strict=True)) / len(right)


def f1(found: Sequence[int], right: Sequence[int], positive: int = 1) -> float:
    """Of one class: 2tp/(2tp + fp + fn), and 0 where it is neither found nor there."""
    pairs = list(zip(found, right, strict=True))
    true = sum(one == other == positive for one, other in pairs)
    false = sum((one == positive) != (other == positive) for one, other in pairs)
    return 2 * true / (2 * true + false) if true or false else 0.0


def macro_f1(found: Sequence[int], right: Sequence[int]) -> float:
    """The mean of `f1` over classes that are found or there."""
    classes = sorted({*found, *right})
    return sum(f1(found, right, each) for each in classes) / len(classes)


def matthews(found: Sequence[int], right: Sequence[int]) -> float:
    """Matthews' correlation of two classes, 0 where one of the two is constant."""
    pairs = list(zip(found, right, strict=True))
    tp, tn = sum(a == b == 1 for a, b in pairs), sum(a == b == 0 for a, b in pairs)
    fp, fn = sum((a, b) == (1, 0) for a, b in pairs), sum((a, b) == (0, 1) for a, b in pairs)
    size = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return (tp * tn - fp * fn) / size if size else 0.0


def pearson(found: Numbers, right: Numbers) -> float:
    """Pearson's correlation, 0 where one of the two is constant."""
    n = len(right)
    mean_found, mean_right = math.fsum(found) / n, math.fsum(right) / n
    a, b = [x - mean_found for x in found], [y - mean_right for y in right]
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size if size else 0.0


def spearman(found: Numbers, right: Numbers) -> float:
    """Pearson's correlation of ranks; equal values share the mean of theirs."""
    return pearson(_ranks(found), _ranks(right))


def exact_match(found: Sequence[int], right: Sequence[int], groups: Sequence[int]) -> float:
    """Share of groups all of whose members agree: MultiRC's questions."""
    whole: dict[int, bool] = {}
    for one, other, group in zip(found, right, groups, strict=True):
        whole[group] = whole.get(group, True) and one == other
    return sum(whole.values()) / len(whole)


def _ranks(values: Numbers) -> list[float]:
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks, begin = [0.0] * len(values), 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for index in order[begin : end + 1]:
            ranks[index] = (begin + end) / 2
        begin = end + 1
    return ranks
