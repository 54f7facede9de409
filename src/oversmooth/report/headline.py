"""The first lines of a page: the finding in one sentence, and how the models differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oversmooth.report.charts.base import Shown
from oversmooth.report.style import fixed
from oversmooth.results import verdict
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number

_ABOUT_EQUAL = 0.02
# A minimum or maximum in between is named where it lies this far beyond both ends, as a share of the largest value.
_TURNS = 0.05


def finding(models: list[Shown]) -> str:
    """The headline: the answer of one model's verdict, or where the mean cosine of several ends highest and lowest."""
    if len(models) == 1:
        return verdict.headline(models[0].diagnosis) or models[0].label
    known = [(end, m) for m in models if (end := m.diagnosis.layers[-1].tokens.get("cos")) is not None]
    if not known:
        return ", ".join(m.label for m in models)
    if len(known) == 1:
        return f"{known[0][1].label} ends with a mean cosine of {fixed(known[0][0])}."
    (low, least), (high, most) = (pick(known, key=lambda one: one[0]) for pick in (min, max))
    if high - low < _ABOUT_EQUAL:
        return f"Mean cosine ends about equal in all {len(known)} models, at {fixed(high)}."
    return f"Mean cosine ends highest in {most.label}, at {fixed(high)}, and lowest in {least.label}, at {fixed(low)}."


def cosine(diagnosis: DiagnosisData) -> str:
    """How the mean cosine of tokens goes over depth, in one sentence; empty where it was not measured."""
    values = diagnosis.curve("cos")
    if all(value is None for value in values):
        return ""
    return f"Mean cosine {course(values, counted(len(values) - 1, 'block'), 'depth')}."


def course(
    values: Sequence[Number],
    over: str,
    at: str,
    places: Sequence[int] | None = None,
    shown: Callable[[Number], str] = fixed,
) -> str:
    """A metric from its first value to its last, and where it lies beyond both in between.

    over: the whole way, in words. at: what a place is called. places: of the values; counted from 0 if not given.
    shown: how a value is written.

    >>> course([0.18, 0.04, 0.16], "2 blocks", "depth")
    'falls from 0.18 to 0.16 over 2 blocks, with a minimum of 0.04 at depth 1'
    >>> course([0.41, 0.409], "1 step", "step"), course([0.41], "0 steps", "step")
    ('stays at 0.41 over 1 step', 'is 0.41')
    """
    named = list(zip(places or range(len(values)), values, strict=True))
    known = [(place, value) for place, value in named if value is not None]
    begin, end = known[0][1], known[-1][1]
    low, high = sorted((begin, end))
    place, value = max(known, key=lambda one: max(one[1] - high, low - one[1]))
    beyond = max(value - high, low - value)
    noticed = max(_TURNS * max(abs(one) for _, one in known), 0.25 * (high - low))
    turn = f", with a {'maximum' if value > high else 'minimum'} of {shown(value)} at {at} {place:,}"
    if len(known) == 1:
        return f"is {shown(end)}"
    if shown(begin) == shown(end):
        words = f"stays at {shown(end)}"
    else:
        words = f"{'rises' if end > begin else 'falls'} from {shown(begin)} to {shown(end)}"
    return f"{words} over {over}{turn if beyond > noticed else ''}"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "block"), counted(1200, "step")
    ('1 block', '1,200 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def differences(models: list[Shown]) -> str:
    """What several models have in common, and in what they differ besides their weights."""
    facts = [_facts(m.diagnosis) for m in models]
    apart = [name for name in facts[0] if len({one[name] for one in facts}) > 1]
    same = [fact for name, fact in facts[0].items() if fact and name not in (*apart, "class")]
    common = f"In common: {', '.join(same)}. " if same else ""
    differ = f"They differ in {', '.join(apart)}." if apart else "Only their weights differ, as far as is recorded."
    return common + differ


def _facts(diagnosis: DiagnosisData) -> dict[str, str]:
    """By what they are about, in a few words each; empty where there is nothing to say."""
    model: dict[str, Any] = dict(diagnosis.model)
    counts = {"blocks": model.get("layers"), "heads": model.get("heads"), "features": model.get("width")}
    facts = {name: "" if n is None else f"{n} {name if n != 1 else name[:-1]}" for name, n in counts.items()}
    methods = [str(method.get("method")) for method in (diagnosis.steering or {}).get("methods") or []]
    return facts | {
        "norms": f"{model['norm']}-norm" if model.get("norm") else "",
        "class": str(model.get("class") or ""),
        "shared weights": "one layer repeated" if model.get("shared") else "",
        "steering": f"steered by {' and '.join(methods)}" if methods else "",
        "inputs": str(diagnosis.provenance.get("data") or ""),
    }
