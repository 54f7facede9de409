"""Two classifiers on the same images: the difference, its interval, the exact test, and what could be seen at all.

An image on which both are right, or both wrong, says nothing about which is better. What counts are the images that
were gained, b, and those that were lost, c (McNemar 1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

ASSUMED_DISCORDANCE = 0.05
"""Share of images whose answer changes from right to wrong or back, where nothing is known of it yet."""
POWER = 0.8
_TAIL = 0.975  # of an interval of 95 %
_Z = NormalDist().inv_cdf(_TAIL)


def compare_right(before: Sequence[bool], after: Sequence[bool]) -> dict[str, Any]:
    """For each image, whether the first classifier is right and whether the second is: accuracies and what changed.

    The standard error ``√(b + c − (b − c)²/n)/n`` is that of the mean of n numbers, each 1, 0 or −1; the interval, of
    95 %, is by the normal distribution.

    >>> compare_right([True, False, False], [True, True, False])["gained"]
    1
    """
    n = len(before)
    gained = sum(bool(a and not b) for b, a in zip(before, after, strict=True))
    lost = sum(bool(b and not a) for b, a in zip(before, after, strict=True))
    difference = (gained - lost) / n
    error = math.sqrt(max(gained + lost - (gained - lost) ** 2 / n, 0.0)) / n
    return {
        "before": sum(map(bool, before)) / n,
        "after": sum(map(bool, after)) / n,
        "difference": difference,
        "standard_error": error,
        "interval": [difference - _Z * error, difference + _Z * error],
        "gained": gained,
        "lost": lost,
        "p_value": mcnemar(gained, lost),
        "smallest_detectable": smallest_detectable(n, (gained + lost) / n),
    }


def mcnemar(gained: int, lost: int) -> float:
    """Of McNemar's exact test, two-sided: gains and losses are equally likely."""
    total = sum(math.comb(gained + lost, k) for k in range(min(gained, lost) + 1))  # whole numbers, not yet rounded
    return min(1.0, 2 * total / 2 ** (gained + lost))


def mean_difference(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """Means of numbers for two images or more, and of ``after − before`` with its 95 % interval by Student's t."""
    n = len(before)
    differences = [a - b for b, a in zip(before, after, strict=True)]
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    half = student_quantile(_TAIL, n - 1) * math.sqrt(variance / n)
    means = {"before": math.fsum(before) / n, "after": math.fsum(after) / n, "difference": mean}
    return {**means, "interval": [mean - half, mean + half]}


def smallest_detectable(images: int, discordance: float = ASSUMED_DISCORDANCE) -> float | None:
    """The difference of accuracies that n images show, at the 5 % level, in 80 % of cases: ``2.80 √(d/n)``.

    d is the share of images whose answer changes; 2.80 is 1.96 + 0.84, quantiles of the normal distribution. A
    difference is never larger than d, so what exceeds d cannot be seen with so few images. Where d is 0 no answer
    changed, and what would show is not known: None.

    >>> round(smallest_detectable(1000), 4)
    0.0198
    """
    return (_Z + NormalDist().inv_cdf(POWER)) * math.sqrt(discordance / images) if discordance else None


def student_quantile(share: float, freedom: int) -> float:
    """Where Student's t with so many degrees of freedom has this share below it; share ½ to 1.

    >>> round(student_quantile(0.975, 10), 3)
    2.228
    """
    from scipy import stats

    return float(stats.t.ppf(share, freedom))
