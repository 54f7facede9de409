"""A page of many large models stays small: what is taken out for that, and that it is said."""

import base64

import numpy
from support.nightly import nightly
from support.report_example import example, held

from oversmooth import Diagnosis
from oversmooth.report import page


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


def test_a_page_of_many_models_says_what_was_taken_out_and_holds_the_rest():
    found = several(6)
    assert held(page.render(found), "diagnoses") == [one.to_dict() for one in found]
    found.append(example("one more", 3, 2, 16))
    text = page.render(found)
    assert "This page lacks tokens; one of up to 6 models contains them." in text
    assert 'id="tokens"' not in text  # the section has nothing to show
    for one, entry in zip(found, held(text, "diagnoses"), strict=True):
        assert entry == one.to_dict() | {"one_input": None}
        Diagnosis.from_dict(entry)  # what the page offers for download can be read


@nightly
def test_twenty_four_large_models_fit():
    found = several(24, layers=48, heads=32, groups=256)
    assert len(page.render(found).encode()) < 12_000_000
