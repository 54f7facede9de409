"""What several charts have in common: axes, colours by model, and what answers the mouse."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from oversmooth.report.charts.base import Key, Panel, Shown, Spec
from oversmooth.report.style import Medium
from oversmooth.safety.foreign import shortened, visible

_MOST_OF_A_NAME = 60
_MOST_OF_THREE = 22  # letters of names of which three stand side by side in a legend
_DENSE = (1, 1.5, 2, 3, 4, 5, 6, 8)
_EDGE = 0.9999  # what lies at the very end of an axis is inside it, however it was rounded
BY_LAYER: Spec = {"columns": 2, "spacing": 24}  # how figures set panels of `by_layer` beside each other
DASHES = {"line": [1, 0], "line dashed": [5, 3], "line dotted": [2, 4]}  # by the page's signs


def quantitative(field: str, title: str | None, scale: Spec, **axis: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def log_axis(low: float, high: float) -> Spec:
    """Settings of a logarithmic axis: as many labels as there is room for, powers of ten as such."""
    small = "replace(format(datum.value, '~e'), '-', '−')"
    label = f"datum.value < 1e-3 || datum.value >= 1e5 ? {small} : format(datum.value, '~g')"
    ticks = log_ticks(low, high)
    # Vega halves ticks that are more than it was told to draw, given ones too
    return {"values": ticks, "tickCount": len(ticks), "labelExpr": label, "labelOverlap": "greedy"}


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Labels of a logarithmic axis over all of it: 1, 2, 3, 5 of every decade, or fewer where there are many decades.

    Vega's own leave out whatever lies between, say, 3 and 10, and so the upper half of some axes.

    >>> log_ticks(0.2, 7.0), log_ticks(1e-12, 1.0), log_ticks(2.1, 2.6)
    ([0.2, 0.5, 1.0, 2.0, 5.0], [1e-12, 1e-10, 1e-08, 1e-06, 0.0001, 0.01, 1.0], [2.2, 2.4, 2.6])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    sparser = max(1, math.ceil((last - first) / most))
    for digits, stride in ((_DENSE, 1), ((1, 2, 3, 5), 1), ((1, 2, 5), 1), ((1, 3), 1), ((1,), sparser)):
        powers = range(math.ceil(first / stride) * stride, last + 1, stride)
        ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        inside = [tick for tick in ticks if low * _EDGE <= tick <= high / _EDGE]
        if len(inside) <= most:
            break
    if len(inside) > 2:
        return inside
    # Less than an octave: round numbers at even distances.
    steps = (digit * 10.0**power for power in range(math.floor(math.log10(high)), -300, -1) for digit in (5, 2, 1))
    evenly = ([n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps)
    return [float(f"{tick:.6g}") for tick in next((ticks for ticks in evenly if len(ticks) > 2), [])]


def nominal(field: str, domain: list[Any], values: list[Any], legend: Spec | None) -> Spec:
    """A colour, a dash or a shape for each of these."""
    scale = {"domain": domain, "range": values}
    return {"field": field, "type": "nominal", "sort": domain, "scale": scale, "legend": legend}


def inline(rows: list[Spec]) -> Spec:
    return {"values": rows}


def marks(
    kind: str, at: Spec, rows: list[Spec] | Spec | None = None, *, transform: list[Spec] | None = None, **settings: Any
) -> Spec:
    """A layer of a chart. at: what is encoded how. rows: its own data, or where they are. settings: of the mark."""
    own: Spec = {} if rows is None else {"data": inline(rows) if isinstance(rows, list) else rows}
    own |= {} if transform is None else {"transform": transform}
    return {**own, "mark": {"type": kind, **settings}, "encoding": at}


def written_at_ends(x: Spec, y: Spec, rows: list[Spec] | Spec, medium: Medium) -> Spec:
    """What rows have to say, right of their points."""
    text: Spec = {"align": "left", "dx": 7, "fontSize": 13, "fontWeight": 600, "aria": False}
    return marks("text", {"x": x, "y": y, "text": {"field": "said"}}, rows, **text, color=medium.colour("ink"))


def depth_axis(count: int, title: str = "depth") -> Spec:
    """Where x is a layer: whole numbers only, whatever the width."""
    scale = {"domain": [-0.4, max(count - 1, 0) + 0.4], "nice": False, "zero": False}
    return quantitative(
        "depth", title, scale, format="d", tickMinStep=1, tickCount=min(count, 7), grid=False, labelFlush=False
    )


def by_model(models: list[Shown], medium: Medium) -> Spec:
    """Colours of lines; on paper with a legend, where there are several."""
    columns = 3 if max(len(m.label) for m in models) < _MOST_OF_THREE else 2
    legend = medium.legend(symbolType="stroke", symbolStrokeWidth=3, columns=columns) if len(models) > 1 else None
    return nominal("model", [m.key for m in models], medium.colours([m.colour for m in models]), legend)


def model_legend(models: list[Shown], medium: Medium) -> list[Key]:
    return [Key("line", medium.colour(m.colour), m.label, "model", m.key) for m in models]


def dots(medium: Medium, size: float, grown: float = 48) -> Spec:
    """The size of points on lines: in the page they grow where the mouse is."""
    on_hover = {"condition": {"param": "hover", "empty": False, "value": grown}} if medium.in_page else {}
    return {**on_hover, "value": size}


def answering(medium: Medium) -> Spec:
    """What a mark needs to show its `tip`, and to let itself be clicked where a click means a layer."""
    return {"tooltip": {"content": "data"}, "cursor": "pointer"} if medium.in_page else {}


def tip(medium: Medium, title: str, said: list[tuple[int, str]], **more: Any) -> Spec:
    """What a row of data says under the mouse, by place among the panel's `tips`; nothing on paper."""
    return {"title": title, "tip": [list(entry) for entry in said], **more} if medium.in_page else {}


def titled(depth: int, *names: str) -> str:
    """Of a tip: the depth and the names of the layers there."""
    return f"{depth} · {' / '.join(visible(shortened(name, _MOST_OF_A_NAME)) for name in names)}"


def hover_columns(medium: Medium, stops: list[tuple[float, Spec]], x: Spec) -> list[Spec]:
    """Invisible columns, one around each x, that show everything known there."""
    if not medium.in_page or not stops:
        return []
    low, high = x["scale"]["domain"]
    places = [at for at, _ in stops]
    edges = [low, *((a + b) / 2 for a, b in pairwise(places)), high]
    field = x["field"]
    rows = [{field: at, "from": edges[i], "to": edges[i + 1], **said} for i, (at, said) in enumerate(stops)]
    select = {"type": "point", "fields": [field], "on": "pointerover", "clear": "pointerout"}
    shade = {"condition": {"param": "hover", "empty": False, "value": 0.07}, "value": 0}
    width = {"x": {"field": "from", "type": "quantitative", "scale": x["scale"]}, "x2": {"field": "to"}}
    mark: Spec = {"aria": False, "tooltip": {"content": "data"}, "color": medium.colour("ink")}
    columns = marks("rect", {**width, "fillOpacity": shade}, rows, **mark)
    return [{"data": columns["data"], "params": [{"name": "hover", "select": select}], **columns}]


def caption(medium: Medium, text: str) -> str:
    """Titles of panels begin with a capital in the page, where they stand in text; names of models never change."""
    return text[:1].upper() + text[1:] if medium.in_page else text


def by_layer(
    models: list[Shown],
    medium: Medium,
    draw: Callable[[Shown, Spec, Callable[..., Spec]], Spec | None],
    described: str,
    place: str,
    **more: Any,
) -> list[Panel]:
    """A panel per model that has data. draw: of the model, its bands, and a function from heights to a size."""
    panels = []
    for m in models:
        count = len(m.diagnosis.layers)
        axis, scale = {"labelAngle": 0, "labelOverlap": True, "grid": False}, {"domain": list(range(1, count))}
        bands = {"field": "depth", "type": "ordinal", "title": "depth", "axis": axis, "scale": scale}
        spec = draw(m, bands, partial(medium.size, max(120, min(420, 26 * count))))
        if spec is not None:
            title, said = "" if medium.in_page else m.label, f"{described}, by layer of {m.label}"
            # Neither too narrow to tell layers apart nor, with few of them, absurdly wide.
            widths = 14 * count + 50, 150 * count + 60
            panels.append(Panel(title, spec, place=place, described=said, widths=widths, **more))
    return panels
