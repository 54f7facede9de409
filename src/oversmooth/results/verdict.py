"""A diagnosis in plain words: what was measured, what was predicted, where the two disagree.

Neutral by design: smoothing is a quantity, not a fault.
"""

from __future__ import annotations

import math

from oversmooth.anatomy.steered import FOLDED
from oversmooth.metrics import METRICS
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number
from oversmooth.results.parts import Extrapolation, Layer, standard_error

_ROUNDING = 1e-6  # relative to the largest eigenvalue: anything smaller is zero


_NOTIONS = {"hfc_lfc": "HFC/LFC", "cos": "the mean cosine", "effective_rank": "the effective rank"}
_LEAST = 0.005  # change that counts as one: relative, but for the cosine


def sentences(diagnosis: DiagnosisData) -> list[str]:
    """The verdict: what was measured, by part, what spectra predict, and what more depth would do."""
    topics = (_mode, _measured, _parts, _massive, _steered, _predicted, _agreement, _accuracy)
    further = [_further(entry, diagnosis) for entry in diagnosis.extrapolation]
    return [*(sentence for topic in topics if (sentence := topic(diagnosis))), *further]


def _mode(diagnosis: DiagnosisData) -> str:
    if not diagnosis.model.get("dropout"):
        return ""
    return "Train mode: dropout was active and is in every number; diagnose after model.eval() to leave it out."


def disagreement(diagnosis: DiagnosisData) -> str:
    """By which notions tokens end more alike and by which less; empty where none contradicts another."""
    sides = {metric: side for metric, (_, _, side) in _ends(diagnosis).items()}
    return _in_all(sides).partition("tokens end ")[2] if {1, -1} <= set(sides.values()) else ""


def _ends(diagnosis: DiagnosisData) -> dict[str, tuple[float, float, int]]:
    """By metric: its value before the first block and after the last, and whether tokens end more alike (1), less (−1)
    or about as alike (0) by it.
    """
    ends = {}
    for metric in _NOTIONS:
        before, after = (diagnosis.layers[end].tokens.get(metric) for end in (0, -1))
        if before is not None and after is not None:
            moved = abs(after - before) > (_LEAST if metric == "cos" else _LEAST * abs(before))
            ends[metric] = before, after, moved * (1 if (after > before) != METRICS[metric].falls else -1)
    return ends


def _measured(diagnosis: DiagnosisData) -> str:
    clauses: list[str] = []
    sides = {}
    for metric, (before, after, side) in _ends(diagnosis).items():
        name, goes = _NOTIONS[metric], "" if clauses else " goes"
        if metric == "cos":
            clauses.append(f"{name}{goes} from {round(before, 2) + 0.0:.2f} to {round(after, 2) + 0.0:.2f}")
        else:
            factor = f" (× {after / before:.3g})" if metric == "hfc_lfc" and before and side else ""
            clauses.append(f"{name}{goes} from {before:.3g} to {after:.3g}{factor}")
        sides[metric] = side
    if not clauses:
        return ""
    return f"Measured: from the first block to the last, {', '.join(clauses)}; {_in_all(sides)}."


def _in_all(sides: dict[str, int]) -> str:
    """Whether tokens end more alike, and by which notion where they disagree."""
    words = {1: "more alike", -1: "less alike", 0: "about as alike as they began"}
    by_side = {side: [_NOTIONS[metric] for metric, found in sides.items() if found == side] for side in words}
    known = {side: names for side, names in by_side.items() if names}
    if len(known) == 1:
        ((side, names),) = known.items()
        by = f" by {'both' if len(names) == 2 else 'all three'}" if len(names) > 1 else ""
        return f"tokens end {words[side]}{by}"
    clauses = [f"{words[side]} by {' and '.join(names)}" for side, names in known.items()]
    return f"the notions disagree: tokens end {', '.join(clauses)}"


def _steered(diagnosis: DiagnosisData) -> str:
    """Whether the spectrum that steering promised holds."""
    verified = (diagnosis.steering or {}).get("verified")
    if not verified:
        return ""
    if not verified["ok"]:
        return f"Steered, but not as promised: {'; '.join(verified['problems'])}."
    layers = verified["layers"]
    low, high = min(c["least"] for c in layers), max(c["greatest"] for c in layers)
    noise = _ROUNDING * max(abs(low), abs(high))
    low, high = (0.0 if abs(end) <= noise else end for end in (low, high))
    sentence = (
        f"Steered as promised: the eigenvalues of H lie from {low:.3g} to {high:.3g} in {_layers(len(layers))[0]}"
    )
    rooms = [c["room"] for c in layers if c["room"] is not None]
    if low < 0 and high <= 0 and rooms:
        sentence += f", {min(rooms):.2g} from where sharpening could turn into smoothing"
    elif low >= 0:
        sentence += ", none below zero, so none sharpens"
    others = sum(FOLDED in doubt for doubt in verified["doubts"])
    if others:
        sentence += f"; with norms and layer scales folded in, {' '.join(_layers(others))} others too"
    if still := len(verified["doubts"]) - others:
        sentence += f"; {' '.join(_layers(still))} some that are 0, which neither smooth nor sharpen"
    return sentence + "."


def _layers(count: int) -> tuple[str, str]:
    return ("1 layer", "has") if count == 1 else (f"{count} layers", "have")


def _parts(diagnosis: DiagnosisData) -> str:
    parts = dict.fromkeys(change.part for layer in diagnosis.layers[1:] for change in layer.changes)
    sums = {part: total for part in parts if (total := diagnosis.change(part)) is not None}
    if not sums:
        return ""
    names = {part: {"mlp": "MLPs", "norm": "norms"}.get(part, part) for part in parts}
    listed = ", ".join(f"{names[part]} {round(value, 2) + 0.0:+.2f}" for part, value in sums.items())
    total = round(math.fsum(sums.values()), 2)
    # What a part does against the whole is in the list; it does not explain the whole.
    strongest = (min if total < 0 else max)(sums, key=lambda part: sums[part])
    where = ""
    if total:
        values = [layer.change(strongest) or 0.0 for layer in diagnosis.layers[1:]]
        depth = values.index((min if total < 0 else max)(values)) + 1
        what = "most smoothing comes from" if total < 0 else "tokens are set apart above all by"
        where = f"; {what} {names[strongest]}, {'above all' if total < 0 else 'most'} at depth {depth}"
    return f"By part: over all blocks log HFC/LFC changes by {round(total, 2) + 0.0:+.2f}, through {listed}{where}."


def _massive(diagnosis: DiagnosisData) -> str:
    with_them = [layer for layer in diagnosis.layers if layer.massive]
    if not with_them:
        return ""
    worst = max(with_them, key=lambda layer: layer.massive["largest_ratio"] if layer.massive else 0.0)
    assert worst.massive is not None
    effect, with_all, without = "", worst.tokens.get("hfc_lfc"), (worst.without_massive or {}).get("hfc_lfc")
    if with_all and without:
        effect = f"; there HFC/LFC is {with_all:.3g} with them and {without:.3g} without"
    return (
        f"Massive tokens ({diagnosis.provenance['massive_rule']}): at {len(with_them)} of {len(diagnosis.layers)} "
        f"depths; the largest at depth {diagnosis.layers.index(worst)}, "
        f"position {', '.join(worst.massive['positions'])}, {worst.massive['largest_ratio']:.3g} times the median"
        f"{effect}."
    )


def _predicted(diagnosis: DiagnosisData) -> str:
    clauses = []
    found = [layer.dominance for layer in diagnosis.layers if layer.dominance]
    negative, share = diagnosis.negative_share, diagnosis.smoothing_share
    if negative is not None:
        clauses.append(f"{negative:.0%} of the eigenvalues of H have a negative real part")
    undecided = diagnosis.undecided_share or 0.0
    if share is None and undecided:
        reasons = [why for one in found for why in one.undecided_because]
        clauses.append(f"head by head no case is decided ({reasons[0]})")
    if share is not None:
        cases = sum(len(row) for one in found for row in one.verdict_heads)
        rest = f", {round(undecided * cases):,} undecided" if undecided else ""
        clauses.append(
            f"head by head the smoothing eigenvalue dominates in {share:.1%} of {cases:,} cases (one per input, layer "
            f"and head){rest}"
        )
    if judged := [v for one in found for v in one.joined_verdict]:
        ties, open_ = judged.count("tie"), judged.count("undecided")
        others = [f"{ties} tie{'s' if ties > 1 else ''}"] * bool(ties) + [f"{open_} undecided"] * bool(open_)
        more = f" ({', '.join(others)})" if others else ""
        clauses.append(f"with all heads together in {judged.count('smooth')} of {len(judged)}{more}")
    return f"Spectra: {', '.join(clauses)}." if clauses else ""


def agreement(blocks: list[Layer]) -> tuple[int, list[int]]:
    """In how many blocks attention, applied once, went to the side its spectrum favours in the long run; and the
    depths where it did not.
    """
    agree, apart = 0, []
    for index, layer in enumerate(blocks):
        verdicts, change = layer.dominance.joined_verdict if layer.dominance else [], layer.change("attention")
        favour = verdicts.count("smooth") - verdicts.count("rough")
        if change is None or not favour:  # ties, and what is undecided, have no side
            continue
        if change * favour < 0:
            agree += 1
        else:
            apart.append(index + 1)
    return agree, apart


def _agreement(diagnosis: DiagnosisData) -> str:
    agree, apart = agreement(diagnosis.layers[1:])
    if not agree and not apart:
        return ""
    where = f"; they disagree at depth {_runs(apart)}" if apart else ""
    return (
        f"Prediction and measurement: in {agree} of {agree + len(apart)} blocks one pass of attention moved HFC/LFC to "
        f"the side that its spectrum (all heads) favours in the long run{where}."
    )


def _accuracy(diagnosis: DiagnosisData) -> str:
    accuracy = diagnosis.accuracy
    if accuracy is None:
        return ""
    sentence = f"Accuracy: {accuracy.clean:.1%} of {accuracy.images} test images"
    if accuracy.trained is not None:
        sentence += f" ({accuracy.trained:.1%} of all, noted after training)"
    if accuracy.corrupted:
        first, last = accuracy.corrupted[0], accuracy.corrupted[-1]
        around = [f"± {100 * standard_error(share, accuracy.corrupted_images):.1f}" for share in (first, last)]
        sentence += f"; of {accuracy.corrupted_images} of them, corrupted, from {first:.1%} {around[0]} at intensity 1"
        sentence += f" to {last:.1%} {around[1]} at {len(accuracy.corrupted)} (points, one standard error)"
    return sentence + "."


def _runs(numbers: list[int]) -> str:
    """Numbers with neighbours joined: 0–2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _further(entry: Extrapolation, diagnosis: DiagnosisData) -> str:
    predicted = {
        "smooth": f"smoothing, in the end × {entry.predicted_rate:.3g} per block"
        if entry.predicted_rate is not None
        else "smoothing",
        "rough": "no smoothing, HFC/LFC stays above zero",
        "tie": "a tie, which spectra do not decide",
        "undecided": "neither, the two radii being nearer to one another than they are known"
        if entry.rho_rough is not None
        else f"nothing ({entry.reason})",
    }[entry.verdict]
    simulated = {
        "smooth": "agrees" if entry.verdict == "smooth" else "smooths",
        "rough": "agrees" if entry.verdict == "rough" else "does not smooth within its depth",
        "open": "has not settled after its last layer",
    }[entry.simulated_verdict]
    alone = f"attention alone, simulated, {simulated}" if entry.simulated else "attention alone was not simulated"
    text = f"Repeating the {entry.what} on the first input: spectra say {predicted}; {alone}"
    if entry.real is not None and len(entry.real.depth) > 1:
        first, last = entry.real.log_hfc_lfc[0], entry.real.log_hfc_lfc[-1]
        if first is not None and last is not None:
            text += f"; the real blocks, norm and MLP included, take HFC/LFC from {_ratio(first)} to {_ratio(last)}"
            text += f" in {entry.real.depth[-1]:.0f} blocks"
            mean = diagnosis.layers[-1].tokens.get("hfc_lfc")
            if mean is not None and diagnosis.provenance["inputs"] > 1 and _ratio(first) != f"{mean:.3g}":
                text += f" ({_ratio(first)} is of this input alone; the mean over all inputs is {mean:.3g})"
    return text + (" (special tokens counted)." if any(n.kind == "special_counted" for n in entry.notes) else ".")


def _ratio(log_value: Number) -> str:
    assert log_value is not None
    return f"{math.exp(log_value):.3g}"
