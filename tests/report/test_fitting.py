"""A page of many large models stays below 8 MB: what is taken out for that, and that it is said."""

import base64

import numpy
import pytest
from support.nightly import nightly
from support.report_example import example, held

from oversmooth import Diagnosis
from oversmooth.report import fitting, page


def several(count=4, layers=3, heads=2, head_dim=16, groups=80):
    found = [example(f"model {i}", layers, heads, head_dim, inputs=16, seed=i) for i in range(count)]
    for place, one in enumerate(found):
        draw, shown = numpy.random.default_rng(place), one.one_input
        shown.grid, shown.leading, shown.picture, shown.kind = None, 0, None, "text"
        shown.groups = shown.tokens = groups
        shown.labels = [f"w{i}" for i in range(groups)]
        shown.similarity = [coded(draw, groups * (groups - 1) // 2) for _ in one.layers]
        shown.received = [coded(draw, heads * groups) for _ in one.layers[1:]]
    return found


def coded(draw, count):
    return base64.b64encode(draw.integers(0, 256, count).astype("uint8").tobytes()).decode()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (10_000_000, []),
        (100_000, ["The tokens of model 3 do not fit in this page; a page of fewer models contains them"]),
        (30_000, ["lacks ρ rough and the verdicts of single inputs", "tokens of 4 of 4 models"]),
    ],
)
def test_what_does_not_fit_is_taken_out_in_order_and_said(limit, said, monkeypatch):
    found = several()
    before = [one.to_dict() for one in found]
    data = [one.to_dict() for one in found]
    monkeypatch.setattr(fitting, "MOST_BYTES", limit)
    monkeypatch.setattr(fitting, "_APART", 0)
    text = " ".join(fitting.fit(data, 0))
    assert all(words in text for words in said), text
    assert bool(text) == bool(said)
    for entry in data:
        Diagnosis.from_dict(entry)  # what the page offers for download can be read
    assert [one.to_dict() for one in found] == before


def test_a_page_says_what_was_taken_out_and_holds_the_rest(monkeypatch):
    found = several(2)
    assert held(page.render(found), "diagnoses") == [one.to_dict() for one in found]
    monkeypatch.setattr(fitting, "MOST_BYTES", 1)
    text = page.render(found)
    assert "The tokens of model 0, model 1" in text
    assert held(text, "diagnoses")[0]["one_input"] is None
    assert 'id="tokens"' not in text  # the section has nothing to show


@nightly
def test_twenty_four_large_models_fit():
    found = several(24, layers=48, heads=32, groups=256)
    assert len(page.render(found).encode()) < fitting.MOST_BYTES
