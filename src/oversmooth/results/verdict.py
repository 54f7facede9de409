"""A diagnosis in English: the answer first, then what was measured, what was predicted, and whether they agree.

Neutral by design: smoothing is a quantity, not a fault. The values behind these sentences are those of `findings`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from oversmooth.results import sinks
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number
from oversmooth.results.findings import agreement, compared, ends, exponent, sublayers
from oversmooth.results.parts import Extrapolation, standard_error
from oversmooth.results.references import kind_of, references_for
from oversmooth.theory.reasons import Reason

_ROUNDING = 1e-6  # relative to the largest eigenvalue: anything smaller is zero
_MOST_REFERENCES = 3
_METRICS = {"hfc_lfc": "HFC/LFC", "cos": "the mean cosine", "effective_rank": "the effective rank"}
_SIDES = {1: "more similar", -1: "less similar", 0: "about as similar as they began"}
_STEEP = 0.05  # a smaller exponent is none
_NOT_KNOWN = "the radii are not known well enough to say which is larger"
_PULLS = {"smooth": "pulls towards smoothing", "rough": "does not pull towards smoothing"}
_JUDGED = {
    "right": ", as measured",
    "levels off": "; HFC/LFC levels off",
    "no decay": ", but HFC/LFC does not fall",
    "wrong sign": ", but HFC/LFC grows",
    "still falling": ", but HFC/LFC falls",
    "unknown": "",
}
_SUBLAYERS = {"mlp": "MLPs", "norm": "norms", "block": "blocks without attention"}


def sentences(diagnosis: DiagnosisData) -> list[str]:
    """The verdict, one topic a sentence, the answer first."""
    tokens = (_massive, sinks.massive_tokens, sinks.special_tokens, sinks.attention_sinks)
    topics = (headline, _dropout, _measured, _by_sublayer, *tokens, constraint, _predicted, _agreement, _accuracy)
    said = [topic(diagnosis) for topic in topics]
    return [*filter(None, said), *map(_repeated, diagnosis.extrapolation)]


def headline(diagnosis: DiagnosisData) -> str:
    """Whether it smooths, how much, where, through which sublayer, and compared to what; empty where nothing was
    measured.
    """
    found = ends(diagnosis)
    if not found:
        return ""
    sides = {metric: end.side for metric, end in found.items()}
    answer = f"{diagnosis.name} {_answer(sides)}"
    end, course = found.get("hfc_lfc"), sublayers(diagnosis)
    if end is not None and end.before:
        ratio = end.after / end.before
        answer += f": HFC/LFC {_course(ratio, end.side)}"
        if course is not None and end.side * course.total < 0:
            depth = f"depth {course.depth} of {len(diagnosis.layers) - 1}"
            answer += f", mostly through {_SUBLAYERS.get(course.strongest, course.strongest)}, above all at {depth}"
        answer += f". {_references(diagnosis, ratio)}"
    else:
        metric, first = next(iter(found.items()))
        answer += f": {_METRICS[metric]} goes from {_value(metric, first.before)} to {_value(metric, first.after)}."
    without = ends(diagnosis, without_massive=True).get("hfc_lfc")
    if end is not None and without is not None and without.before and without.side * end.side < 0:
        answer += f" Without massive tokens it is {_times(without.after / without.before)} its start."
    return answer


def _answer(sides: Mapping[str, int]) -> str:
    by = {side: [_METRICS[metric] for metric, found in sides.items() if found == side] for side in (1, -1, 0)}
    if not by[1]:
        return "does not smooth" if by[-1] else "leaves its tokens about as similar as they began"
    if not by[-1] and not by[0]:
        return "smooths"
    return f"smooths by {' and '.join(by[1])} but not by {' and '.join(by[-1] + by[0])}"


def _course(ratio: float, side: int) -> str:
    """How HFC/LFC ends, against its start.

    >>> _course(0.3, 1), _course(1.02, -1)
    ('falls to 0.3 of its start', 'rises by 2%')
    """
    if not side:
        return "stays at its start"
    verb = "falls" if side > 0 else "rises"
    return f"{verb} by {100 * abs(ratio - 1):.1g}%" if 0.905 < ratio < 1.095 else f"{verb} to {_times(ratio)} its start"


def _times(ratio: float) -> str:
    """A factor on a start.

    >>> _times(0.3), _times(1.24)
    ('0.3 of', '1.2 times')
    """
    return f"{ratio:.2g} {'times' if ratio > 1 else 'of'}"


def _references(diagnosis: DiagnosisData, ratio: float) -> str:
    """The models of the same kind that end nearest."""
    kind = kind_of(diagnosis)
    known = [one for one in references_for(diagnosis) if not one.constrained]
    if kind is None or not known:
        return "No reference for this kind of model." if kind is None else f"No other {kind} to compare with."
    log = math.log(max(ratio, 1e-9))
    nearest = sorted(known, key=lambda one: abs(math.log(one.hfc_lfc_ratio) - log))[:_MOST_REFERENCES]
    listed = ", ".join(f"{one.hfc_lfc_ratio:.2g} in {one.name}" for one in nearest)
    return f"Reference {kind}s, relative to their start: {listed}."


def _by_side(sides: Mapping[str, int]) -> str:
    named = {words: [_METRICS[one] for one, found in sides.items() if found == side] for side, words in _SIDES.items()}
    return ", ".join(f"{words} by {' and '.join(names)}" for words, names in named.items() if names)


def _dropout(diagnosis: DiagnosisData) -> str:
    if not diagnosis.model.get("dropout"):
        return ""
    return "Train mode: dropout is active and part of every number; call model.eval() first to measure without it."


def _measured(diagnosis: DiagnosisData) -> str:
    found = ends(diagnosis)
    if not found:
        return ""
    clauses = [
        f"{_METRICS[one]} from {_value(one, end.before)} to {_value(one, end.after)}" for one, end in found.items()
    ]
    sides = {metric: end.side for metric, end in found.items()}
    if len(set(sides.values())) == 1:
        by = {1: "", 2: " by both", 3: " by all three"}[len(sides)]
        end_as = f"Tokens end {_SIDES[next(iter(sides.values()))]}{by}"
    else:
        end_as = f"The definitions disagree: tokens end {_by_side(sides)}"
    return f"Measured, first block to last: {', '.join(clauses)}. {end_as}."


def _value(metric: str, value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}" if metric == "cos" else f"{value:.3g}"


def _by_sublayer(diagnosis: DiagnosisData) -> str:
    found = sublayers(diagnosis)
    if found is None:
        return ""
    listed = ", ".join(f"{_SUBLAYERS.get(part, part)} {_signed(value)}" for part, value in found.sums.items())
    return f"Measured by sublayer: log HFC/LFC changes by {_signed(found.total)} over all blocks ({listed})."


def _massive(diagnosis: DiagnosisData) -> str:
    depths = [(depth, layer) for depth, layer in enumerate(diagnosis.layers) if layer.massive]
    if not depths:
        return ""
    depth, worst = max(depths, key=lambda one: (one[1].massive or {}).get("largest_ratio") or 0.0)
    found = worst.massive or {}
    effect, with_all, without = "", worst.tokens.get("hfc_lfc"), (worst.without_massive or {}).get("hfc_lfc")
    if with_all and without:
        effect = f" There HFC/LFC is {with_all:.3g} with massive tokens and {without:.3g} without."
    positions = list(found["positions"])
    return (
        f"Massive tokens ({diagnosis.provenance['massive_rule']}): at {len(depths)} of {len(diagnosis.layers)} depths. "
        f"The largest is at depth {depth}, position{'s' if len(positions) > 1 else ''} {', '.join(positions)}: "
        f"{found['largest_ratio'] or 0.0:.3g} times the median.{effect}"
    )


def constraint(diagnosis: DiagnosisData) -> str:
    """Whether a steered model satisfies its spectral constraint; empty where it has none."""
    verified = (diagnosis.steering or {}).get("verified")
    if not verified:
        return ""
    if not verified["ok"]:
        return f"Constraint violated: {'; '.join(verified['problems'])}."
    layers = [layer for layer in verified["layers"] if None not in (layer["least"], layer["greatest"])]
    if not layers:
        return "Constraint satisfied."
    low, high = min(c["least"] for c in layers), max(c["greatest"] for c in layers)
    noise = _ROUNDING * max(abs(low), abs(high))
    low, high = (0.0 if abs(end) <= noise else end for end in (low, high))
    said = [f"Constraint satisfied: all eigenvalues of H lie in [{low:.3g}, {high:.3g}] ({_count(len(layers))})."]
    margins = [c["room"] for c in layers if c["room"] is not None]
    if low < 0 and high <= 0 and margins:
        side = "above" if min(margins) >= 0 else "below"
        said.append(f"The least is {abs(min(margins)):.2g} {side} where sharpening could become smoothing.")
    elif low >= 0:
        said.append("No eigenvalue is negative, so none sharpens.")
    return " ".join([*said, *_warnings(verified)])


def _warnings(verified: Mapping[str, Any]) -> list[str]:
    """What the constraint on H alone does not cover. Files before version 4 have it in words only."""
    layers = verified["layers"]
    if not all("outside_when_folded" in layer and "zero_eigenvalues" in layer for layer in layers):
        return [f"{warning[0].upper()}{warning[1:]}." for warning in verified["doubts"]]
    warnings = []
    if outside := sum(layer["outside_when_folded"] for layer in layers):
        leaves = f"With its norm and layer scale, H leaves it in {_count(outside)}"
        warnings.append(f"The range is that of H alone. {leaves}, where the constraint guarantees nothing.")
    if zero := sum(layer["zero_eigenvalues"] > 0 for layer in layers):
        warnings.append(f"Eigenvalues of 0, which neither smooth nor sharpen, occur in {_count(zero)}.")
    return warnings


def _predicted(diagnosis: DiagnosisData) -> str:
    found = [layer.dominance for layer in diagnosis.layers if layer.dominance]
    negative, share = diagnosis.negative_share, diagnosis.smoothing_share
    triples = sum(len(row) for one in found for row in one.verdict_heads)
    undecided = round((diagnosis.undecided_share or 0.0) * triples)
    why = next((str(reason) for one in found for reason in one.undecided_reasons), None)
    why = why or next((words for one in found for words in one.undecided_because), "the reason was not recorded")
    clauses = []
    if share is None and undecided:
        clauses.append(f"all {triples:,} (input, layer, head) triples are undecided; first reason: {why}")
    if share is not None:
        open_ones = f" ({undecided:,} undecided; first reason: {why})" if undecided else ""
        clauses.append(f"{share:.1%} of {triples:,} (input, layer, head) triples smooth in the long run{open_ones}")
    if judged := [v for one in found for v in one.joined_verdict]:
        smooth = judged.count("smooth")
        clauses.append(f"all heads jointly smooth in {smooth} of {len(judged)} (input, layer) pairs{_others(judged)}")
    if negative is not None:
        clauses.append(f"{negative:.0%} of the eigenvalues of H have a negative real part")
    return f"Predicted by the spectra of attention alone: {'; '.join(clauses)}." if clauses else ""


def _others(judged: list[str]) -> str:
    ties, undecided = judged.count("tie"), judged.count("undecided")
    others = [f"{ties} tie{'s' if ties > 1 else ''}"] if ties else []
    others += [f"{undecided} undecided: {_NOT_KNOWN}"] if undecided else []
    return f" ({', '.join(others)})" if others else ""


def _agreement(diagnosis: DiagnosisData) -> str:
    agree, apart = agreement(diagnosis.layers[1:])
    if not agree and not apart:
        return ""
    where = f"; it did not at depth {_runs(apart)}" if apart else ""
    changed = "attention changed HFC/LFC in the predicted direction (all heads jointly)"
    return f"Prediction against measurement: in {agree} of {agree + len(apart)} blocks, {changed}{where}."


def _accuracy(diagnosis: DiagnosisData) -> str:
    accuracy = diagnosis.accuracy
    if accuracy is None:
        return ""
    sentence = f"Accuracy: {accuracy.clean:.1%} of {accuracy.images} test images"
    if accuracy.trained is not None:
        sentence += f" ({accuracy.trained:.1%} of all, recorded after training)"
    if accuracy.corrupted:
        ends = []
        for intensity in dict.fromkeys((1, len(accuracy.corrupted))):
            share = accuracy.corrupted[intensity - 1]
            error = 100 * standard_error(share, accuracy.corrupted_images)
            ends.append(f"{share:.1%} ± {error:.1f} at intensity {intensity}")
        sentence += f". On {accuracy.corrupted_images} corrupted images: {', '.join(ends)} (points, one standard error)"
    return sentence + "."


def _repeated(entry: Extrapolation) -> str:
    """More depth: what the real blocks do, how that goes on, and whether attention's spectra pull to that side."""
    special = ", special tokens included" if "special_counted" in {note.kind for note in entry.notes} else ""
    head, found = f"Repeating the {entry.what} (first input{special})", compared(entry)
    pull = f"by its spectra, attention alone {_pull(entry)}" if entry.verdict else ""
    if found.before is None or found.after is None:
        return f"{head}: {pull or 'the blocks cannot run by themselves'}."
    if growth := _growth(entry):
        head = f"{head}: {growth}. HFC/LFC goes"
    else:
        head += " takes HFC/LFC"
    said = [f"{head} from {found.before:.3g} to {found.after:.3g} in {found.blocks} blocks{_beyond(entry)}."]
    said += [_once_equal(entry), f"{pull[0].upper()}{pull[1:]}{_JUDGED[found.judgement]}." if pull else ""]
    return " ".join(filter(None, said))


def _off_by(error: float) -> str:
    """An error of a logarithm.

    >>> _off_by(0.05), _off_by(0.4)
    ('5%', 'a factor of 1.5')
    """
    if error < 0.3:
        return f"{max(1.0, 100 * math.expm1(error)):.0f}%"
    return f"a factor of {math.exp(min(error, 99.0)):.2g}"


def _beyond(entry: Extrapolation) -> str:
    """How it goes on, and how well the first half of the blocks predicted the others."""
    ran = int(entry.real.depth[-1]) if entry.real else 0
    tried = "" if entry.checked is None else f"; from the first {ran // 2} blocks it was {_off_by(entry.checked)} off"
    if entry.predicted is None or entry.predicted.log_hfc_lfc[-1] is None:
        return ""
    depth, value = int(entry.predicted.depth[-1]), math.exp(min(entry.predicted.log_hfc_lfc[-1], 99.0))
    if entry.error is None or not entry.conclusive:
        return f"; what {depth} would do is inconclusive"
    if entry.way == "geometric":  # the rate lasts, and is not exact enough for a value
        return f", and {_per_block(compared(entry).real_rate or 1.0)} in the end"
    power = exponent(entry) or 0.0
    law = f", a power law with exponent {_signed(power)}" if abs(power) >= _STEEP else ""
    return f", and to {value:.3g} in {depth} (predicted, within {_off_by(entry.error)}{tried}){law}"


def _growth(entry: Extrapolation) -> str:
    if entry.growth is None or not entry.way:
        return ""
    if entry.way == "geometric":
        return "token norms hardly grow, so smoothing may be geometric"
    return f"token norms grow by {entry.growth:.2g} a block, so no exponential smoothing while they keep growing"


def _once_equal(entry: Extrapolation) -> str:
    """What the derivative says where all tokens are equal."""
    if entry.equal_rate is None:
        why = entry.equal_reason
        return "" if why is None else f"Once tokens are nearly equal, its rate is undecided: {why}."
    shrinks, grows = entry.equal_rate < 0, entry.way == "log time"
    law = f"with exponent {_signed(entry.equal_rate)}" if grows else _factor(math.exp(entry.equal_rate))
    if shrinks:
        return f"Once tokens are nearly equal, HFC/LFC should fall {law}."
    return f"Nearly equal tokens would drift apart, {law}, so they should not become equal."


def _per_block(rate: float) -> str:
    """
    >>> _per_block(0.9), _per_block(1.05)
    ('shrinks geometrically, by a factor of 0.9 per block', 'grows geometrically, by a factor of 1.05 per block')
    """
    return f"{'grows' if rate > 1 else 'shrinks'} geometrically, {_factor(rate)}"


def _factor(rate: float) -> str:
    return f"by a factor of {rate:.3g} per block"


def _pull(entry: Extrapolation) -> str:
    if entry.verdict in _PULLS:
        return _PULLS[entry.verdict]
    if entry.verdict == "tie":
        return f"is in a tie, because {entry.reason or Reason('equal_radii')}"
    return f"is undecided, because {entry.reason or (entry.note if entry.rho_rough is None else _NOT_KNOWN)}"


def _count(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"


def _signed(value: Number) -> str:
    return f"{round(value or 0.0, 2) + 0.0:+.2f}".replace("-", "−")


def _runs(numbers: list[int]) -> str:
    """Numbers with neighbours joined: 0–2, 5."""
    grouped = itertools.groupby(enumerate(numbers), lambda one: one[1] - one[0])
    runs = [[number for _, number in run] for _, run in grouped]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
