"""What more depth would do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from oversmooth.report.charts.base import Drawing, Key, Panel, Shown, Spec, chart
from oversmooth.report.charts.pieces import (
    DASHES,
    by_model,
    caption,
    dots,
    hover_columns,
    inline,
    log_axis,
    marks,
    nominal,
    quantitative,
    tip,
)
from oversmooth.report.style import Medium, number, ratio, sentence
from oversmooth.results.facts import Number
from oversmooth.results.parts import Extrapolation

_LOG_10 = math.log(10)
_LOWEST = -14  # as a power of ten: courses fall below what a number holds, and are drawn down to here
_HIGHEST = 300
_SIGNS = {"real": ("line", "ink"), "predicted": ("line dashed", "smooth"), "spectra": ("line dotted", "rate")}
_KINDS = {
    "real": "real blocks",
    "predicted": "predicted from there",
    "spectra": "attention alone, by its spectra",
}
_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000)
_APART = 1.7  # times as far as the tick before, at least: labels would overlap
_LOWEST_SEEN = 2
"""Powers of ten beyond the blocks that are drawn beside them: spectra that fall faster leave the panel."""
_SPECTRA = {"smooth": "smoothing dominates", "rough": "smoothing does not dominate", "tie": "tied"}


@chart(
    title="More depth",
    lead="HFC/LFC of one input when blocks are repeated after the last: the real blocks with norms and MLPs, how that "
    "goes on by steps in log depth, and, from the same start, what attention alone would do if it and the norms stayed "
    "as they are.",
    missing="More depth was not run.",
    one_model=True,
)
def extrapolation(models: list[Shown], medium: Medium) -> Drawing:
    """HFC/LFC over further depth, a panel for the last block and one for the stack."""
    entries = [(m, e) for m in models for e in m.diagnosis.extrapolation]
    found = {what: [(m, e) for m, e in entries if e.what == what] for what in [e.what for _, e in entries]}
    panels = [panel for what, of in found.items() if (panel := _panel(what, of, models, medium))]
    kinds = {kind for m, e in entries for kind, _, _ in [*_courses(e), *_rate(e, 1.0)]}
    legend = [
        Key(sign, medium.colour(colour), _KINDS[kind], "kind", _KINDS[kind])
        for kind, (sign, colour) in _SIGNS.items()
        if kind in kinds
    ]
    return Drawing(panels, legend if panels else [])


def _panel(what: str, found: list[tuple[Shown, Extrapolation]], models: list[Shown], medium: Medium) -> Panel | None:
    alone = len(models) == 1
    courses = [(m, kind, x, log) for m, e in found for kind, x, log in _courses(e)]
    powers = [log / _LOG_10 for *_, log in courses if log is not None]
    if not powers:
        return None
    end = max(1.0, *(x for _, _, x, _ in courses))
    courses += [(m, *row) for m, e in found for row in _rate(e, end)] if alone else []
    predicted = [log / _LOG_10 for _, kind, _, log in courses if kind == "spectra" and log is not None]
    least = max(min([*powers, *predicted]), min(powers) - _LOWEST_SEEN, _LOWEST)
    most = min(max([least, *powers, *predicted]), max(powers) + _LOWEST_SEEN, _HIGHEST)
    air = max(0.04, 0.07 * (most - least))
    rows: list[Spec] = []
    for m, kind, depth, log in courses:
        drawn = None if log is None else float(f"{10 ** max(-_HIGHEST, min(_HIGHEST, log / _LOG_10)):.6g}")
        rows.append({"model": m.key, "kind": _KINDS[kind], "depth": depth, "value": drawn})
    scale = {"domain": [0, end], "nice": False, "type": "symlog", "constant": 1}
    ticks = {"values": _ticks(end), "labelOverlap": "greedy"}
    x = quantitative("depth", "further blocks (logarithmic)", scale, format="d", grid=False, **ticks)
    domain = [10 ** max(least - air, -_HIGHEST), 10 ** min(most + air, _HIGHEST)]
    y = quantitative("value", "HFC/LFC", {"type": "log", "domain": domain, "nice": False}, **log_axis(*domain))
    kinds = [kind for kind in _KINDS if any(row["kind"] == _KINDS[kind] for row in rows)]
    names = [_KINDS[kind] for kind in kinds]
    # Beside the names of models it would be wider than the panels.
    legend = medium.legend(columns=2, symbolType="stroke", symbolStrokeWidth=2, orient="top" if alone else "bottom")
    paint = nominal("kind", names, medium.colours([_SIGNS[kind][1] for kind in kinds]), legend)
    colour = paint if alone else by_model(models, medium)
    dash = nominal("kind", names, [DASHES[_SIGNS[kind][0]] for kind in kinds], legend)
    layers: list[Spec] = [
        *hover_columns(medium, _stops(courses, medium), x),
        marks("line", {"x": x, "y": y, "color": colour, "strokeDash": dash}, clip=True, strokeWidth=2),
    ]
    if medium.in_page:
        at = {"x": x, "y": y, "color": colour, "size": dots(medium, 0 if len(rows) > 80 else 14)}
        known: list[Spec] = [{"filter": f"isValid(datum.value) && datum.kind != {_KINDS['spectra']!r}"}]
        layers.append(marks("circle", at, transform=known, opacity=1, clip=True))
    finding = _in_words(found[0][1])
    title = caption(medium, f"the {what}, repeated")
    return Panel(
        title,
        {**medium.size(290, 190, 230), "data": inline(rows), "layer": layers},
        finding=finding,
        tips=[Key(sign, medium.colour(colour), _KINDS[kind]) for kind, (sign, colour) in _SIGNS.items()],
        described=f"{title}: {finding}",
        place="further-" + "".join(letter if letter.isalnum() else "-" for letter in what),
    )


def _ticks(end: float) -> list[float]:
    """Of the logarithmic axis, with its end, which takes the place of a tick too near to it.

    >>> _ticks(64), _ticks(100), _ticks(400)
    ([0, 1, 3, 10, 30, 64], [0, 1, 3, 10, 30, 100], [0, 1, 3, 10, 30, 100, 400])
    """
    return [*(tick for tick in _TICKS if tick <= end / _APART), int(end) if end == int(end) else end]


def _courses(e: Extrapolation) -> Iterator[tuple[str, float, Number]]:
    for kind, course in (("real", e.real), ("predicted", e.predicted)):
        rows = list(zip(course.depth, course.log_hfc_lfc, strict=True)) if course else []
        if kind == "predicted" and e.way == "geometric" and len(rows) == 2:
            rows = list(_at_a_rate(*rows))
        for x, log in rows:
            yield kind, x, log


def _at_a_rate(begin: tuple[float, Number], end: tuple[float, Number]) -> Iterator[tuple[float, Number]]:
    """Whole depths between two: a fall by a factor per block is no straight line over log depth."""
    (x0, y0), (x1, y1) = begin, end
    for x in sorted({x0, x1, *(round((1 + x0) * ((1 + x1) / (1 + x0)) ** (i / 32)) - 1 for i in range(1, 32))}):
        yield x, None if y0 is None or y1 is None else y0 + (y1 - y0) * (x - x0) / ((x1 - x0) or 1)


def _rate(e: Extrapolation, end: float) -> Iterator[tuple[str, float, Number]]:
    """From where the real blocks begin, at the rate of the two radii."""
    start = next((log for _, x, log in _courses(e) if x == 0 and log is not None), None)
    if start is not None and e.rho_rough and e.rho_smooth and e.verdict in ("smooth", "rough"):
        rate = math.log(e.rho_rough) - math.log(e.rho_smooth)
        for x, log in _at_a_rate((0.0, start), (end, start + rate * end)):
            yield "spectra", x, log


def _stops(measured: list[tuple[Shown, str, float, Number]], medium: Medium) -> list[tuple[float, Spec]]:
    at: dict[float, list[tuple[int, str]]] = {}
    for _, kind, x, log in measured:
        at.setdefault(x, []).append((list(_KINDS).index(kind), ratio(log)))
    return [(x, tip(medium, f"{x:g} more blocks", said)) for x, said in sorted(at.items())]


def _in_words(e: Extrapolation) -> str:
    """The numbers behind a panel; the verdict says what they mean."""
    residual = "" if e.residual is None else f", residual {number(e.residual, 2)}"
    said = _SPECTRA.get(e.verdict, e.verdict)
    spectra = f"Spectra: ρ smooth {number(e.rho_smooth)}, ρ rough {number(e.rho_rough)}, {said}."
    words = [spectra] if e.verdict else []
    if e.real and e.real.log_hfc_lfc:
        ends = f"HFC/LFC {ratio(e.real.log_hfc_lfc[0], 3)} → {ratio(e.real.log_hfc_lfc[-1], 3)}"
        words.append(f"Real blocks: {ends} in {e.real.depth[-1]:g} blocks.")
    if e.predicted and e.predicted.log_hfc_lfc:
        error = f", ± {number(e.error, 2)} in its logarithm" if e.way == "log time" else ", if its last rate lasts"
        words.append(f"Predicted: {ratio(e.predicted.log_hfc_lfc[-1], 3)} after {e.predicted.depth[-1]:g}{error}.")
    if e.equal_rate is not None:
        law = (
            f"depth^{number(e.equal_rate, 2)}" if e.way == "log time" else f"× {number(math.exp(e.equal_rate))} a block"
        )
        words.append(f"Once tokens are nearly equal: {law}.")
    words.append(f"Input {e.input}{f', {e.variant} H' if e.variant else ''}{residual}.")
    return " ".join([*words, *([sentence(e.note)] if e.note else [])])
