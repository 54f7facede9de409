"""What follows from a diagnosis, as values: how tokens end, which sublayer does it, how predictions compare."""

import math
from dataclasses import replace

import pytest
from support.verdict_cases import ENTRY, block, diagnosis, dominance

from oversmooth.results.findings import agreement, compared, ends, exponent, sublayers
from oversmooth.results.parts import Course
from oversmooth.results.references import kind_of, references_for
from oversmooth.results.verdict import headline


@pytest.mark.parametrize(
    ("metric", "before", "after", "side"),
    [
        ("hfc_lfc", 0.8, 0.4, 1),
        ("hfc_lfc", 0.4, 0.8, -1),
        ("hfc_lfc", 1.0, 0.994, 1),
        ("hfc_lfc", 1.0, 0.996, 0),
        ("hfc_lfc", 1.0, 1.004, 0),
        ("hfc_lfc", 1.0, 1.006, -1),
        ("hfc_lfc", 0.5, 0.0, 1),
        ("hfc_lfc", 0.0, 0.4, -1),
        ("hfc_lfc", 0.0, 0.0, 0),
        ("cos", 0.2, 0.815, 1),
        ("cos", -0.001, -0.004, 0),
        ("cos", -0.006, 0.004, 1),
        ("cos", 0.2, 0.1, -1),
        ("effective_rank", 61.25, 3.0, 1),
        ("effective_rank", 3.0, 4.0, -1),
    ],
)
def test_how_similar_tokens_end(metric, before, after, side):
    found = ends(diagnosis(block({metric: 7.0}), block({metric: after}), first={metric: before}))
    assert {name: (end.before, end.after, end.side) for name, end in found.items()} == {metric: (before, after, side)}


@pytest.mark.parametrize("metric", ["hfc_lfc", "cos", "effective_rank"])
def test_an_unknown_end_is_left_out(metric):
    known, unknown = {metric: 0.5}, {metric: None}
    for first, last in ((known, unknown), (unknown, known), (known, {}), ({}, known)):
        assert ends(diagnosis(block(last), first=first)) == {}


def test_ends_without_massive_tokens():
    last = block({"hfc_lfc": 4.0}, massive={"largest_ratio": 9.0, "positions": {}}, without_massive={"hfc_lfc": 1.0})
    found = diagnosis(last, first={"hfc_lfc": 2.0})
    assert (ends(found)["hfc_lfc"].side, ends(found, without_massive=True)["hfc_lfc"].side) == (-1, 1)


@pytest.mark.parametrize(
    ("blocks", "total", "strongest", "depth"),
    [
        ([dict(attention=-0.2, mlp=0.3, norm=0.0), dict(attention=-0.5, mlp=-0.1, norm=-0.001)], -0.5, "attention", 2),
        ([dict(attention=0.2, mlp=-0.1), dict(attention=0.5, mlp=-0.3)], 0.3, "attention", 2),
        ([dict(attention=0.5, mlp=-0.506)], -0.01, "mlp", 1),  # not what is largest, but what has the total's sign
        ([dict(attention=0.5, mlp=-0.496)], 0.0, "", 0),  # no change has no cause
        ([dict(attention=None, mlp=None), dict(attention=-0.1, mlp=None)], -0.1, "attention", 2),
    ],
)
def test_which_sublayer_does_it(blocks, total, strongest, depth):
    found = sublayers(diagnosis(*(block(**changes) for changes in blocks)))
    assert (found.total, found.strongest, found.depth) == (total, strongest, depth)
    assert sublayers(diagnosis(block(attention=None))) is None


@pytest.mark.parametrize(
    ("joined", "change", "agrees"),
    [
        (["smooth"], -0.1, True),
        (["smooth"], 0.1, False),
        (["smooth"], 0.0, False),  # no smoothing was seen
        (["rough"], 0.1, True),
        (["rough"], -0.1, False),
        (["rough"], 0.0, False),
        (["smooth", "smooth", "rough"], -0.1, True),
        (["smooth", "undecided", "undecided"], -0.1, True),  # what is undecided has no vote
        (["smooth", "tie"], -0.1, True),  # nor has a tie
        (["rough", "rough", "smooth", "tie"], 0.1, True),
    ],
)
def test_whether_attention_went_in_the_predicted_direction(joined, change, agrees):
    one = block(attention=change, dominance=dominance(joined=joined))
    assert agreement([block(), one]) == ((1, []) if agrees else (0, [2]))


def test_where_prediction_or_measurement_is_missing_nothing_is_compared():
    for one in (
        block(attention=-0.1),
        block(attention=-0.1, dominance=dominance(["smooth"])),
        block(attention=-0.1, dominance=dominance(joined=["undecided"])),
        block(attention=-0.1, dominance=dominance(joined=["tie", "tie"])),
        block(attention=-0.1, dominance=dominance(joined=["smooth", "rough"])),
        block(attention=None, dominance=dominance(joined=["smooth"])),
        block(mlp=-0.1, dominance=dominance(joined=["smooth"])),
    ):
        assert agreement([one]) == (0, [])


def falling(rate, blocks=24):
    """A course that falls by this factor per block."""
    return Course([float(i) for i in range(blocks + 1)], [i * math.log(rate) for i in range(blocks + 1)])


@pytest.mark.parametrize(
    ("verdict", "real", "judgement"),
    [
        ("smooth", 0.83, "right"),
        ("smooth", 0.999, "no decay"),
        ("smooth", 1.001, "no decay"),
        ("smooth", 1.1, "wrong sign"),
        ("rough", 1.1, "right"),
        ("rough", 0.9, "still falling"),
        ("tie", 0.9, "unknown"),
        ("undecided", 0.9, "unknown"),
    ],
)
def test_spectra_against_the_real_blocks(verdict, real, judgement):
    found = compared(replace(ENTRY, verdict=verdict, real=falling(real)))
    assert found.judgement == judgement
    assert found.real_rate == pytest.approx(real)
    assert (found.before, found.after, found.blocks) == (1.0, pytest.approx(real**24), 24)


@pytest.mark.parametrize(("way", "expected"), [("log time", -0.31), ("geometric", None), ("", None)])
def test_the_exponent_of_a_power_law(way, expected):
    course = Course([16.0, 32.0, 48.0], [1.0 - 0.31 * math.log(depth / 16) for depth in (16, 32, 48)])
    found = exponent(replace(ENTRY, way=way, predicted=course))
    assert found == (None if expected is None else pytest.approx(expected))
    assert exponent(replace(ENTRY, way=way)) is None


def test_a_fall_that_reaches_a_level_is_no_decay():
    level = Course([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, -2.0, -3.0, -3.0, -3.0])
    assert compared(replace(ENTRY, verdict="rough", real=level)).judgement == "levels off"


@pytest.mark.parametrize(
    "course", [None, Course([0.0], [0.0]), Course([0.0, 8.0], [0.0, None]), Course([0.0, 8.0], [None, 0.0])]
)
def test_courses_that_show_nothing(course):
    found = compared(replace(ENTRY, real=course))
    assert (found.judgement, found.before, found.real_rate) == ("unknown", None, None)


@pytest.mark.parametrize(
    ("kind", "causal", "expected"),
    [
        ("image", False, "vision encoder"),
        ("image", None, "vision encoder"),
        ("text", False, "text encoder"),
        ("text", True, "decoder"),
        ("text", None, None),
        ("other", False, None),
        (None, False, None),
    ],
)
def test_references_are_of_the_same_kind(kind, causal, expected):
    found = diagnosis(block())
    found.model |= {"causal": causal} | ({} if kind is None else {"input_kind": kind})
    assert kind_of(found) == expected
    assert {reference.kind for reference in references_for(found)} == ({expected} if expected else set())


@pytest.mark.parametrize(
    ("name", "ratio", "compared_with"),
    [
        ("mine", 0.5, {"MiniLM-L6", "MPNet-base", "chemistry ALBERT"}),
        ("m", 0.5, {"MiniLM-L6", "MPNet-base", "chemistry ALBERT"}),
        ("MiniLM", 0.5, {"MPNet-base", "chemistry ALBERT"}),
        ("minilm-l6", 0.5, {"MPNet-base", "chemistry ALBERT"}),
        ("another name", 0.6231, {"MPNet-base", "chemistry ALBERT"}),
    ],
)
def test_a_model_is_no_reference_for_itself(name, ratio, compared_with):
    found = diagnosis(block({"hfc_lfc": ratio}), first={"hfc_lfc": 1.0})
    found.model |= {"name": name, "input_kind": "text", "causal": False}
    assert {one for one in ("MiniLM-L6", "MPNet-base", "chemistry ALBERT") if one in headline(found)} == compared_with
