"""What a page says first: the finding in one sentence, what tells the models apart, and the terms it uses."""

from __future__ import annotations

from typing import Any

from oversmooth.report.charts.base import Shown, mode_of
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number
from oversmooth.results.verdict import disagreement

_FORCED = {"smooth": "forced to smooth", "sharpen": "forced to sharpen", "plain": "left alone"}
_MODES = {"smooth": "smoothing", "sharpen": "sharpening"}
_MOST_NAMED = 4
"""Models whose end is named each; of more, the two extremes."""
_COUNTED = ("blocks", "heads", "features")
_DIFFERS = {
    "blocks": "in the number of blocks",
    "heads": "in the number of heads",
    "features": "in the number of features",
    "norms": "in where norms stand",
    "class": "in their class",
    "weights": "in whether blocks share weights",
    "steering": "in how they are steered",
    "data": "in what they were shown",
}
"""Facts, and how a sentence names them where models differ in them."""
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
        "H = (W_V W_O)ᵀ: what the value and output weights of a layer do to a token that attention passes on. Its "
        "eigenvalues λ decide, together with those of attention, what repeating the layer does.",
    ),
    "case": (
        "case",
        "One input, one layer and one head. It smooths where, of all products of an eigenvalue of attention and one of "
        "the head's H, the one that makes tokens alike is the largest.",
    ),
    "predicted": (
        "blocks as predicted",
        "Blocks in which one pass of attention moved HFC/LFC the way that its spectrum, with all heads together, "
        "favours in the long run: down where the smoothing eigenvalue is the largest, up elsewhere. Counted are "
        "the blocks whose spectrum decides and whose change was measured; the others are undecided.",
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
    """The headline: how alike tokens begin and end, in one sentence."""
    known = [m for m in models if _cosine(m.diagnosis, -1) is not None]
    if not known:
        return ", ".join(m.label for m in models)
    if len(models) == 1:
        (m,) = known
        blocks = len(m.diagnosis.layers) - 1
        begin = _cosine(m.diagnosis, 0)
        start = "" if begin is None else f"begin {alike(begin)} alike and "
        end = alike(_cosine(m.diagnosis, -1) or 0.0)
        return f"{m.label}: tokens {start}end {end} alike, after {blocks} block{'' if blocks == 1 else 's'}"
    if len(known) > _MOST_NAMED:
        ends = [(_cosine(m.diagnosis, -1) or 0.0, m.label) for m in known]
        (low, least), (high, most) = min(ends), max(ends)
        return f"Tokens end from {alike(low)} alike in {least} to {alike(high)} in {most}: {len(models)} models"
    verb = "end" if any(_cosine(m.diagnosis, 0) is None for m in known) else "go from"
    modes = [mode_of(m.diagnosis) for m in known]
    if len(set(modes)) == len(modes) == len(models) and all(mode in _FORCED for mode in modes):
        by_mode = dict(zip(modes, known, strict=True))
        clauses = [f"{_FORCED[mode]}, {_course(by_mode[mode], verb)}" for mode in _FORCED if mode in by_mode]
        name, _, course = clauses[0].rpartition(", ")
        return "; ".join([f"{name[0].upper()}{name[1:]}, tokens {verb} {course} alike", *clauses[1:]])
    first, *rest = known
    others = [f"{_course(m, verb)} in {m.label}" for m in rest]
    return ", ".join([f"Tokens {verb} {_course(first, verb)} alike in {first.label}", *others])


def _course(model: Shown, verb: str) -> str:
    """How alike tokens end, and how they began where that is known of every model."""
    begin, end = (_cosine(model.diagnosis, place) or 0.0 for place in (0, -1))
    return alike(end) if verb == "end" else f"{alike(begin)} to {alike(end)}"


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
    apart = [name for name in _DIFFERS if len({one.get(name, "") for one in facts}) > 1]
    same = {name: value for name, value in facts[0].items() if value and name not in (*apart, "class")}
    everyone = "Both" if len(models) == 2 else "All"
    common = f"{everyone} {_clauses(same, several=True)}. " if same else ""
    if not apart:
        return f"{common}As far as is recorded, they differ in their weights alone."
    if len(models) > _MOST_NAMED:
        return f"{common}They differ {listed([_DIFFERS[name] for name in apart])}."
    groups: dict[tuple[str, ...], list[str]] = {}
    for m, one in zip(models, facts, strict=True):
        groups.setdefault(tuple(one.get(name, "") for name in apart), []).append(m.label)
    words = [
        f"{listed(labels)} {_clauses(dict(zip(apart, values, strict=True)), several=len(labels) > 1)}"
        for values, labels in groups.items()
    ]
    return f"{common}{'; '.join(words)}."


def _clauses(facts: dict[str, str], *, several: bool) -> str:
    """Facts as what a sentence says of one model or of several: "have 6 blocks and 12 heads, and are pre-norm"."""
    have, are = ("have", "are") if several else ("has", "is")
    counted = [f"{facts[n]} {n if facts[n] != '1' else n[:-1]}" for n in _COUNTED if facts.get(n)]
    words = [f"{have} {listed(counted)}"] if counted else []
    if norms := facts.get("norms"):
        words.append(f"{are} {norms}-norm")
    if facts.get("class"):
        words.append(f"{are} of class {facts['class']}")
    if facts.get("weights"):
        words.append(f"repeat{'' if several else 's'} one layer")
    if "steering" in facts:
        words.append(f"{are} steered by {facts['steering']}" if facts["steering"] else f"{are} not steered")
    if "data" in facts:
        words.append(f"saw {facts['data'] or 'inputs that were not named'}")
    if not words:  # such as norms that are not known, or blocks that share nothing
        return f"{have} a layer for every block" if "weights" in facts else f"{have} nothing of this on record"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"


def _facts(diagnosis: DiagnosisData) -> dict[str, str]:
    model: dict[str, Any] = dict(diagnosis.model)
    counted = {"blocks": model.get("layers"), "heads": model.get("heads"), "features": model.get("width")}
    facts = {name: str(count) for name, count in counted.items() if count is not None}
    if model.get("norm"):
        facts["norms"] = str(model["norm"])
    if model.get("class"):
        facts["class"] = str(model["class"])
    facts["weights"] = "shared" if model.get("shared") else ""
    facts["steering"] = steered(diagnosis)
    facts["data"] = str(diagnosis.provenance.get("data") or "")
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


def alike(cosine: float) -> str:
    return f"{round(100 * cosine) + 0:d}\u00a0%".replace("-", "−")


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
