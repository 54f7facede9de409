"""What a page says first."""

import pytest
from support.report_example import example

from oversmooth.report import headline
from oversmooth.report.charts import base as charts
from oversmooth.report.style import PAGE, sentence


def models(*ends, begin=0.25, names=None, **facts):
    found = []
    for place, end in enumerate(ends):
        one = example((names or "ABCDEFGH")[place], layers=2, heads=1, head_dim=2)
        one.layers[0].tokens["cos"], one.layers[-1].tokens["cos"] = begin, end
        one.model |= {name: values[place] for name, values in facts.items()}
        found.append(one)
    return charts.shown(found, PAGE)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([0.926], "A: tokens begin 25% alike and end 93% alike, after 2 blocks"),
        ([-0.034], "A: tokens begin 25% alike and end −3% alike, after 2 blocks"),
        ([-0.001], "A: tokens begin 25% alike and end 0% alike, after 2 blocks"),
        ([0.5, 0.1], "Tokens go from 25% to 50% alike in A, 25% to 10% in B"),
        ([0.5, None], "Tokens go from 25% to 50% alike in A"),
        ([0.5, 0.1, 0.2, 0.9, 0.3], "Tokens end from 10% alike in B to 90% in D: 5 models"),
        ([None], "A"),
        ([None, None], "A, B"),
    ],
)
def test_how_alike_tokens_end(ends, said):
    assert headline.finding(models(*ends)) == said


def test_where_a_beginning_is_not_known_ends_are_compared():
    some = models(0.16, 0.93, 0.05)
    some[1].diagnosis.layers[0].tokens["cos"] = None
    assert headline.finding(some) == "Tokens end 16% alike in A, 93% in B, 5% in C"


def test_what_differs_and_what_does_not():
    same = models(0.1, 0.2)
    common = "In common: 2 blocks, 1 head, 2 features, pre-norm, made-up images."
    assert headline.differences(same) == f"{common} As far as is recorded, they differ in their weights alone."
    for one, name in zip(same, ("GPT2Model", "LlamaModel"), strict=True):
        one.diagnosis.model["class"] = name
    assert headline.differences(same) == f"{common} A: GPT2Model; B: LlamaModel."
    deeper = models(0.1, 0.2, 0.3, layers=[2, 4, 2], shared=[False, True, False])
    assert headline.differences(deeper).endswith(
        "A and C: 2 blocks, no shared weights; B: 4 blocks, one layer repeated."
    )
    steered = models(0.1, 0.2, 0.3)
    methods = None, {"method": "NeuTRENO", "strength": 0.6}, {"method": "Spectral", "mode": "smooth"}
    for one, method in zip(steered, methods, strict=True):
        one.diagnosis.steering = {"methods": [method]} if method else None
    assert headline.differences(steered).endswith(
        "A: no steering; B: steered by NeuTRENO of strength 0.6; C: steered by Spectral, which forces smoothing."
    )
    many = models(*[0.1] * 5, layers=[1, 2, 3, 4, 5], shared=[True, False, False, False, False])
    assert headline.differences(many).endswith("They differ in blocks and shared weights.")


def test_notions_that_disagree_are_told_at_once():
    one, other = models(0.1, 0.9)
    for m, last in ((one, {"hfc_lfc": 0.5, "effective_rank": 9.0}), (other, {"hfc_lfc": 0.5, "effective_rank": 2.0})):
        m.diagnosis.layers[0].tokens |= {"hfc_lfc": 1.0, "effective_rank": 3.0}
        m.diagnosis.layers[-1].tokens |= last
    words = "tokens end more similar by HFC/LFC, less similar by the mean cosine and the effective rank."
    assert headline.disagreements([one, other]) == [f"A: the notions of smoothing disagree, {words}"]
    assert headline.disagreements([one]) == [f"The notions of smoothing disagree: {words}"]
    assert headline.disagreements([other]) == []
    assert headline.disagreements([one] * 5) == ["The notions of smoothing disagree in 5 of 5 models: see Over depth."]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("the model is in train mode", "The model is in train mode."),
        ("encoder.layer.3 is gated", "encoder.layer.3 is gated."),
        ("ρ rough is unknown", "ρ rough is unknown."),
        ("Steered.", "Steered."),
        ("d_model: 3", "d_model: 3."),
        ("", ""),
    ],
)
def test_remarks_are_sentences(given, said):
    assert sentence(given) == said
