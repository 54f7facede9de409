"""What a page says first: the finding in one sentence, what tells the models apart, and the terms it uses."""

from __future__ import annotations

from typing import Any

from oversmooth.diagnosis.facts import Number
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.diagnosis.verdict import disagreement
from oversmooth.report.charts.base import Shown, mode_of

_FORCED = {"smooth": "forced to smooth", "sharpen": "forced to sharpen", "plain": "left alone"}
_MOST_NAMED = 4
"""Models whose end is named each; of more, the two extremes."""
_SHORT = 30
"""Letters of a fact that is spelled out where models differ in it."""
TERMS = {
    "alike": (
        "alike",
        "The mean cosine of two different tokens of one input: 100 % where all point the same way, 0 % where they are "
        "unrelated, below 0 where they point away from each other.",
    ),
    "hfc": (
        "HFC/LFC",
        "Every input is its mean token (the low-frequency component, LFC) plus what sets tokens apart from it (the "
        "high-frequency component, HFC). HFC/LFC is the size of the second over that of the first: 0 where all tokens "
        "are equal.",
    ),
    "h": (
        "H",
        "H = (W_V W_proj)ᵀ: what the value and output weights of a layer do to a token that attention passes on. Its "
        "eigenvalues λ decide, together with those of attention, what repeating the layer does.",
    ),
    "case": (
        "case",
        "One input, one layer and one head. It smooths where, of all products of an eigenvalue of attention and one of "
        "the head's H, the one that makes tokens alike is the largest.",
    ),
    "rank": (
        "effective rank",
        "How many directions the tokens of one input fill: 1 where they are multiples of one token, at most the number "
        "of tokens or of features, whichever is smaller.",
    ),
    "massive": (
        "massive tokens",
        "Tokens whose norm is many times the median of their input, often the first: a single one can dominate a mean.",
    ),
}
"""By key: as it is called, and what it means."""


def finding(models: list[Shown]) -> str:
    """The headline: how alike tokens end, in one sentence."""
    ends = [(m, _cosine(m.diagnosis, -1)) for m in models]
    known = [(m, end) for m, end in ends if end is not None]
    if not known:
        return ", ".join(m.label for m in models)
    if len(models) == 1:
        ((m, end),) = known
        blocks = len(m.diagnosis.layers) - 1
        begin = _cosine(m.diagnosis, 0)
        start = "" if begin is None else f"begin {_alike(begin)} alike and "
        return f"{m.label}: tokens {start}end {_alike(end)} alike, after {blocks} block{'' if blocks == 1 else 's'}"
    modes = [mode_of(m.diagnosis) for m, _ in known]
    if len(set(modes)) == len(modes) == len(models) and all(mode in _FORCED for mode in modes):
        by_mode = dict(zip(modes, known, strict=True))
        clauses = [f"{_FORCED[mode]}, {_alike(by_mode[mode][1])}" for mode in _FORCED if mode in by_mode]
        name, _, share = clauses[0].rpartition(", ")
        return "; ".join([f"{name[0].upper()}{name[1:]}, tokens end {share} alike", *clauses[1:]])
    if len(known) <= _MOST_NAMED:
        (m, end), *rest = known
        return ", ".join(
            [f"Tokens end {_alike(end)} alike in {m.label}", *(f"{_alike(e)} in {o.label}" for o, e in rest)]
        )
    (least, low), (most, high) = min(known, key=lambda of: of[1]), max(known, key=lambda of: of[1])
    return (
        f"Tokens end from {_alike(low)} alike in {least.label} to {_alike(high)} in {most.label}: {len(models)} models"
    )


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
    """What tells several models apart besides their weights, and what they have in common."""
    facts = [_facts(m.diagnosis) for m in models]
    names = list(dict.fromkeys(name for one in facts for name in one))
    apart = [name for name in names if len({one.get(name, "") for one in facts}) > 1]
    same = [_shared(name, facts[0][name]) for name in names if name not in apart and facts[0].get(name)]
    words = []
    for name in apart:
        values = [one.get(name) or "none" for one in facts]
        short = len(models) <= _MOST_NAMED and max(map(len, values)) < _SHORT
        between = "; " if any("," in value for value in values) else ", "
        words.append(f"{name} ({between.join(values)})" if short else name)
    common = f"The same in all: {', '.join(same)}. " if same else ""
    if not words:
        return f"{common}They differ in their weights alone."
    return f"{common}They differ in {_listed(words)}."


def _shared(name: str, value: str) -> str:
    return f"{value}-norm" if name == "norms" else value if name in ("data", "weights") else f"{value} {name}"


def _facts(diagnosis: Diagnosis) -> dict[str, str]:
    model: dict[str, Any] = dict(diagnosis.model)
    counted = {"blocks": model.get("layers"), "heads": model.get("heads"), "features": model.get("width")}
    facts = {name: str(count) for name, count in counted.items() if count is not None}
    if model.get("norm"):
        facts["norms"] = str(model["norm"])
    facts["weights"] = "one layer, repeated" if model.get("shared") else ""
    facts["steering"] = steered(diagnosis)
    facts["data"] = str(diagnosis.provenance.get("data") or "")
    return facts


def steered(diagnosis: Diagnosis) -> str:
    """The methods in a few words; empty where there are none."""
    methods = (diagnosis.steering or {}).get("methods") or []
    words = []
    for method in methods:
        how = next((method[key] for key in ("mode", "strength") if method.get(key) is not None), None)
        name = str(method.get("method") or "another method")
        words.append(name if how is None or isinstance(how, (list, dict)) else f"{name} {how}")
    return " and ".join(words)


def _cosine(diagnosis: Diagnosis, place: int) -> Number:
    return diagnosis.layers[place].tokens.get("cos")


def _alike(cosine: float) -> str:
    return f"{round(100 * cosine) + 0:d}\u00a0%".replace("-", "−")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
