"""How large a page of large models is."""

import base64

import numpy
from support.nightly import nightly
from support.report_example import example, held

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


def test_a_page_of_as_many_models_as_it_shows_holds_everything():
    found = several(page.MOST_MODELS)
    assert held(page.render(found), "diagnoses") == [one.to_dict() for one in found]


@nightly
def test_six_large_models_fit():
    found = several(page.MOST_MODELS, layers=48, heads=32, groups=256)
    assert len(page.render(found).encode()) < 24_000_000
