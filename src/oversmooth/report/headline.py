"""What a page says first: the finding in one sentence, and what tells the models apart."""

from __future__ import annotations

from typing import Any

from oversmooth.report.charts.base import Shown
from oversmooth.report.style import percent
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number
from oversmooth.results.verdict import disagreement

_MODES = {"smooth": "smoothing", "sharpen": "sharpening"}
_MOST_NAMED = 4
"""Models whose end is named each; of more, the two extremes."""


def finding(models: list[Shown]) -> str:
    """The headline: how alike tokens begin and end, in one sentence."""
    known = [m for m in models if _cosine(m.diagnosis, -1) is not None]
    if not known:
        return ", ".join(m.label for m in models)
    if len(models) == 1:
        (m,) = known
        blocks = len(m.diagnosis.layers) - 1
        begin = _cosine(m.diagnosis, 0)
        start = "" if begin is None else f"begin {percent(begin, 0)} alike and "
        end = percent(_cosine(m.diagnosis, -1), 0)
        return f"{m.label}: tokens {start}end {end} alike, after {blocks} block{'' if blocks == 1 else 's'}"
    if len(known) > _MOST_NAMED:
        ends = [(_cosine(m.diagnosis, -1) or 0.0, m.label) for m in known]
        (low, least), (high, most) = min(ends), max(ends)
        return (
            f"Tokens end from {percent(low, 0)} alike in {least} to {percent(high, 0)} in {most}: {len(models)} models"
        )
    begun = all(_cosine(m.diagnosis, 0) is not None for m in known)
    courses: list[str] = []
    for m in known:
        cosines = [percent(_cosine(m.diagnosis, place), 0) for place in (0, -1)]
        once = "" if courses else " alike"
        courses.append(f"{' to '.join(cosines) if begun else cosines[-1]}{once} in {m.label}")
    return f"Tokens {'go from' if begun else 'end'} {', '.join(courses)}"


def disagreements(models: list[Shown]) -> list[str]:
    """A sentence for each model in which the notions disagree, since the headline is of one of them."""
    found = [(m.label, words) for m in models if (words := disagreement(m.diagnosis))]
    if not found:
        return []
    if len(models) == 1:
        return [f"The notions of smoothing disagree: tokens end {found[0][1]}."]
    if len(found) > _MOST_NAMED:
        return [f"The notions of smoothing disagree in {len(found)} of {len(models)} models: see Over depth."]
    return [f"{label}: the notions of smoothing disagree, tokens end {words}." for label, words in found]


def differences(models: list[Shown]) -> str:
    """What several models have in common, and what tells them apart besides their weights."""
    facts = [_facts(m.diagnosis) for m in models]
    apart = [name for name in facts[0] if len({one[name] for one in facts}) > 1]
    same = [fact for name, fact in facts[0].items() if fact and name not in (*apart, "class")]
    common = f"In common: {', '.join(same)}. " if same else ""
    if not apart:
        return f"{common}As far as is recorded, they differ in their weights alone."
    if len(models) > _MOST_NAMED:
        return f"{common}They differ in {_listed(apart)}."
    groups: dict[str, list[str]] = {}
    for m, one in zip(models, facts, strict=True):
        words = ", ".join(one[name] or f"no {name}" for name in apart)
        groups.setdefault(words, []).append(m.label)
    return f"{common}{'; '.join(f'{_listed(labels)}: {words}' for words, labels in groups.items())}."


def _facts(diagnosis: DiagnosisData) -> dict[str, str]:
    """By what they are about, in a few words each; empty where there is nothing to say."""
    model: dict[str, Any] = dict(diagnosis.model)
    counts = {"blocks": model.get("layers"), "heads": model.get("heads"), "features": model.get("width")}
    facts = {name: "" if n is None else f"{n} {name if n != 1 else name[:-1]}" for name, n in counts.items()}
    facts["norms"] = f"{model['norm']}-norm" if model.get("norm") else ""
    facts["class"] = str(model.get("class") or "")
    facts["shared weights"] = "one layer repeated" if model.get("shared") else ""
    facts["steering"] = f"steered by {methods}" if (methods := steered(diagnosis)) else ""
    facts["named inputs"] = str(diagnosis.provenance.get("data") or "")
    return facts


def steered(diagnosis: DiagnosisData) -> str:
    """The methods in a few words; empty where there are none."""
    methods = (diagnosis.steering or {}).get("methods") or []
    words = []
    for method in methods:
        name = str(method.get("method") or "another method")
        mode, strength = (method.get(key) for key in ("mode", "strength"))
        if mode in _MODES:
            words.append(f"{name}, which forces {_MODES[mode]}")
        elif isinstance(strength, (int, float)):
            words.append(f"{name} of strength {strength:g}")
        else:
            words.append(name)
    return " and ".join(words)


def _cosine(diagnosis: DiagnosisData, place: int) -> Number:
    return diagnosis.layers[place].tokens.get("cos")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
