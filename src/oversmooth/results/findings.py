"""What follows from a diagnosis, as values: how tokens end, which sublayer does it, and how predictions compare.

`verdict` turns them into English.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from oversmooth.metrics import METRICS
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number
from oversmooth.results.parts import Course, Extrapolation, Layer

DEFINITIONS = ("hfc_lfc", "cos", "effective_rank")  # the metrics by which tokens end more or less similar
_LEAST = 0.005  # change that counts as one: relative, but absolute for the cosine
_STILL = 0.1  # change of log HFC/LFC over a whole course that counts as none
_LARGEST = 700.0  # whose exponential is a float


@dataclass(frozen=True)
class End:
    """One metric before the first block and after the last."""

    before: float
    after: float
    side: int  # whether tokens end more similar (1), less similar (−1), or about as similar (0)


def ends(diagnosis: DiagnosisData, *, without_massive: bool = False) -> dict[str, End]:
    """By metric, where both ends are known. without_massive: leave out massive-activation tokens."""
    found = {}
    for metric in DEFINITIONS:
        course = diagnosis.curve(metric, without_massive=without_massive)
        before, after = course[0], course[-1]
        if before is not None and after is not None:
            changed = abs(after - before) > (_LEAST if metric == "cos" else _LEAST * abs(before))
            side = 1 if (after > before) != METRICS[metric].falls else -1
            found[metric] = End(before, after, side if changed else 0)
    return found


@dataclass(frozen=True)
class Sublayers:
    """What each sublayer does to log HFC/LFC, over all blocks; below 0 it smooths."""

    sums: dict[str, float]
    total: float  # rounded to two digits
    strongest: str  # the one that does most of the total; empty where the total is 0
    depth: int  # where it does most, counted from 1


def sublayers(diagnosis: DiagnosisData) -> Sublayers | None:
    """None where no sublayer was measured."""
    parts = dict.fromkeys(change.part for layer in diagnosis.layers[1:] for change in layer.changes)
    sums = {part: total for part in parts if (total := diagnosis.change(part)) is not None}
    if not sums:
        return None
    total = round(math.fsum(sums.values()), 2)
    if not total:
        return Sublayers(sums, 0.0, "", 0)
    # What a sublayer does against the total does not explain the total.
    most = min if total < 0 else max
    strongest = most(sums, key=lambda part: sums[part])
    values = [layer.change(strongest) or 0.0 for layer in diagnosis.layers[1:]]
    return Sublayers(sums, total, strongest, values.index(most(values)) + 1)


def agreement(blocks: list[Layer]) -> tuple[int, list[int]]:
    """In how many blocks attention changed HFC/LFC in the direction that its spectrum predicts, and the depths where it
    did not. blocks: without what enters the first.
    """
    agree, apart = 0, []
    for index, layer in enumerate(blocks):
        verdicts, change = layer.dominance.joined_verdict if layer.dominance else [], layer.change("attention")
        favour = verdicts.count("smooth") - verdicts.count("rough")
        if change is None or not favour:  # ties, and what is undecided, predict no direction
            continue
        if change * favour < 0:
            agree += 1
        else:
            apart.append(index + 1)
    return agree, apart


Judgement = Literal["right", "levels off", "no decay", "wrong sign", "still falling", "unknown"]


@dataclass(frozen=True)
class PredictionCheck:
    """Where the spectra say that attention pulls, against the real blocks repeated."""

    judgement: Judgement
    """right. "levels off": it falls at first, and not to 0, as spectra say. "no decay", "wrong sign": attention pulls
    to smoothing, which does not happen. "still falling": attention does not, and smoothing happens. unknown: spectra
    decide nothing, or the blocks did not run.
    """
    before: Number = None
    after: Number = None  # HFC/LFC before the repeated blocks and after them
    blocks: int = 0  # how many ran
    real_rate: Number = None  # factor on HFC/LFC per real block, at the end


def compared(entry: Extrapolation) -> PredictionCheck:
    """Spectra against reality."""
    if (known := _known(entry.real)) is None:
        return PredictionCheck("unknown")
    depth, logs = known
    half = len(logs) // 2
    change, later = logs[-1] - logs[0], logs[-1] - logs[half]
    judgement: Judgement = "unknown"
    if entry.verdict == "rough":
        judgement = "right" if change >= -_STILL else "still falling" if later < -_STILL else "levels off"
    elif entry.verdict == "smooth":
        judgement = "right" if change <= -_STILL else "wrong sign" if change > _STILL else "no decay"
    slope = later / (depth[-1] - depth[half]) if depth[-1] > depth[half] else change
    before, after, rate = (math.exp(min(log, _LARGEST)) for log in (logs[0], logs[-1], slope))
    return PredictionCheck(judgement, before, after, int(depth[-1]), rate)


def exponent(entry: Extrapolation) -> float | None:
    """Of the power law by which HFC/LFC goes on in depth, over the prediction; None where it is none."""
    course = _known(entry.predicted)
    if entry.way != "log time" or course is None:
        return None
    depth, logs = course
    return (logs[-1] - logs[0]) / math.log(depth[-1] / depth[0])


def _known(course: Course | None) -> tuple[list[float], list[float]] | None:
    """Depths and log HFC/LFC from the beginning on; None where fewer than two are known."""
    rows = [] if course is None else list(zip(course.depth, course.log_hfc_lfc, strict=True))
    known = [(x, log) for x, log in rows if log is not None]
    if len(known) < 2 or rows[0][1] is None:
        return None
    return [x for x, _ in known], [log for _, log in known]
