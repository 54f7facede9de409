"""What a page says first."""

import pytest
from support.report_example import example

from oversmooth.report import headline
from oversmooth.report.charts import base as charts
from oversmooth.report.style import PAGE
from oversmooth.results import verdict


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
        ([0.5, 0.1], "Mean cosine ends highest in A, at 0.50, and lowest in B, at 0.10."),
        ([0.5, None], "A ends with a mean cosine of 0.50."),
        ([0.5, 0.1, 0.2, 0.9, 0.3], "Mean cosine ends highest in D, at 0.90, and lowest in B, at 0.10."),
        ([0.5, 0.51, 0.505], "Mean cosine ends about equal in all 3 models, at 0.51."),
        ([None, None], "A, B"),
    ],
)
def test_the_finding_is_a_sentence(ends, said):
    found = models(*ends)
    for m, end in zip(found, ends, strict=True):
        m.diagnosis.layers[1].tokens["cos"] = 0.3 if end is None else (0.25 + end) / 2
    assert headline.finding(found) == said


@pytest.mark.parametrize(
    ("cosines", "said"),
    [
        ([0.25, 0.3, 0.926], "Mean cosine rises from 0.25 to 0.93 over 2 blocks."),
        ([0.25, 0.2, -0.034], "Mean cosine falls from 0.25 to −0.03 over 2 blocks."),
        ([0.18, 0.04, 0.16], "Mean cosine falls from 0.18 to 0.16 over 2 blocks, with a minimum of 0.04 at depth 1."),
        ([0.1, 0.9, 0.1], "Mean cosine stays at 0.10 over 2 blocks, with a maximum of 0.90 at depth 1."),
        ([None, 0.2, 0.2], "Mean cosine stays at 0.20 over 2 blocks."),
        ([None, None, None], ""),
    ],
)
def test_the_mean_cosine_and_where_it_turns(cosines, said):
    (m,) = models(0.0)
    for layer, value in zip(m.diagnosis.layers, cosines, strict=True):
        layer.tokens["cos"] = value
    assert headline.cosine(m.diagnosis) == said


def test_of_one_model_the_verdict_s_answer_is_the_finding():
    (m,) = models(0.9)
    assert headline.finding([m]) == verdict.headline(m.diagnosis)
    for layer in m.diagnosis.layers:
        layer.tokens = {}
    assert headline.finding([m]) == "A"


def test_what_differs_and_what_does_not():
    same = models(0.1, 0.2)
    common = "In common: 2 blocks, 1 head, 2 features, pre-norm, made-up images."
    assert headline.differences(same) == f"{common} Only their weights differ, as far as is recorded."
    for one, name in zip(same, ("GPT2Model", "LlamaModel"), strict=True):
        one.diagnosis.model["class"] = name
    assert headline.differences(same) == f"{common} They differ in class."
    deeper = models(0.1, 0.2, 0.3, layers=[2, 4, 2], shared=[False, True, False])
    assert headline.differences(deeper).endswith("They differ in blocks, shared weights.")
    steered = models(0.1, 0.2, 0.3)
    for one in steered:
        one.diagnosis.steering = {"methods": [{"method": "NeuTRENO", "strength": 0.6}]}
    assert "steered by NeuTRENO" in headline.differences(steered)
    steered[0].diagnosis.steering = None
    assert headline.differences(steered).endswith("They differ in steering.")
