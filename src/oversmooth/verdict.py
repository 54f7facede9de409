"""A diagnosis in plain words: what was measured, what was predicted, where the two part.

Neutral by design: smoothing is a quantity, not a fault.
"""

from __future__ import annotations

import math

from oversmooth.diagnosis import Diagnosis, Extrapolation, Layer, Number


def sentences(diagnosis: Diagnosis) -> list[str]:
    blocks = diagnosis.layers[1:]
    said = [*_measured(diagnosis), *_parts(blocks), *_massive(diagnosis)]
    said += _predicted(diagnosis, blocks)
    said += _agreement(blocks)
    return said + [_further(entry) for entry in diagnosis.extrapolation]


def _measured(diagnosis: Diagnosis) -> list[str]:
    first, last = diagnosis.layers[0].tokens, diagnosis.layers[-1].tokens
    out = []
    start, end = first.get("hfc_lfc"), last.get("hfc_lfc")
    if start and end:
        towards = "nearer to" if end < start else "further from"
        out.append(
            f"Measured: HFC/LFC goes from {start:.3g} before the first block to {end:.3g} after the last "
            f"(× {end / start:.2f}): relative to their mean, tokens end {towards} one another than they began."
        )
    also = []
    if (before := first.get("cos")) is not None and (after := last.get("cos")) is not None:
        also.append(
            f"the mean cosine between tokens goes from {round(before, 2) + 0.0:.2f} to {round(after, 2) + 0.0:.2f}"
        )
    if (before := first.get("effective_rank")) is not None and (after := last.get("effective_rank")) is not None:
        also.append(f"the effective rank from {before:.3g} to {after:.3g}")
    if also:
        out.append(f"Measured: {' and '.join(also)}.")
    return out


def _parts(blocks: list[Layer]) -> list[str]:
    sums: dict[str, float] = {}
    for layer in blocks:
        for change in layer.changes:
            sums[change.part] = sums.get(change.part, 0.0) + (change.log_hfc_lfc or 0.0)
    if not sums:
        return []
    listed = ", ".join(f"{_sublayers(part)} {value:+.2f}" for part, value in sums.items())
    strongest = min(sums, key=lambda part: sums[part])
    most = min(range(len(blocks)), key=lambda place: _of(blocks[place], strongest))
    where = (
        "" if sums[strongest] >= 0 else f"; what smooths most is {_sublayers(strongest)}, most of all in block {most}"
    )
    return [f"By part, the change in log HFC/LFC over all blocks: {listed}{where}."]


def _of(layer: Layer, part: str) -> float:
    return sum(change.log_hfc_lfc or 0.0 for change in layer.changes if change.part == part)


def _sublayers(part: str) -> str:
    return {"attention": "attention", "mlp": "MLPs", "norm": "norms"}.get(part, part)


def _massive(diagnosis: Diagnosis) -> list[str]:
    with_them = [layer for layer in diagnosis.layers if layer.massive]
    if not with_them:
        return []
    worst = max(with_them, key=lambda layer: layer.massive["largest_ratio"] if layer.massive else 0.0)
    depth = diagnosis.layers.index(worst)
    assert worst.massive is not None
    places = ", ".join(worst.massive["positions"])
    effect = ""
    if worst.without_massive and worst.tokens.get("hfc_lfc") and worst.without_massive.get("hfc_lfc"):
        effect = (
            f"; there HFC/LFC is {worst.tokens['hfc_lfc']:.3g} with them and {worst.without_massive['hfc_lfc']:.3g} "
            "without"
        )
    return [
        f"Massive-activation tokens ({diagnosis.provenance['massive_rule']}) at {len(with_them)} of "
        f"{len(diagnosis.layers)} depths; the largest {'on entry' if depth == 0 else f'after block {depth - 1}'}, at "
        f"position {places}, {worst.massive['largest_ratio']:.3g} times the median{effect}."
    ]


def _predicted(diagnosis: Diagnosis, blocks: list[Layer]) -> list[str]:
    out = []
    negative = diagnosis.negative_share
    if negative is not None:
        out.append(
            f"Spectra: {negative:.0%} of the eigenvalues of H (all heads of a layer joined) have a negative real part."
        )
    share = diagnosis.smoothing_share
    if share is not None:
        cases = sum(len(row) for layer in blocks if layer.dominance for row in layer.dominance.verdict_heads)
        out.append(
            f"Spectra: the smoothing eigenvalue dominates in {share:.1%} of {cases:,} cases (input, layer, head)."
        )
    judged = [v for layer in blocks if layer.dominance for v in layer.dominance.joined_verdict]
    if judged:
        smooth = sum(v == "smooth" for v in judged)
        tie = sum(v == "tie" for v in judged)
        ties = f", {tie} a tie" if tie else ""
        out.append(
            f"Spectra: with all heads together, smoothing dominates in {smooth} of {len(judged)} cases (input, layer)"
            f"{ties}."
        )
    return out


def _agreement(blocks: list[Layer]) -> list[str]:
    """Whether each attention sub-layer, applied once, went to the side its spectrum favours in the long run."""
    agree, part = 0, []
    for place, layer in enumerate(blocks):
        if not layer.dominance or not layer.dominance.joined_verdict:
            continue
        verdicts = layer.dominance.joined_verdict
        smooth = 2 * sum(v == "smooth" for v in verdicts) > len(verdicts)
        change = _of(layer, "attention")
        if (change < 0) == smooth:
            agree += 1
        else:
            part.append(place)
    if not agree and not part:
        return []
    where = f"; they part in block{'s' if len(part) > 1 else ''} {_runs(part)}" if part else ""
    return [
        f"Against what was measured: in {agree} of {agree + len(part)} blocks the attention sub-layer moved HFC/LFC to "
        f"the side its spectrum favours in the long run{where}. One step need not go where infinitely many would."
    ]


def _runs(places: list[int]) -> str:
    """Numbers with neighbours joined: 0–2, 5."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _further(entry: Extrapolation) -> str:
    said = {
        "smooth": f"smoothing, HFC/LFC times {entry.predicted_rate:.3g} a block in the end"
        if entry.predicted_rate is not None
        else "smoothing",
        "rough": "no smoothing: HFC/LFC tends to a level above zero",
        "tie": "a tie, which spectra do not decide",
    }[entry.verdict]
    simulated = {
        "smooth": "agrees" if entry.verdict == "smooth" else "smooths",
        "rough": "agrees" if entry.verdict == "rough" else "does not smooth within its depth",
        "open": "has not settled after its last layer",
    }[entry.simulated_verdict]
    text = f"Repeating the {entry.what}: the spectra say {said}; attention alone, simulated, {simulated}"
    if entry.real is not None and len(entry.real.depth) > 1:
        first, last = entry.real.log_hfc_lfc[0], entry.real.log_hfc_lfc[-1]
        if first is not None and last is not None:
            text += f"; the real blocks, norm and MLP included, take HFC/LFC from {_ratio(first)} to {_ratio(last)}"
            text += f" in {entry.real.depth[-1]:.0f} blocks"
    return text + "."


def _ratio(log_value: Number) -> str:
    assert log_value is not None
    return f"{math.exp(log_value):.3g}"
