"""Charts of tables: our figures filled and published ones hollow, with error bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from oversmooth.report.style import MODES, PAPER, plain_signs
from oversmooth.safety.errors import InputError

_COLOURS = PAPER.colours(list(MODES.values()))
"""Plain, smoothing, sharpening."""
Point = dict[str, Any]
"""Of a panel: model, whose, value, low and high; on lines x too."""


def point(model: str, whose: str, mean: float, spread: float | None, **more: Any) -> Point:
    width = spread or 0.0
    return {"model": model, "whose": whose, "value": mean, "low": mean - width, "high": mean + width, **more}


def over_seeds(model: str, whose: str, values: Sequence[float], **more: Any) -> list[Point]:
    """The mean and the standard deviation (n − 1) as one point; none where there are no values."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return [point(model, whose, statistics.fmean(values), spread, **more)] if values else []


def points(panels: list[tuple[str, list[Point]]], label: str) -> Any:
    """A panel per title, with a place on it for each model."""
    import altair as alt

    panels = _drawable([panel for panel in panels if panel[1]])
    whose = list(dict.fromkeys(row["whose"] for _, rows in panels for row in rows))
    legend = ", ".join(f"{'hollow' if word.startswith('published') else 'filled'}: {word}" for word in whose)
    drawn = []
    for title, rows in panels:
        names = list(dict.fromkeys(row["model"] for row in rows))
        base = alt.Chart(alt.Data(values=rows)).encode(
            alt.X("model:N", sort=names, title=None, axis=alt.Axis(labelAngle=0, grid=False)),
            alt.XOffset("whose:N", sort=whose, scale=alt.Scale(paddingOuter=0.8)),
            alt.Color("model:N", sort=names, scale=_colours(alt, names), legend=None),
        )
        # Flush: a label that overhangs the end of the axis would push this panel's title above its neighbour's.
        scale, axis = alt.Scale(zero=False, nice=True, padding=8), alt.Axis(labelFlush=True)
        low, value = (alt.Y(f"{what}:Q", title=label, scale=scale, axis=axis) for what in ("low", "value"))
        bars = base.mark_rule(strokeWidth=1.5).encode(low, alt.Y2("high:Q"))
        marks = base.mark_point(size=70, strokeWidth=1.5, opacity=1).encode(value, fill=_fill(alt, names))
        heading = alt.Title(title, subtitle=legend)
        drawn.append(alt.layer(bars, marks).properties(width=190, height=190, title=heading))
    return alt.hconcat(*drawn, spacing=40).resolve_scale(y="independent")


def bars(
    title: str,
    rows: list[Point],
    label: str,
    *,
    models: Sequence[str] | None = None,
    width: int = 420,
    named: bool = True,
) -> Any:
    """A row per model, a point with its error bar: for more models than a panel has room for.

    models: which have a row; by default those of the points. named: whether names stand beside it.
    """
    import altair as alt

    ((_, rows),) = _drawable([(title, rows)] if rows else [])
    names = [row["model"] for row in rows] if models is None else [plain_signs(name) for name in models]
    axis = alt.Axis(labelLimit=260, grid=True, labels=named, ticks=named)
    base = alt.Chart(alt.Data(values=rows)).encode(
        alt.Y("model:N", sort=names, scale=alt.Scale(domain=names), title=None, axis=axis),
        color=alt.value(_COLOURS[0]),
    )
    scale = alt.Scale(zero=False, nice=True, padding=8)
    rules = base.mark_rule(strokeWidth=1.5).encode(alt.X("low:Q", title=label, scale=scale), alt.X2("high:Q"))
    marks = base.mark_point(size=70, filled=True, opacity=1).encode(alt.X("value:Q", title=label, scale=scale))
    return alt.layer(rules, marks).properties(width=width, height=24 * len(names), title=title)


def bars_side_by_side(
    panels: list[tuple[str, list[Point]]], label: str, models: Sequence[str], columns: int = 4
) -> Any:
    """`bars` on scales of their own, so many in a row; the same models in all, named beside the first."""
    import altair as alt

    drawn = [
        bars(title, rows, label, models=models, width=150, named=place % columns == 0)
        for place, (title, rows) in enumerate(_drawable(panels))
    ]
    return alt.concat(*drawn, columns=columns, spacing=24)


def lines(panels: list[tuple[str, list[Point], str]], x: str, *, ratios: tuple[str, ...] = ()) -> Any:
    """A panel per title, points and label: a line for each model and source.

    ratios: labels of axes that are logarithmic.
    """
    import altair as alt

    labels = [label for _, rows, label in panels if rows]
    drawable = _drawable([(title, rows) for title, rows, _ in panels if rows])
    names = list(dict.fromkeys(row["model"] for _, rows in drawable for row in rows))
    legend = PAPER.legend(columns=3)
    drawn = []
    for (title, rows), label in zip(drawable, labels, strict=True):
        at = sorted({row["x"] for row in rows})
        whose = list(dict.fromkeys(row["whose"] for row in rows))
        # Vega shortens ~g by the distance of ticks: 200 would be 2e+2.
        whole = all(float(value).is_integer() for value in at)
        axis = alt.Axis(values=at, format=",d" if whole else "~g", grid=False, labelFlush=False, labelOverlap=True)
        base = alt.Chart(alt.Data(values=rows)).encode(
            alt.X("x:Q", title=x, axis=axis, scale=alt.Scale(zero=False, nice=False, padding=14)),
            alt.Color("model:N", sort=names, scale=_colours(alt, names), legend=legend),
        )
        # Not nice: a label at the very end of the axis would push this panel's title above its neighbour's.
        scale = alt.Scale(type="log" if label in ratios else "linear", zero=False, nice=False, padding=10)
        y = alt.Y("value:Q", title=label, scale=scale, axis=alt.Axis(tickCount=6, format="~g"))
        line = base.mark_line(strokeWidth=2).encode(y)
        if len(whose) > 1:
            dashes = alt.Scale(domain=whose, range=[[5, 3] if w.startswith("published") else [1, 0] for w in whose])
            line = line.encode(alt.StrokeDash("whose:N", sort=whose, scale=dashes, legend=legend))
        bars = base.mark_rule(strokeWidth=1.5).encode(alt.Y("low:Q", scale=scale), alt.Y2("high:Q"))
        dots = base.mark_point(size=35, strokeWidth=1.5, opacity=1).encode(y, fill=_fill(alt, names))
        width = 420 if len(drawable) == 1 else 270
        drawn.append(alt.layer(line, bars, dots).properties(width=width, height=240, title=title))
    return alt.hconcat(*drawn, spacing=72, bounds="flush")


def _drawable(panels: list[tuple[str, list[Point]]]) -> list[tuple[str, list[Point]]]:
    """Titles and points, with signs that every font has."""
    if not panels:
        raise InputError("there is nothing to draw: no cell of the table is there yet; run some first")
    return [(title, [{**row, "model": plain_signs(row["model"])} for row in rows]) for title, rows in panels]


def _colours(alt: Any, names: list[str]) -> Any:
    """A smoothing and a sharpening model, told by their signs, have their own colours whichever others are there."""
    own = [{"+": 1, "−": 2}.get(name[-1:], 0) for name in names]
    colours = [_COLOURS[place] for place in own] if len(set(own)) == len(own) else _COLOURS
    return alt.Scale(domain=names, range=colours)


def _fill(alt: Any, names: list[str]) -> Any:
    """Ours in the model's colour; what is published hollow, and white, so that no line shows through."""
    own = alt.Fill("model:N", sort=names, scale=_colours(alt, names), legend=None)
    return alt.condition("substring(datum.whose, 0, 9) == 'published'", alt.value(PAPER.colour("ground")), own)
