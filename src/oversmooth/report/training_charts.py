"""The charts of a training report: depth over time as a map, curves over depth at one step, the last block over time.

Dashed lines are the thresholds of alarms, red crosses the snapshots at which they went off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report.charts.base import Key, Spec
from oversmooth.report.charts.pieces import answering, inline, log_axis, marks, nominal, quantitative, written_at_ends
from oversmooth.report.style import PAGE, Medium, model_colour
from oversmooth.report.training_words import SHARES, Run, axis_of, title_of

_DOT: Spec = {"size": 26, "opacity": 1, "tooltip": {"content": "data"}}
_CROSS: Spec = {"shape": "cross", "size": 90, "angle": 45, "filled": True, "opacity": 1, "aria": False}
_THRESHOLD: Spec = {"strokeDash": [6, 4], "strokeWidth": 1.5, "aria": False}
_LOGARITHMIC = ("gradient_norm",)
_NOTHING = [0.1, 1.0]  # the ends of an axis on which nothing is shown; logarithms have them too


def keys(runs: Sequence[Run]) -> list[Key]:
    """A line per run, which a reader may hide."""
    return [Key("line", PAGE.colour(model_colour(i)), run.name, "run", run.name) for i, run in enumerate(runs)]


def metrics(runs: Sequence[Run]) -> list[str]:
    """What has one number per depth, in the order in which snapshots have it."""
    names = [name for run in runs for row in run.rows for name, value in row.items() if isinstance(value, list)]
    return list(dict.fromkeys(names))


def first_depth(name: str) -> int:
    """Metrics of tokens begin with what enters the first block."""
    return 0 if name in METRICS else 1


def is_log(name: str) -> bool:
    return name in _LOGARITHMIC or (name in METRICS and METRICS[name].scale == "log")


def panels(name: str, runs: Sequence[Run], *, first: bool) -> Spec:
    """What the page needs to draw a metric. first: whether it is that of the headline."""
    return {
        "heat": [heat(name, runs, index, PAGE) for index in range(len(runs))],
        "depth": over_depth(name, runs),
        "time": over_time(name, runs, first=first),
        "from": first_depth(name),
        "log": is_log(name),
        "percent": name in SHARES,
        "title": title_of(name),
    }


def heat(name: str, runs: Sequence[Run], index: int, medium: Medium) -> Spec:
    """Time across, depth upwards, one cell per snapshot and depth; data are put in by the page, or here for paper."""
    low, high = _domain(name, runs)
    label = "datum.value" if not is_log(name) else "pow(10, datum.value)"
    words = f"format({label}, '{'.0%' if name in SHARES else '.3~g'}')"
    legend = {"title": axis_of(name), "orient": "right", "gradientLength": 130, "labelExpr": words}
    legend |= {"values": [low, (low + high) / 2, high], "type": "symbol", "symbolType": "square"}
    colour = {"field": "shown", "type": "quantitative", "scale": medium.ramp(low, high)}
    plain = {"nice": False, "zero": False}
    at = {
        "x": _steps("from"),
        "x2": {"field": "to"},
        "y": quantitative("low", "depth", plain, tickMinStep=1, format="d", grid=False, tickCount=6),
        "y2": {"field": "high"},
        "color": {**colour, "legend": medium.legend() and legend},
    }
    drawn = {"name": "cells"} if medium.in_page else inline(cells(runs[index], name))
    layers = [marks("rect", at, drawn, aria=False, **answering(medium)), *([_now()] if medium.in_page else [])]
    if crossed := [one for _, alarm in _alarms(name, [runs[index]]) for one in alarm["crossings"]]:
        at_crossing = {"x": _steps("step"), "y": {**at["y"], "field": "depth"}}
        layers.append(marks("point", at_crossing, crossed, **_CROSS, color=medium.colour("map-alarm"), stroke="white"))
    return {**medium.size(320, 180, 190), "layer": layers}


def cells(run: Run, name: str) -> list[dict[str, Any]]:
    """One rectangle per snapshot and depth, which reaches half the way to its neighbours."""
    rows = [row for row in run.rows if isinstance(row.get(name), list)]
    steps, made = [row["step"] for row in rows], []
    edges = [steps[0], *((a + b) / 2 for a, b in pairwise(steps)), steps[-1]] if rows else []
    if len(rows) == 1:
        edges = [steps[0] - 0.5, steps[0] + 0.5]
    for row, (begin, end) in zip(rows, pairwise(edges), strict=True):
        for depth, value in enumerate(row[name], first_depth(name)):
            if value is not None and (value > 0 or not is_log(name)):
                shown = math.log10(value) if is_log(name) else value
                made.append({"from": begin, "to": end, "low": depth - 0.5, "high": depth + 0.5, "shown": shown})
    return made


def over_depth(name: str, runs: Sequence[Run]) -> Spec:
    """Curves at the chosen step, bold, and at the steps that are kept, dashed. The axis is that of all snapshots."""
    scale = {"nice": False, "zero": False, "padding": 6}
    alarms = [(colour, _limits(name, alarm)) for colour, alarm in _alarms(name, runs)]
    at = {
        "x": quantitative("depth", "depth", scale, tickMinStep=1, format="d", tickCount=7, grid=False),
        "y": _axis(name, [*_values(name, runs), *(row["value"] for _, rows in alarms for row in rows)]),
        "color": _by_run(runs),
    }
    kept = {
        "detail": {"field": "line"},
        "opacity": {"condition": {"test": "datum.kept", "value": 0.5}, "value": 1},
        "strokeDash": {"condition": {"test": "datum.kept", "value": [4, 3]}, "value": [1, 0]},
    }
    threshold = {"x": at["x"], "y": at["y"]}
    layers = [
        marks("line", threshold, rows, color=colour, point={"color": colour, "size": 30}, **_THRESHOLD)
        for colour, rows in alarms
        if rows
    ]
    layers.append(marks("line", at | kept, strokeWidth=2))
    layers.append(marks("circle", at, transform=[{"filter": "!datum.kept"}], **_DOT))
    return {**PAGE.size(320, 200, 220), "data": {"name": "curves"}, "layer": layers}


def over_time(name: str, runs: Sequence[Run], *, first: bool = False) -> Spec:
    """After the last block, over training. first: as the page's first chart, which is larger."""
    alarms = _alarms(name, runs)
    depths = max((len(row[name]) for run in runs for row in run.rows if name in row), default=1)
    deepest = depths - 1 + first_depth(name)
    limits = [(colour, row) for colour, alarm in alarms for row in _limits(name, alarm) if row["depth"] == deepest]
    x, y = _steps("step"), _axis(name, [*_values(name, runs, last=True), *(row["value"] for _, row in limits)])
    at = {"x": x, "y": y, "color": _by_run(runs)}
    last = {"name": "last"}
    layers = [marks("line", at, last, strokeWidth=2), marks("circle", at, last, **_DOT, cursor="pointer")]
    layers += [marks("rule", {"y": y}, [row], color=colour, **_THRESHOLD) for colour, row in limits]
    if crossed := [one for _, alarm in alarms for one in alarm["crossings"] if one["depth"] == deepest]:
        layers.append(marks("point", {"x": x, "y": y}, crossed, **_CROSS, color=PAGE.colour("alarm")))
    if first:
        steps = [row["step"] for run in runs for row in run.rows] or [0]
        low, high = min(steps), max(steps)
        x["scale"] |= {"domain": [low, high + max(0.06 * (high - low), 0.5)]}  # with room for what is written
        layers.append(written_at_ends(x, y, {"name": "ends"}, PAGE))
    return {**PAGE.size(320, 200, 300 if first else 220), "layer": [*layers, _now()]}


def _alarms(name: str, runs: Sequence[Run]) -> list[tuple[str, dict[str, Any]]]:
    """Those of a metric, as `History.alarms` has them, with their colours: red, or that of the run whose limits they
    are.
    """
    found = [(i, alarm) for i, run in enumerate(runs) for alarm in run.alarms if alarm["metric"] == name]
    limits = {text: [a["limits"] for _, a in found if a["text"] == text] for text in (a["text"] for _, a in found)}
    own = {text for text, of in limits.items() if any(one != of[0] for one in of)}
    return [(PAGE.colour(model_colour(i) if a["text"] in own else "alarm"), a) for i, a in found]


def _limits(name: str, alarm: dict[str, Any]) -> list[Spec]:
    """The value beyond which an alarm goes off, at every depth that it watches."""
    limits = enumerate(alarm["limits"], first_depth(name))
    return [{"depth": depth, "value": limit} for depth, limit in limits if limit is not None]


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
        logs = {"type": "log", "domain": [low / air, high * air], "nice": False}
        return quantitative("value", axis_of(name), logs, **log_axis(low / air, high * air))
    air = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    ticks = {"format": "~%"} if name in SHARES else {"format": "~g"}
    scale = {"domain": [low - air, high + air], "zero": False, "nice": False}
    return quantitative("value", axis_of(name), scale, tickCount=5, **ticks)


def _by_run(runs: Sequence[Run]) -> Spec:
    return nominal("run", [run.name for run in runs], [key.colour for key in keys(runs)], None)
