"""Metrics over depth, a line per model."""

from __future__ import annotations

import dataclasses
import itertools
import math

from oversmooth.metrics import METRICS
from oversmooth.metrics.registry import Metric
from oversmooth.report.charts.base import Drawing, Key, Panel, Shown, Spec, chart
from oversmooth.report.charts.pieces import (
    DASHES,
    by_model,
    caption,
    depth_axis,
    dots,
    hover_columns,
    inline,
    log_axis,
    marks,
    model_legend,
    nominal,
    quantitative,
    tip,
    titled,
)
from oversmooth.report.style import Medium, number, percent, spread
from oversmooth.results.facts import Number
from oversmooth.results.parts import Layer

_SIZE = (210, 190, 240)
# In the page, by notion; whatever else is measured shares one place, where the reader chooses.
_PLACES = {"input convergence": "hfc", "angle convergence": "cos"}
_BESIDE = {"cos": "abs_cos", "hfc_lfc": "hfc_lfc_special"}  # metrics that the page draws dashed beside others
_MOST_DOTTED = 30
_ROOM = 0.13  # above the largest possible rank, as a share of it: for its label, where no line can be
# Metrics that cannot exceed the smaller of tokens and width: their axis shows all that is possible.
_BOUNDED = ("effective_rank", "stable_rank")


@chart(
    title="Tokens over depth",
    lead="Three definitions of smoothing, each weaker than the one before. Tokens become equal if HFC/LFC falls to 0, "
    "parallel if the mean cosine rises to 1, and a rank-one array if the effective rank falls to 1. Depth 0 is the "
    "input of the first block. Bands show one standard deviation over inputs.",
)
def curves(models: list[Shown], medium: Medium) -> Drawing:
    """The three definitions after every block, a line per model (Dovonon et al.'s figure 2). In the page with
    massive-activation tokens and without them, where there are any.
    """
    panels = notions(models, medium)
    if medium.in_page and any(layer.without_massive for m in models for layer in m.diagnosis.layers):
        for panel in panels:
            panel.without_massive = False
        panels += notions(models, medium, without_massive=True)
    return Drawing(panels, model_legend(models, medium) if len(models) > 1 else [])


def notions(models: list[Shown], medium: Medium, *, without_massive: bool = False) -> list[Panel]:
    """A panel per metric: in the page every metric that is shown, on paper one for each definition."""
    page = [metric for metric in METRICS.values() if metric.label and metric.name not in _BESIDE.values()]
    wanted = page if medium.in_page else [metric for metric in METRICS.values() if metric.panel]
    found = (metric for metric in wanted if _known(models, *_drawn(models, metric, medium)))
    return [_curve(models, metric, medium, without_massive=without_massive) for metric in found]


def of_metric(models: list[Shown], name: str, medium: Medium) -> list[Panel]:
    """One metric over depth, on request: as wide as a legend of several models, and named by its heading."""
    metric = METRICS[name]
    if not _known(models, metric):
        return []
    panel = _curve(models, metric, medium, without_massive=False)
    return [dataclasses.replace(panel, title="", spec={**panel.spec, "width": 640, "height": 300})]


def _named_beside(of: Metric, metric: Metric) -> str:
    """A metric in the legend of another's panel."""
    name = of.heading.replace("\n", "") or of.label
    return name if of is metric else name.removeprefix(f"{metric.label} ")


def _known(models: list[Shown], *metrics: Metric) -> bool:
    """Whether any of these can be drawn of any model."""
    return any(_value(layer, metric) is not None for m in models for layer in m.diagnosis.layers for metric in metrics)


def _curve(models: list[Shown], metric: Metric, medium: Medium, *, without_massive: bool) -> Panel:
    series = list(zip(DASHES, _drawn(models, metric, medium), strict=False))
    dashed = len(series) > 1
    count = max(len(m.diagnosis.layers) for m in models)
    rows: list[Spec] = []
    for m in models:
        for depth, layer in enumerate(m.diagnosis.layers):
            for kind, of in series:
                value = _value(layer, of, without_massive)
                low, high = _band(layer, of, value, without_massive) if of is metric else (None, None)
                row = {"model": m.key, "depth": depth, "value": value, "low": low, "high": high}
                rows.append({**row, "kind": kind} if dashed else row)
    drawn = [v for row in rows for v in (row["value"], row["low"], row["high"]) if v is not None]
    # Not nice: a label at the very end of an axis would push its panel's title above the others'.
    linear = {"zero": False, "nice": False, "padding": 6}
    scale = {"type": "log", "domain": _span(drawn), "nice": False} if metric.scale == "log" else linear
    ticks = log_axis(*_span(drawn)) if metric.scale == "log" else {}
    ceilings = _ceilings(models) if metric.name in _BOUNDED else {}
    if ceilings:
        scale = {"domain": [0, (1 + _ROOM) * max(ceilings)], "nice": False}
        above = {"test": f"datum.value > {max(ceilings)}", "value": 0}
        ticks = {"gridOpacity": {"condition": above, "value": 1}}  # the label stands there
    label = None if medium.in_page else metric.label or metric.name
    x = depth_axis(count)
    y, colour = quantitative("value", label, scale, **{"tickCount": 5, **ticks}), by_model(models, medium)
    dash = {"strokeDash": nominal("kind", list(DASHES), list(DASHES.values()), None)} if dashed else {}
    detail = {"detail": [{"field": "model"}, *([{"field": "kind"}] if dashed else [])]}
    at = {"x": x, "y": y, "color": colour}
    size = 0 if count > _MOST_DOTTED else 18 if len(models) <= 3 else 12
    layers: list[Spec] = [
        marks("area", {**at, "y": {**y, "field": "low"}, "y2": {"field": "high"}, **detail}, opacity=0.15),
        *hover_columns(medium, _stops(models, series, medium, without_massive), x),
        marks("line", {**at, **dash, **detail}, strokeWidth=2, strokeJoin="round"),
    ]
    if medium.in_page or size:
        known: list[Spec] = [{"filter": "isValid(datum.value)"}]
        layers.append(marks("circle", {**at, "size": dots(medium, size)}, transform=known, opacity=1, aria=False))
    layers += _ceiling(list(ceilings), medium) if ceilings else []
    place = _PLACES.get(metric.notion, "rank")
    named = ", ".join(m.label for m in models)
    return Panel(
        caption(medium, metric.notion if place in _PLACES.values() or not medium.in_page else "rank collapse"),
        {**medium.size(*_SIZE), "data": inline(rows), "layer": layers},
        note=metric.label if place == "hfc" and medium.in_page and not dashed else "",
        keys=[Key(kind, "currentcolor", _named_beside(of, metric)) for kind, of in series] if dashed else [],
        tips=_tips(models, series, medium),
        described=f"{metric.label} of {named} over depth; the table under Numbers has the values",
        place=place,
        option=metric.label if place == "rank" else "",
        without_massive=without_massive or None,
    )


def _ceilings(models: list[Shown]) -> dict[int, None]:
    """The largest rank that each model's tokens can have, every one once."""
    sizes = ((m.diagnosis.provenance.get("tokens"), m.diagnosis.model.get("width")) for m in models)
    return dict.fromkeys(min(max(tokens), width) for tokens, width in sizes if tokens and width)


def _ceiling(heights: list[int], medium: Medium) -> list[Spec]:
    """A line for each height, and one label above the highest: elsewhere curves would cross it."""
    colour = medium.colour("soft")
    at: list[Spec] = [{"y": {"datum": height, "type": "quantitative"}} for height in (*heights, max(heights))]
    lines = [marks("rule", y, [{}], strokeDash=[3, 3], color=colour, aria=False) for y in at[:-1]]
    said = f"largest possible: {', '.join(map(str, sorted(heights)))}"
    corner: Spec = {"align": "left", "baseline": "bottom", "dx": 2, "dy": -3, "x": 0, "color": colour}
    return [*lines, marks("text", at[-1], [{}], **corner, text=said, fontSize=10.5)]


def _drawn(models: list[Shown], metric: Metric, medium: Medium) -> list[Metric]:
    """In one panel: the metric, and in the page what is drawn beside it, where it was measured."""
    other = METRICS.get(_BESIDE.get(metric.name, "")) if medium.in_page else None
    return [metric, other] if other and _known(models, other) else [metric]


def _value(layer: Layer, metric: Metric, without_massive: bool = False) -> Number:
    """As far as it can be drawn."""
    value = _tokens(layer, without_massive).get(metric.name)
    return None if value is None or (metric.scale == "log" and value <= 0) else value


def _tokens(layer: Layer, without_massive: bool) -> dict[str, Number]:
    return layer.without_massive if without_massive and layer.without_massive else layer.tokens


def _band(layer: Layer, metric: Metric, value: Number, without_massive: bool) -> tuple[Number, Number]:
    """One standard deviation to either side; of the logarithm, and so a factor that never reaches zero, for HFC/LFC."""
    if value is None or (without_massive and layer.without_massive):
        return None, None
    width = layer.spread.get("log_hfc_lfc" if metric.name == "hfc_lfc" else metric.name)
    if width is None:
        return None, None
    if metric.name == "hfc_lfc":
        factor = math.exp(min(max(width, 0.0), 100.0))
        return _rounded(value / factor), _rounded(value * factor)
    low = max(value - width, value / 10) if metric.scale == "log" else value - width
    return _rounded(low), _rounded(value + width)


def _rounded(value: float) -> Number:
    """Ends of bands, which nobody reads off: files stay small."""
    return float(f"{value:.5g}")


def _span(values: list[float]) -> list[float]:
    """Of a logarithmic axis, with some air."""
    if not values:
        return [0.1, 10]
    low, high = (max(1e-300, end(values)) for end in (min, max))
    air = max(1.08, math.exp(0.06 * (math.log(high) - math.log(low))))
    return [low / air, high * air]


def _tips(models: list[Shown], series: list[tuple[str, Metric]], medium: Medium) -> list[Key]:
    several, found = len(models) > 1, []
    for m, (kind, metric) in itertools.product(models, series):
        words = [m.label] * several + [metric.label] * (len(series) > 1 or not several)
        found.append(Key(kind, medium.colour(m.colour), ", ".join(words), "model", m.key))
    return [*found, Key("", "", "inputs with massive tokens")]


def _stops(
    models: list[Shown], series: list[tuple[str, Metric]], medium: Medium, without_massive: bool
) -> list[tuple[float, Spec]]:
    stops: list[tuple[float, Spec]] = []
    if not medium.in_page:
        return stops
    for depth in range(max(len(m.diagnosis.layers) for m in models)):
        said: list[tuple[int, str]] = []
        here = [(i, m.diagnosis.layers[depth]) for i, m in enumerate(models) if depth < len(m.diagnosis.layers)]
        for place, layer in here:
            for i, (kind, metric) in enumerate(series):
                value = _tokens(layer, without_massive).get(metric.name)
                alone = kind != "line" or (without_massive and layer.without_massive)
                around = "" if alone or value is None else spread(layer.spread.get(metric.name))
                said.append((place * len(series) + i, number(value) + around))
            massive = layer.massive.get("input_share") if layer.massive and len(models) == 1 else None
            if massive is not None:
                said.append((len(series), percent(massive)))
        stops.append((depth, tip(medium, titled(depth, *dict.fromkeys(layer.name for _, layer in here)), said)))
    return stops
