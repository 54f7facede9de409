"""Words for every verdict that an extrapolation can have."""

from typing import get_args

import pytest

from oversmooth.diagnosis import Course, Extrapolation
from oversmooth.theory.stack import Verdict
from oversmooth.verdict import _further

WORDS = ("smooth", "rough", "tie", "undecided")


@pytest.mark.parametrize("said", WORDS)
@pytest.mark.parametrize("seen", ["smooth", "rough", "open"])
def test_every_verdict_has_words(said, seen):
    course = Course([0.0, 4.0], [0.5, 0.25])
    rate = 0.9 if said == "smooth" else None
    entry = Extrapolation("stack", 0, 1.1, 1.0, said, rate, 1e-6, "observed", course, seen, None)
    text = _further(entry)
    assert ("smoothing, in the end × 0.9" in text) == (said == "smooth")
    assert ("nearer to one another than they are known" in text) == (said == "undecided")
    assert ("simulated, agrees" in text) == (said == seen)


def test_these_are_all():
    assert get_args(Verdict) == WORDS
