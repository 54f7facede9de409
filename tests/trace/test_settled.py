"""What a simulated course shows at its end, on courses that are known."""

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from oversmooth.diagnosis.extrapolate import _settled

DEPTH = torch.arange(0, 97, 4.0)


def said(log_ratio):
    return _settled(SimpleNamespace(log_hfc_lfc=log_ratio[:, None], depth=DEPTH))


@given(st.floats(0.02, 1.0), st.floats(-3, 3))
def test_a_steady_fall_is_smoothing(rate, start):
    assert said(start - rate * DEPTH) == "smooth"


@given(st.floats(0.3, 5.0), st.floats(-3, 3))
def test_a_fall_like_a_power_tells_nothing(power, start):
    """So falls what is divided by a constant part that a bias feeds, and no eigenvalue."""
    assert said(start - power * (1 + DEPTH).log()) != "smooth"


@given(st.floats(-3, 3), st.floats(0, 0.1))
def test_a_level_or_a_rise_is_none(start, rise):
    assert said(start + rise * DEPTH + torch.exp(-DEPTH)) == "rough"
