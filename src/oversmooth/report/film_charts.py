"""The charts of a film: depth over time as a map, curves over depth at one step, and the last block over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report.charts.base import Key, Spec
from oversmooth.report.charts.pieces import answering, inline, log_axis, marks, nominal, quantitative, written_at_ends
from oversmooth.report.film_words import SHARES, Run, axis_of
from oversmooth.report.style import PAGE, Look, model_colour

_DOT: Spec = {"size": 26, "opacity": 1, "tooltip": {"content": "data"}}
_LOGARITHMIC = ("gradient_norm",)
_NOTHING = [0.1, 1.0]
"""The ends of an axis on which nothing is shown; logarithms have them too."""


def keys(runs: Sequence[Run]) -> list[Key]:
    """A line per run, which a reader may hide."""
    return [Key("line", PAGE.colour(model_colour(i)), run.name, "run", run.name) for i, run in enumerate(runs)]


def metrics(runs: Sequence[Run]) -> list[str]:
    """What has one number per depth, in the order in which looks have it."""
    names = [name for run in runs for row in run.rows for name, value in row.items() if isinstance(value, list)]
    return list(dict.fromkeys(names))


def first_depth(name: str) -> int:
    """Metrics of tokens begin with what enters the first block."""
    return 0 if name in METRICS else 1


def is_log(name: str) -> bool:
    return name in _LOGARITHMIC or (name in METRICS and METRICS[name].scale == "log")


def heat(name: str, runs: Sequence[Run], index: int, look: Look) -> Spec:
    """Time across, depth upwards, one cell per look and depth; data are put in by the page, or here for paper."""
    low, high = _domain(name, runs)
    label = "datum.value" if not is_log(name) else "pow(10, datum.value)"
    legend = {
        "title": axis_of(name),
        "orient": "right",
        "gradientLength": 130,
        "labelExpr": f"format({label}, '{'.0%' if name in SHARES else '.3~g'}')",
        "values": [low, (low + high) / 2, high],
        "type": "symbol",
        "symbolType": "square",
    }
    plain = {"nice": False, "zero": False}
    at = {
        "x": _steps("from"),
        "x2": {"field": "to"},
        "y": quantitative("low", "depth", plain, tickMinStep=1, format="d", grid=False, tickCount=6),
        "y2": {"field": "high"},
        "color": {"field": "shown", "type": "quantitative", "scale": look.ramp(low, high), "legend": look.legend() and legend},
    }
    drawn = {"name": "cells"} if look.in_page else inline(cells(runs[index], name))
    layers = [marks("rect", at, drawn, **answering(look)), *([_now()] if look.in_page else [])]
    return {**look.size(320, 180, 190), "layer": layers}


def cells(run: Run, name: str) -> list[dict[str, Any]]:
    """One rectangle per look and depth: each look reaches half the way to its neighbours."""
    rows = [row for row in run.rows if isinstance(row.get(name), list)]
    made = []
    for place, row in enumerate(rows):
        step = row["step"]
        begin = (step + rows[max(0, place - 1)]["step"]) / 2
        end = (step + rows[min(place + 1, len(rows) - 1)]["step"]) / 2
        if len(rows) == 1:
            begin, end = step - 0.5, step + 0.5
        for depth, value in enumerate(row[name], first_depth(name)):
            if value is None or (is_log(name) and value <= 0):
                continue
            shown = math.log10(value) if is_log(name) else value
            made.append({"from": begin, "to": end, "low": depth - 0.5, "high": depth + 0.5, "shown": shown})
    return made


def over_depth(name: str, runs: Sequence[Run]) -> Spec:
    """Curves at the chosen step, bold, and at the steps that are kept, dashed. The axis is that of all looks."""
    scale = {"nice": False, "zero": False, "padding": 6}
    at = {
        "x": quantitative("depth", "depth", scale, tickMinStep=1, format="d", tickCount=7, grid=False),
        "y": _axis(name, _values(name, runs)),
        "color": _by_run(runs),
    }
    kept = {
        "detail": {"field": "line"},
        "opacity": {"condition": {"test": "datum.kept", "value": 0.5}, "value": 1},
        "strokeDash": {"condition": {"test": "datum.kept", "value": [4, 3]}, "value": [1, 0]},
    }
    layers = [
        marks("line", at | kept, strokeWidth=2),
        marks("circle", at, transform=[{"filter": "!datum.kept"}], **_DOT),
    ]
    return {**PAGE.size(320, 200, 220), "data": {"name": "curves"}, "layer": layers}


def over_time(name: str, runs: Sequence[Run], *, first: bool = False) -> Spec:
    """After the last block, over training. first: as the page's first chart, larger and over all a cosine can be."""
    values = _values(name, runs, last=True)
    x, y = _steps("step"), _axis(name, values)
    at = {"x": x, "y": y, "color": _by_run(runs)}
    if first and name == "cos":
        y["scale"] = {"domain": [min([0.0, *values]), max([1.0, *values])], "nice": False}
        y["title"] = "how alike tokens are: mean cosine"
    last = {"name": "last"}
    layers = [marks("line", at, last, strokeWidth=2), marks("circle", at, last, **_DOT, cursor="pointer")]
    if first:
        steps = [row["step"] for run in runs for row in run.rows] or [0]
        low, high = min(steps), max(steps)
        x["scale"] |= {"domain": [low, high + max(0.06 * (high - low), 0.5)]}  # with room for what is written
        layers.append(written_at_ends(x, y, {"name": "ends"}, PAGE))
    return {**PAGE.size(320, 200, 300 if first else 220), "layer": [*layers, _now()]}


def _now() -> Spec:
    """The chosen step."""
    rule: Spec = {"color": PAGE.colour("ink"), "strokeWidth": 1.5, "aria": False}
    return marks("rule", {"x": {"field": "step", "type": "quantitative"}}, {"name": "at"}, **rule)


def _steps(name: str) -> Spec:
    scale = {"nice": False, "zero": False}
    return quantitative(name, "step", scale, format=",d", tickMinStep=1, tickCount=6, grid=False)


def _values(name: str, runs: Sequence[Run], *, last: bool = False) -> list[float]:
    rows = [row.get(name) or [] for run in runs for row in run.rows]
    known = [v for row in rows for v in (row[-1:] if last else row) if v is not None]
    return [v for v in known if v > 0] if is_log(name) else known


_LEAST = 0.04  # from the palest to the darkest colour: points of a share, of log10, or a part of the value


def _domain(name: str, runs: Sequence[Run]) -> tuple[float, float]:
    """Of the colours: all that was seen, on the scale on which it is shown; what hardly changed has few of them."""
    values = _values(name, runs) or _NOTHING
    low, high = min(values), max(values)
    if is_log(name):
        low, high = math.log10(low), math.log10(high)
    least = _LEAST if is_log(name) or name in SHARES else _LEAST * max(abs(low), abs(high)) or 1.0
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    return low, high


def _axis(name: str, values: list[float]) -> Spec:
    values = values or _NOTHING
    low, high = min(values), max(values)
    if is_log(name):
        air = max(1.08, (high / low) ** 0.06)
        domain = [low / air, high * air]
        return quantitative(
            "value", axis_of(name), {"type": "log", "domain": domain, "nice": False}, **log_axis(*domain)
        )
    air = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    ticks = {"format": "~%"} if name in SHARES else {"format": "~g"}
    scale = {"domain": [low - air, high + air], "zero": False, "nice": False}
    return quantitative("value", axis_of(name), scale, tickCount=5, **ticks)


def _by_run(runs: Sequence[Run]) -> Spec:
    return nominal("run", [run.name for run in runs], [key.colour for key in keys(runs)], None)
