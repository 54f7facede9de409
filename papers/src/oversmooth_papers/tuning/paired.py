"""Two classifiers on the same images: the difference, its interval, the exact test, and what could be seen at all.

An image on which both are right, or both wrong, says nothing about which is better. What counts are the images that
were gained, b, and those that were lost, c (McNemar 1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

ASSUMED_DISCORDANCE = 0.05
"""Share of images whose answer changes from right to wrong or back, where nothing is known of it yet."""
POWER = 0.8
_TAIL = 0.975  # of an interval of 95 %
_Z = NormalDist().inv_cdf(_TAIL)


@dataclass(frozen=True)
class Comparison:
    """Right and wrong before and after, image by image."""

    images: int
    right_before: int
    right_after: int
    gained: int
    """b: wrong before and right after."""
    lost: int
    """c: right before and wrong after."""

    @property
    def difference(self) -> float:
        """Of the accuracies, after less before: ``(b − c)/n``."""
        return (self.gained - self.lost) / self.images

    @property
    def standard_error(self) -> float:
        """``√(b + c − (b − c)²/n)/n``: that of the mean of n numbers, each 1, 0 or −1."""
        spread = self.gained + self.lost - (self.gained - self.lost) ** 2 / self.images
        return math.sqrt(max(spread, 0.0)) / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """Of 95 %, by the normal distribution."""
        return self.difference - _Z * self.standard_error, self.difference + _Z * self.standard_error

    @property
    def discordance(self) -> float:
        """Share of images whose answer changed between right and wrong."""
        return (self.gained + self.lost) / self.images

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test, two-sided: gains and losses are equally likely."""
        changed, fewer = self.gained + self.lost, min(self.gained, self.lost)
        total = sum(math.comb(changed, k) for k in range(fewer + 1))  # whole numbers: no rounding until the end
        return min(1.0, 2 * total / 2**changed)


def compare_right(before: Sequence[bool], after: Sequence[bool]) -> Comparison:
    """Count the gained and the lost: for each image, whether the first classifier is right, and the second.

    >>> compare_right([True, False, False], [True, True, False]).gained
    1
    """
    pairs = [(bool(b), bool(a)) for b, a in zip(before, after, strict=True)]
    return Comparison(
        images=len(pairs),
        right_before=sum(b for b, _ in pairs),
        right_after=sum(a for _, a in pairs),
        gained=sum(a and not b for b, a in pairs),
        lost=sum(b and not a for b, a in pairs),
    )


@dataclass(frozen=True)
class MeanDifference:
    """Of paired numbers: means before and after, and the difference with its 95 % interval by Student's t."""

    before: float
    after: float
    difference: float
    interval: tuple[float, float]


def mean_difference(before: Sequence[float], after: Sequence[float]) -> MeanDifference:
    """The mean of ``after − before`` over two images or more, and its interval."""
    n = len(before)
    differences = [a - b for b, a in zip(before, after, strict=True)]
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    half = student_quantile(_TAIL, n - 1) * math.sqrt(variance / n)
    return MeanDifference(math.fsum(before) / n, math.fsum(after) / n, mean, (mean - half, mean + half))


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
