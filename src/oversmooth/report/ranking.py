"""Depths side by side: a table for the terminal, and a chart of every measure with its errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.table import Table

from oversmooth.report.charts.pieces import depth_axis, marks, quantitative
from oversmooth.report.figures import Figure
from oversmooth.report.style import PAPER, UNKNOWN, fixed
from oversmooth.report.terminal import plain_table
from oversmooth.results.ranking import MEASURES, LayerRanking

_COLUMNS = 3  # panels beside each other


def table(ranking: LayerRanking) -> Table:
    """A row per depth; * marks the depth that a measure ranks first."""
    shown = [(MEASURES[name], column) for name, column in ranking.measures.items()]
    found = plain_table("depth", *(measure.heading for measure, _ in shown))
    for depth in range(len(ranking.depths)):
        cells = [_cell(column.values[depth], measure.decimals, column.best == depth) for measure, column in shown]
        found.add_row(str(depth), *cells)
    errors = [[error for error in column.errors if error is not None] for _, column in shown]
    largest = (max(known, default=None) for known in errors)
    found.add_section()
    found.add_row("± up to", *(_cell(e, m.decimals + 1, False) for e, (m, _) in zip(largest, shown, strict=True)))
    return found


def _cell(value: float | None, decimals: int, best: bool) -> str:
    return UNKNOWN if value is None else f"{fixed(value, decimals)}{'*' if best else ''}"


def chart(ranking: LayerRanking) -> Figure:
    """A panel per measure that ranks: a line over depth with its 95% band, the best depth marked; and CKA as a map."""
    panels = [_panel(ranking, name) for name, column in ranking.measures.items() if column.best is not None]
    heading = {"text": "Depths to embed with", "subtitle": f"{ranking.model}: {ranking.data}", "anchor": "start"}
    arranged = {"columns": _COLUMNS, "spacing": 72, "bounds": "flush", "resolve": {"legend": {"color": "independent"}}}
    return Figure({"title": {**heading, "fontSize": 16, "offset": 14}, "concat": [*panels, _map(ranking)], **arranged})


def _panel(ranking: LayerRanking, name: str) -> dict[str, Any]:
    column, colour = ranking.measures[name], PAPER.colour("model-0")
    rows = [
        {"depth": depth, "value": value, "low": value - 1.96 * (error or 0.0), "high": value + 1.96 * (error or 0.0)}
        for depth, (value, error) in enumerate(zip(column.values, column.errors, strict=True))
        if value is not None
    ]
    y = partial(quantitative, title=None, scale={"zero": False}, tickCount=4)
    x = depth_axis(len(ranking.depths))
    first = [row for row in rows if row["depth"] == column.best]
    layers = [
        marks("area", {"x": x, "y": y("low"), "y2": {"field": "high"}}, rows, color=colour, opacity=0.2),
        marks("line", {"x": x, "y": y("value")}, rows, color=colour),
        marks("circle", {"x": x, "y": y("value")}, first, color=PAPER.colour("model-1"), size=70, opacity=1),
    ]
    return {**PAPER.size(220, 150), "title": {"text": MEASURES[name].label, "fontSize": 12}, "layer": layers}


def _map(ranking: LayerRanking) -> dict[str, Any]:
    rows = [
        {"depth": i, "other": j, "value": value}
        for i, row in enumerate(ranking.cka)
        for j, value in enumerate(row)
        if value is not None
    ]
    axis = {"labelAngle": 0, "labelOverlap": True}
    at: dict[str, Any] = {
        "x": {"field": "depth", "type": "ordinal", "title": "depth", "axis": axis},
        "y": {"field": "other", "type": "ordinal", "title": None, "sort": "descending", "axis": axis},
        "color": {
            "field": "value",
            "type": "quantitative",
            "scale": PAPER.ramp(),
            "legend": {"title": None, "gradientLength": 150},
        },
    }
    return {**PAPER.size(170, 150), "title": {"text": "CKA between depths", "fontSize": 12}, **marks("rect", at, rows)}
