"""Two classifiers on the same images: the difference, its interval, the exact test, and what could be seen at all.

An image on which both are right, or both wrong, says nothing about which is better. What counts are the images that
were gained, b, and those that were lost, c (McNemar 1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

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
    """Count the gained and the lost.

    Args:
        before: for each image, whether the first classifier is right.
        after: the same of the second, in the same order.

    Raises:
        InputError: there are none, or not as many of the one as of the other.

    >>> compare_right([True, False, False], [True, True, False]).gained
    1
    """
    if len(before) != len(after) or not before:
        raise InputError(
            f"{len(before):,} answers before and {len(after):,} after cannot be compared; give as many of each, some"
        )
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
    """The mean of ``after − before`` and its interval.

    Args:
        before: a number for each image.
        after: the same of the second classifier, in the same order.

    Raises:
        InputError: there are fewer than two, or not as many of the one as of the other.
    """
    n = len(before)
    if n != len(after) or n < 2:
        raise InputError(
            f"{n:,} numbers before and {len(after):,} after cannot be compared; give as many of each, 2 or more"
        )
    differences = [a - b for b, a in zip(before, after, strict=True)]
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    half = student_quantile(_TAIL, n - 1) * math.sqrt(variance / n)
    return MeanDifference(math.fsum(before) / n, math.fsum(after) / n, mean, (mean - half, mean + half))


def smallest_detectable(images: int, discordance: float = ASSUMED_DISCORDANCE) -> float | None:
    """The difference of accuracies that n images show, at the 5 % level, in 80 % of cases: ``2.80 √(d/n)``.

    d is the share of images whose answer changes; 2.80 is 1.96 + 0.84, quantiles of the normal distribution. A
    difference is never larger than d, so what exceeds d cannot be seen with so few images.

    Args:
        images: how many, n.
        discordance: d. Where it is 0 no answer changed, and what would show is not known: None.

    >>> round(smallest_detectable(1000), 4)
    0.0198
    """
    arguments.whole(images, "images", least=1)
    arguments.number(discordance, "discordance", "give a share, 0 to 1", least=0.0, most=1.0)
    if discordance == 0:
        return None
    return (_Z + NormalDist().inv_cdf(POWER)) * math.sqrt(discordance / images)


def student_quantile(share: float, freedom: int) -> float:
    """Where Student's t with so many degrees of freedom has this share below it; share ½ to 1.

    >>> round(student_quantile(0.975, 10), 3)
    2.228
    """
    from scipy import stats

    return float(stats.t.ppf(share, freedom))
