"""The one rule by which a figure of ours agrees with a published one; docs/results.md states it for readers.

It rests on the 95 % interval of our mean by Student's t. How many seeds are behind a published figure is seldom known,
so its own uncertainty does not enter; that makes "no" somewhat too easy and "yes" somewhat too hard.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

POINTS = 1.5
"""Of accuracies, mIoU and shares in %: how far ours may lie from the published figure."""
MISSING = "missing"
INCONCLUSIVE = "inconclusive"


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean, 95 %, by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    from oversmooth_papers.tuning.paired import student_quantile  # imports torch

    half = student_quantile(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def interval_text(values: Sequence[float]) -> str:
    """With signs; a dash for fewer than two values."""
    return "–" if (ends := interval(values)) is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}"


def agrees(ours: Sequence[float], published: float) -> str:
    """Whether our figure, over seeds, is the published one: yes, no, inconclusive or missing.

    >>> agrees([33.35, 33.74, 33.0], 32.47), agrees([36.1, 36.2, 36.0], 32.47), agrees([33.35], 32.47)
    ('inconclusive', 'no', 'inconclusive')
    """
    if not ours:
        return MISSING
    if (ends := interval(ours)) is None:
        return INCONCLUSIVE
    low, high = (end - published for end in ends)
    if low >= -POINTS and high <= POINTS:
        return "yes"
    return "no" if high < -POINTS or low > POINTS else INCONCLUSIVE


def agrees_in_sign(differences: Sequence[float], claimed: float) -> str:
    """Whether our difference, over seeds, has the sign that was claimed.

    >>> agrees_in_sign([1.4, 1.2, 1.6], 1), agrees_in_sign([1.4], 1), agrees_in_sign([1.4], -1)
    ('yes', 'in sign', 'opposite sign')
    """
    if not differences:
        return MISSING
    if (ends := interval(differences)) is None:
        sign = differences[0] * claimed
        return "in sign" if sign > 0 else "opposite sign" if sign < 0 else INCONCLUSIVE
    low, high = sorted(end if claimed > 0 else -end for end in ends)
    return "yes" if low > 0 else "no" if high < 0 else INCONCLUSIVE
