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
_SIGNS = {"real": ("line", "ink"), "simulated": ("line dashed", "smooth"), "predicted": ("line dotted", "rate")}
_KINDS = {
    "real": "real blocks",
    "simulated": "attention alone, simulated",
    "predicted": "rate predicted by the spectra",
}
_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000)
_MOST_LINEAR = 60
_APART = 1.7  # times as far as the tick before, at least: labels would overlap
_OPTIONS = ("as deep as real blocks", "as deep as simulated")
# Powers of ten below the real blocks that are drawn beside them: a prediction that falls faster leaves the panel.
_LOWEST_SEEN = 3
_SPECTRA = {"smooth": "smoothing dominates", "rough": "smoothing does not dominate", "tie": "tied"}


@chart(
    title="More depth",
    lead="HFC/LFC of one input when blocks are repeated after the last: the real blocks with norms and MLPs, attention "
    "alone, and the rate that the spectra predict from the same start.",
    missing="More depth was not simulated.",
    one_model=True,
)
def extrapolation(models: list[Shown], medium: Medium) -> Drawing:
    """HFC/LFC over further depth, a panel for the last block and one for the stack. In the page the reader chooses
    between the depth that real blocks were run for and all that was simulated.
    """
    entries = [(m, e) for m in models for e in m.diagnosis.extrapolation]
    found = {what: [(m, e) for m, e in entries if e.what == what] for what in [e.what for _, e in entries]}
    options = _OPTIONS if medium.in_page else _OPTIONS[:1]
    panels = [p for what, of in found.items() for option in options if (p := _panel(what, of, models, medium, option))]
    dotted = any(e.predicted_rate is not None for _, e in entries)
    kinds = [kind for kind in _KINDS if kind != "predicted" or dotted]
    legend = [
        Key(_SIGNS[kind][0], medium.colour(_SIGNS[kind][1]), _KINDS[kind], "kind", _KINDS[kind]) for kind in kinds
    ]
    return Drawing(panels, legend if panels else [])


def _panel(
    what: str, found: list[tuple[Shown, Extrapolation]], models: list[Shown], medium: Medium, option: str
) -> Panel | None:
    alone = len(models) == 1
    courses = [(m, kind, x, log) for m, e in found for kind, x, log in _courses(e)]
    real = [row for row in courses if row[1] == "real"]
    beside = option == _OPTIONS[0] and any(row[3] is not None for row in real)
    end = max(1.0, *(x for _, _, x, _ in (real if beside else courses))) if courses else 1.0
    courses += [(m, "predicted", x, log) for m, e in found for x, log in _rate(e, end)] if alone else []
    measured = [row for row in courses if row[2] <= end]
    powers = [log / _LOG_10 for *_, log in measured if log is not None]
    if not powers:
        return None
    floor = min(log / _LOG_10 for *_, log in real if log is not None) - _LOWEST_SEEN if beside else _LOWEST
    least = min(max(_LOWEST, floor, min(powers)), _HIGHEST)
    most = min(max(least, *powers), _HIGHEST)
    air = max(0.04, 0.07 * (most - least))
    rows: list[Spec] = []
    for m, kind, depth, log in measured:
        drawn = None if log is None else float(f"{10 ** max(-_HIGHEST, min(_HIGHEST, log / _LOG_10)):.6g}")
        rows.append({"model": m.key, "kind": _KINDS[kind], "depth": depth, "value": drawn})
    wide = end > _MOST_LINEAR
    scale = {"domain": [0, end], "nice": False, **({"type": "symlog", "constant": 2} if wide else {})}
    ticks = {"values": _ticks(end), "labelOverlap": "greedy"} if wide else {"tickCount": 6, "tickMinStep": 1}
    further = "further blocks (logarithmic)" if wide else "further blocks"
    x = quantitative("depth", further, scale, format="d", grid=False, **ticks)
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
        *hover_columns(medium, _stops(measured, medium), x),
        marks("line", {"x": x, "y": y, "color": colour, "strokeDash": dash}, clip=True, strokeWidth=2),
    ]
    if medium.in_page:
        at = {"x": x, "y": y, "color": colour, "size": dots(medium, 0 if len(rows) > 80 else 14)}
        known: list[Spec] = [{"filter": f"isValid(datum.value) && datum.kind != {_KINDS['predicted']!r}"}]
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
        option=option if medium.in_page else "",
    )


def _ticks(end: float) -> list[float]:
    """Of the logarithmic axis, with its end, which takes the place of a tick too near to it.

    >>> _ticks(64), _ticks(100), _ticks(400)
    ([0, 1, 3, 10, 30, 64], [0, 1, 3, 10, 30, 100], [0, 1, 3, 10, 30, 100, 400])
    """
    return [*(tick for tick in _TICKS if tick <= end / _APART), int(end) if end == int(end) else end]


def _courses(e: Extrapolation) -> Iterator[tuple[str, float, Number]]:
    for kind, course in (("real", e.real), ("simulated", e.simulated)):
        for x, log in zip(course.depth, course.log_hfc_lfc, strict=True) if course else ():
            yield kind, x, log


def _rate(e: Extrapolation, end: float) -> Iterator[tuple[float, float]]:
    """From where the other courses begin, at the rate that the spectra predict."""
    start = next((log for _, x, log in _courses(e) if x == 0 and log is not None), None)
    if start is None or e.predicted_rate is None or e.predicted_rate <= 0:
        return
    for x in sorted({0.0, end, *(x for _, x, _ in _courses(e))}):
        yield x, start + math.log(e.predicted_rate) * x


def _stops(measured: list[tuple[Shown, str, float, Number]], medium: Medium) -> list[tuple[float, Spec]]:
    at: dict[float, list[tuple[int, str]]] = {}
    for _, kind, x, log in measured:
        at.setdefault(x, []).append((list(_KINDS).index(kind), ratio(log)))
    return [(x, tip(medium, f"{x:g} more blocks", said)) for x, said in sorted(at.items())]


def _in_words(e: Extrapolation) -> str:
    """The numbers behind a panel; the verdict says what they mean."""
    residual = "" if e.residual is None else f", residual {number(e.residual, 2)}"
    said = _SPECTRA.get(e.verdict, e.verdict)
    rate = "" if e.predicted_rate is None else f": HFC/LFC × {number(e.predicted_rate, 3)} per block in the long run"
    words = [f"Spectra: ρ smooth {number(e.rho_smooth)}, ρ rough {number(e.rho_rough)}, {said}{rate}."]
    for name, run in (("Real blocks", e.real), ("Attention alone, simulated", e.simulated)):
        if run and run.log_hfc_lfc:
            ends = f"HFC/LFC {ratio(run.log_hfc_lfc[0], 3)} → {ratio(run.log_hfc_lfc[-1], 3)}"
            words.append(f"{name}: {ends} in {run.depth[-1]:g} blocks.")
    words.append(f"Input {e.input}, {e.variant} H{residual}.")
    return " ".join([*words, *([sentence(e.note)] if e.note else [])])
