"""Eigenvalues of H: how their real parts lie over all layers, and where they lie in the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oversmooth.report.charts.base import Drawing, Key, Panel, Shown, Spec, chart
from oversmooth.report.charts.pieces import inline, marks, nominal, quantitative
from oversmooth.report.style import Medium, number_expression, percent

MOST_A_PLOT = 2_000  # eigenvalues of one plot; more cannot be told apart in a plot of this size
_BINS = 80
_ZERO = 1e-6  # relative, as a diagnosis has it
_SIGNS = {"Re λ < 0": "negative", "Re λ ≥ 0": "positive"}
_SIDES = {"|1 + λ| > 1": "smooth", "|1 + λ| < 1": "negative"}


@chart(
    title="Eigenvalues of all layers",
    lead="Real parts of the eigenvalues λ of H, all heads jointly, over all layers. A negative real part favours "
    "sharpening. The first and last bars include everything beyond them.",
    arranged={"columns": 3, "spacing": {"column": 64, "row": 90}, "bounds": "flush"},
)
def eigenvalues(models: list[Shown], medium: Medium) -> Drawing:
    """Real parts of the eigenvalues of the joined H over all layers, a panel per model (Dovonon et al.'s figure 5)."""
    real = [(m, values) for m in models if (values := m.diagnosis.real_parts)]
    if not real:
        return Drawing([])
    # A few far eigenvalues would leave all others in one bar; the ends hold what is beyond them.
    ordered = sorted(abs(x) for _, values in real for x in values)
    end = ordered[min(len(ordered) - 1, int(0.999 * len(ordered)))] or 1.0
    bars = [_bars(values, end) for _, values in real]
    most = 1.05 * max(row["share"] for rows in bars for row in rows)  # one axis for all
    panels = []
    for (m, values), rows in zip(real, bars, strict=True):
        # Zeros count as neither, where the diagnosis says which of them are.
        known = m.diagnosis.negative_share
        negative = sum(x < 0 for x in values) / len(values) if known is None else known
        across, up = ({"domain": domain, "nice": False} for domain in ([-end, end], [0, most]))
        encoding = {
            "x": quantitative("from", "Re λ", across, tickCount=7, grid=False, labelSeparation=6) | {"bin": "binned"},
            "x2": {"field": "to"},
            # Flush: a label that overhangs the axis would push this panel's title above its neighbours'.
            "y": quantitative("share", "share of eigenvalues", up, format="~%", tickCount=4, labelFlush=True),
            "y2": {"datum": 0},
            "color": nominal("sign", list(_SIGNS), medium.colours(list(_SIGNS.values())), medium.legend()),
        }
        mark = {"type": "bar", "binSpacing": 0, **({"tooltip": {"content": "data"}} if medium.in_page else {})}
        spec = {**medium.size(260, 150, 190), "data": inline(rows), "mark": mark, "encoding": encoding}
        if medium.in_page:
            ends = number_expression("datum.from", 3), number_expression("datum.to", 3)
            between = f"'Re λ from ' + {ends[0]} + ' to ' + {ends[1]}"
            share = "[[0, format(datum.share, '.2%')]]"
            spec["transform"] = [{"calculate": between, "as": "title"}, {"calculate": share, "as": "tip"}]
        note = f"{len(values):,} eigenvalues, {percent(negative)} with Re λ < 0"
        said = f"Real parts of the eigenvalues of {m.label}: {percent(negative)} are negative"
        tips = [Key("", "", "of all eigenvalues")]
        panels.append(Panel(m.label, spec, note=note, tips=tips, described=said, place=f"eigenvalues-{m.key}"))
    return Drawing(panels, [Key("", medium.colour(colour), sign, "sign", sign) for sign, colour in _SIGNS.items()])


def _bars(values: list[float], end: float) -> list[Spec]:
    """Zeros up to rounding stand right of 0, as they are not counted as negative."""
    counts, zero = [0] * _BINS, _ZERO * max(map(abs, values))
    for value in values:
        x = 0.0 if abs(value) <= zero else value
        counts[min(_BINS - 1, max(0, int((x + end) / (2 * end) * _BINS)))] += 1
    edges = [float(f"{-end + 2 * end * i / _BINS:.5g}") for i in range(_BINS + 1)]
    rows = []
    for i, count in enumerate(counts):
        sign = list(_SIGNS)[i >= _BINS // 2]
        rows.append({"from": edges[i], "to": edges[i + 1], "share": float(f"{count / len(values):.5g}"), "sign": sign})
    return rows


@chart(
    title="Spectra of H",
    lead="Eigenvalues λ of H = (W_V W_O)ᵀ. Each layer multiplies equal tokens by |1 + λ| along an eigenvector: they "
    "grow outside the dashed circle and shrink inside it. The largest |1 + λ| is ρ_smooth.",
    missing="The weights of this model were not found.",
    one_model=True,
    arranged={"columns": 3, "spacing": {"column": 64, "row": 64}, "bounds": "flush"},
)
def plane(models: list[Shown], medium: Medium) -> Drawing:
    """Eigenvalues of H in the plane: on paper those of all layers, a panel per model; in the page those that the reader
    chooses, which it puts into this description.
    """
    legend = [
        *(Key("round", medium.colour(colour), side) for side, colour in _SIDES.items()),
        Key("line dashed", medium.colour("soft"), "|1 + λ| = 1"),
        Key("ring", medium.colour("ink"), "ρ smooth"),
    ]
    tips = [Key("", "", "of"), Key("", "", "|1 + λ|")]
    if medium.in_page:
        spec = _plane(medium, {"name": "points"}, {"name": "quiet"}, "box", "width", "height", "unit")
        unit = {"name": "unit", "expr": _unit("box", "width", "height")}
        spec |= {"params": [{"name": "box", "value": [-1, 1, -1, 1]}, unit], "datasets": {"points": [], "quiet": []}}
        # One unit for both axes: the page draws it for the width it has, and does not stretch it.
        spec |= {"autosize": {"type": "none"}, "padding": {"left": 50, "top": 8, "right": 10, "bottom": 42}}
        spec |= {"usermeta": {"aspect": 0.82, "highest": 500}}
        known = any(layer.spectrum for m in models for layer in m.diagnosis.layers)
        return Drawing([Panel("", spec, tips=tips, place="plane")] if known else [], legend)
    panels = []
    for m in models:
        joined = [layer.spectrum.joined["raw"] for layer in m.diagnosis.layers if layer.spectrum]
        real, imag = [v for e in joined for v in e.real], [v for e in joined for v in e.imag]
        if not real:
            continue
        kept = [(real[i], imag[i]) for i in outermost(real, imag, MOST_A_PLOT)]
        box = [pick(z[axis] for z in kept) for axis in (0, 1) for pick in (min, max)]
        rows = inline([{"re": re, "im": im} for re, im in kept])
        sides = str(box), "260", "230"
        spec = _plane(medium, rows, inline([]), *sides, _unit(*sides)) | medium.size(260, 230)
        panels.append(Panel(m.label, spec, note="dashed: |1 + λ| = 1; ring: ρ smooth, the largest |1 + λ|"))
    return Drawing(panels, legend)


def _ends(box: str, place: int) -> tuple[str, str]:
    """Of an axis, as expressions: the origin is always in sight."""
    return f"min(-0.05, {box}[{2 * place}])", f"max(0.05, {box}[{2 * place + 1}])"


def _unit(box: str, width: str, height: str) -> str:
    """Of both axes, a pixel, with some air around everything. box: an expression of the least and greatest Re λ and
    the least and greatest Im λ.
    """
    sides = [(side, *_ends(box, place)) for place, side in enumerate((width, height))]
    return f"(1.12 * max({', '.join(f'({high} - {low}) / {side}' for side, low, high in sides)}))"


def _plane(medium: Medium, points: Spec, quiet: Spec, box: str, width: str, height: str, unit: str) -> Spec:
    """Points around the circle |1 + λ| = 1, with one unit for both axes."""

    def axis(place: int, title: str, ticks: int) -> Spec:
        low, high = _ends(box, place)
        middle, half = f"({low} + {high}) / 2", f"{unit} * {(width, height)[place]} / 2"
        domain = [{"expr": f"{middle} - {half}"}, {"expr": f"{middle} + {half}"}]
        return quantitative("", title, {"domain": domain, "nice": False, "zero": False}, tickCount=ticks, grid=True)

    x, y = axis(0, "Re λ", 7), axis(1, "Im λ", 6)
    at = {"x": {**x, "field": "re"}, "y": {**y, "field": "im"}}
    growth: list[Spec] = [{"calculate": "sqrt(pow(1 + datum.re, 2) + pow(datum.im, 2))", "as": "growth"}]
    if medium.in_page:
        size = number_expression("abs(datum.im)")
        imaginary = f"(datum.im ? (datum.im < 0 ? ' − ' : ' + ') + {size} + ' i' : '')"
        growth.append({"calculate": f"'λ = ' + {number_expression('datum.re')} + {imaginary}", "as": "title"})
        growth.append({"calculate": f"[[0, datum.of], [1, {number_expression('datum.growth')}]]", "as": "tip"})
    outside, inside = _SIDES
    crowd: list[Spec] = [
        {"joinaggregate": [{"op": "max", "field": "growth", "as": "largest"}, {"op": "count", "as": "count"}]},
        {"calculate": f"datum.growth > 1 ? {outside!r} : {inside!r}", "as": "side"},
        {"calculate": "datum.count > 800 ? 14 : datum.count > 250 ? 22 : 34", "as": "size"},
        {"calculate": "datum.count > 400 ? 0.62 : 0.8", "as": "opacity"},
    ]
    mark: Spec = {"clip": True, "aria": False, **({"tooltip": {"content": "data"}} if medium.in_page else {})}
    as_is = {"type": "quantitative", "scale": None, "legend": None}
    side = nominal("side", list(_SIDES), medium.colours(list(_SIDES.values())), medium.legend())
    shown = {**at, "color": side, "size": {"field": "size", **as_is}, "opacity": {"field": "opacity", **as_is}}
    turn: list[Spec] = [
        {"calculate": "cos(datum.degree * PI / 180) - 1", "as": "re"},
        {"calculate": "sin(datum.degree * PI / 180)", "as": "im"},
    ]
    circle, degrees = {**at, "order": {"field": "degree"}}, {"sequence": {"start": 0, "stop": 361, "as": "degree"}}
    dashed = {"clip": True, "color": medium.colour("soft"), "strokeWidth": 1.5, "strokeDash": [5, 4]}
    ring = {**mark, "filled": False, "stroke": medium.colour("ink"), "strokeWidth": 1.6, "opacity": 1, "size": 110}
    largest: list[Spec] = [*growth, *crowd, {"filter": "datum.growth == datum.largest"}]
    axes = [marks("rule", {name: {"datum": 0}}, [{}], color=medium.colour("rule"), aria=False) for name in ("x", "y")]
    layers = [
        *axes,
        marks("line", circle, degrees, transform=turn, **dashed),
        marks("circle", at, quiet, transform=growth, **mark, color=medium.colour("faint"), opacity=0.28, size=12),
        marks("circle", shown, points, transform=growth + crowd, **mark),
        marks("circle", at, points, transform=largest, **ring),
    ]
    return {"layer": layers}


def outermost(real: Sequence[float], imag: Sequence[float], count: int) -> list[int]:
    """Places of the eigenvalues to keep: the largest |1 + λ|, which decide, and an even sample of the rest. What is
    conjugate stays together.
    """
    if len(real) <= count:
        return list(range(len(real)))
    pairs: dict[tuple[float, float], list[int]] = {}
    for i, (re, im) in enumerate(zip(real, imag, strict=True)):
        pairs.setdefault((re, abs(im)), []).append(i)
    order = sorted(pairs.values(), key=lambda pair: -math.hypot(1 + real[pair[0]], imag[pair[0]]))
    wanted = max(1, count * len(order) // len(real))
    decisive = max(1, wanted // 20)
    outer, rest = order[:decisive], order[decisive:]
    wanted -= decisive
    return sorted(i for pair in outer + [rest[j * len(rest) // wanted] for j in range(wanted)] for i in pair)
