"""Words for every verdict that an extrapolation can have."""

from typing import get_args

import pytest
from support.report_example import example

from oversmooth.diagnosis.parts import Course, Extrapolation
from oversmooth.diagnosis.verdict import _further, _steered
from oversmooth.theory.stack import Verdict

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


def steered_as(least, greatest, room):
    found = example("m", layers=2)
    layers = [{"least": least, "greatest": greatest, "room": room}] * 2
    found.steering = {"verified": {"ok": True, "problems": [], "layers": layers, "doubts": []}}
    return _steered(found)


def test_a_smoothing_model_is_not_told_about_sharpening_for_a_rounding_error():
    said = steered_as(-3.86e-18, 0.886, 1.0)
    assert "from 0 to 0.886 in 2 layers, none below zero, so none sharpens." in said
    assert "from -0.9 to 0 in 2 layers, 0.1 from where sharpening could turn" in steered_as(-0.9, 2e-19, 0.1)
    assert "sharpen" not in steered_as(-0.5, 0.5, None)
