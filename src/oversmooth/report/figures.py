"""Figures for papers, from diagnoses alone: curves over depth, the split by part, eigenvalues, which of them dominate,
and what more depth would do. As PDF, SVG or PNG, without a browser.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oversmooth.diagnosis.facts import Number
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.metrics import METRICS
from oversmooth.report.page import distinct
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder, check_writable, whole_file
from oversmooth.safety.foreign import visible
from oversmooth.safety.libraries import import_library

FORMATS = ("pdf", "svg", "png")
ENDINGS = tuple(f".{name}" for name in FORMATS)
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_MODES = {"plain": "#009E73", "smooth": "#0072B2", "sharpen": "#D55E00"}
"""Smoothing blue and sharpening orange in every figure, where that is what tells the models apart."""
_PARTS = {"attention": "#56B4E9", "mlp": "#E69F00", "norm": "#8C959F"}
_LOWEST = 1e-14
_BINS = 80


def check(path: Path, also: tuple[str, ...] = ()) -> None:
    """Refuse what cannot become a figure, before the work that it is to show. also: other endings."""
    check_writable(path, (*also, *ENDINGS))
    if path.suffix.lower() in ENDINGS:
        check_libraries()


def check_libraries() -> None:
    for library in ("altair", "vl_convert"):
        import_library(library, "drawing")


def save(diagnoses: list[Diagnosis], folder: Path, format: str) -> list[Path]:
    """Every figure there is data for, as ``folder/<name>.<format>``."""
    if format not in FORMATS:
        raise InputError(f"figures cannot be written as {format!r}; choose one of {', '.join(FORMATS)}")
    if not diagnoses:
        raise InputError("there is nothing to draw: no diagnosis was given; give at least one")
    charts = {name: chart for name, make in FIGURES.items() if (chart := make(diagnoses)) is not None}
    check_folder(folder)
    written = []
    for name, chart in charts.items():
        path = folder / f"{name}.{format}"
        write(chart, path)
        written.append(path)
    return written


def save_one(diagnoses: list[Diagnosis], name: str, path: Path) -> None:
    """One figure, by its name in FIGURES, in the format of the path's ending."""
    chart = FIGURES[name](diagnoses)
    if chart is None:
        raise InputError(f"there is nothing to draw for {path}: these diagnoses have no data for {name}")
    write(chart, path)


def write(chart: Any, path: Path) -> None:
    format = path.suffix.lower().removeprefix(".")
    settings: dict[str, Any] = {"ppi": 220} if format == "png" else {}
    with whole_file(path) as temporary:
        _styled(chart).save(temporary, format=format, **settings)


def curves(diagnoses: list[Diagnosis]) -> Any:
    """The three notions after every block, a line a model (the first paper's figure 2)."""
    import altair as alt  # heavy, and only charts need it

    panels = _notions(diagnoses)
    return alt.hconcat(*panels, spacing=64, bounds="flush") if panels else None


def _notions(diagnoses: list[Diagnosis]) -> list[Any]:
    import altair as alt

    panels = []
    for metric, label, notion, scale in ((m.name, m.label, m.notion, m.scale) for m in METRICS.values() if m.panel):
        rows: list[dict[str, Any]] = []
        for name, diagnosis in _named(diagnoses):
            for depth, layer in enumerate(diagnosis.layers):
                value = layer.tokens.get(metric)
                if value is None or (scale == "log" and value <= 0):
                    rows.append({"model": name, "depth": depth, "value": None, "low": None, "high": None})
                    continue
                low, high = _band(value, layer.spread.get(metric), layer.spread.get("log_hfc_lfc"), scale)
                rows.append({"model": name, "depth": depth, "value": value, "low": low, "high": high})
        if all(row["value"] is None for row in rows):
            continue
        base = alt.Chart(alt.Data(values=rows))
        drawn = [x for row in rows for x in (row["value"], row["low"], row["high"]) if x is not None]
        scaling = (
            alt.Scale(type="log", domain=[min(drawn) / 1.05, max(drawn) * 1.05], nice=False)
            if scale == "log"
            # Not nice: a label at the very end of an axis would push its panel's title above the others'.
            else alt.Scale(zero=False, nice=False, padding=6)
        )
        axis = alt.Axis(tickCount=5, format="~g") if scale == "log" else alt.Axis(tickCount=5)
        y = alt.Y("value:Q", title=label, scale=scaling, axis=axis)
        x = alt.X("depth:Q", title="depth", axis=_depth_axis(alt))
        colour = _colour(alt, diagnoses)
        band = base.mark_area(opacity=0.15).encode(
            x, alt.Y("low:Q", scale=scaling), alt.Y2("high:Q"), colour, alt.Detail("model:N")
        )
        line = base.mark_line(strokeWidth=2).encode(x, y, colour)
        layers = [band, line]
        if max(len(d.layers) for d in diagnoses) <= 30:
            layers.append(base.mark_circle(size=18, opacity=1).encode(x, y, colour))
        panels.append(alt.layer(*layers).properties(width=210, height=190, title=notion))
    return panels


def steered(diagnoses: list[Diagnosis]) -> Any:
    """The curves of a model sharpening, smoothing and left alone, with what the spectra predict beside them; a row a
    state of training (the first paper's figure 3).
    """
    import altair as alt

    found = []
    for state in dict.fromkeys(d.model["state"] for d in diagnoses if "state" in d.model):
        group = [d for d in diagnoses if d.model.get("state") == state]
        panels = _notions(group) + _smoothing_shares(group)
        if panels:
            found.append(alt.hconcat(*panels, spacing=64, bounds="flush"))
    return (
        alt.vconcat(*found, spacing=48).resolve_scale(color="independent", strokeWidth="independent") if found else None
    )


def _smoothing_shares(diagnoses: list[Diagnosis]) -> list[Any]:
    """By layer, the share of cases in which the smoothing eigenvalue dominates."""
    import altair as alt

    rows = [
        {"model": name, "depth": depth, "value": layer.dominance.smoothing_share}
        for name, diagnosis in _named(diagnoses)
        for depth, layer in enumerate(diagnosis.layers)
        if layer.dominance
    ]
    if not rows:
        return []
    x = alt.X("depth:Q", title="depth", axis=_depth_axis(alt))
    scale = alt.Scale(domain=[-0.04, 1.04], nice=False)
    y = alt.Y(
        "value:Q", title="smoothing cases", scale=scale, axis=alt.Axis(format="~%", values=[0, 0.25, 0.5, 0.75, 1])
    )
    base = alt.Chart(alt.Data(values=rows))
    colour = _colour(alt, diagnoses)
    names = [name for name, _ in _named(diagnoses)]
    # Shares are often the same, 0 or 1: the first line is the broadest, so that it shows under the others.
    broad = alt.Scale(domain=names, range=[1.5 + 2 * i for i in reversed(range(len(names)))])
    lines = base.mark_line().encode(x, y, colour, alt.StrokeWidth("model:N", scale=broad, legend=None))
    return [lines.properties(width=210, height=190, title="predicted from spectra")]


def changes(diagnoses: list[Diagnosis]) -> Any:
    """What attention, MLP and norm add to log HFC/LFC, layer by layer, a panel a model."""
    import altair as alt

    panels = []
    parts = list(dict.fromkeys(c.part for d in diagnoses for layer in d.layers for c in layer.changes))
    for name, diagnosis in _named(diagnoses):
        rows, sums = [], []
        for depth, layer in enumerate(diagnosis.layers):
            values = [(c.part, c.log_hfc_lfc) for c in layer.changes if c.log_hfc_lfc is not None]
            rows += [{"depth": depth, "part": part, "value": value} for part, value in values]
            if values:
                sums.append({"depth": depth, "value": sum(value for _, value in values)})
        if not rows:
            continue
        scale = alt.Scale(domain=parts, range=[_PARTS.get(part, "#CC79A7") for part in parts])
        x = alt.X("depth:O", title="depth", axis=alt.Axis(labelAngle=0, labelOverlap=True))
        y = alt.Y("value:Q", title="Δ log HFC/LFC", axis=alt.Axis(tickCount=6))
        legend = alt.Legend(title=None, orient="top")
        bars = alt.Chart(alt.Data(values=rows)).mark_bar()
        bars = bars.encode(x, y, alt.Color("part:N", scale=scale, sort=parts, legend=legend))
        net = alt.Chart(alt.Data(values=sums)).mark_tick(color="#1f2933", thickness=2, width={"band": 1}).encode(x, y)
        zero = alt.Chart(alt.Data(values=[{}])).mark_rule(color="#9aa3ad").encode(y=alt.datum(0))
        panels.append(alt.layer(bars, zero, net).properties(width=_width(diagnosis), height=190, title=name))
    return alt.concat(*panels, columns=2, spacing=24) if panels else None


def eigenvalues(diagnoses: list[Diagnosis]) -> Any:
    """How the real parts of the eigenvalues of the joined H lie, over all layers, a panel a model (the first paper's
    figure 5).
    """
    import altair as alt

    real = {name: values for name, d in _named(diagnoses) if (values := d.real_parts)}
    # Zeros count as neither, where the diagnosis says which of them are.
    shares = {name: d.negative_share for name, d in _named(diagnoses)}
    if not real:
        return None
    # A few far eigenvalues would leave all others in one bar; the ends hold what is beyond them.
    ordered = sorted(abs(x) for values in real.values() for x in values)
    end = ordered[min(len(ordered) - 1, int(0.999 * len(ordered)))] or 1.0
    panels = []
    for name, values in real.items():
        counts = [0] * _BINS
        for x in values:
            counts[min(_BINS - 1, max(0, int((x + end) / (2 * end) * _BINS)))] += 1
        width = 2 * end / _BINS
        rows = [
            {
                "from": -end + i * width,
                "to": -end + (i + 1) * width,
                "share": n / len(values),
                "sign": "Re λ < 0" if i < _BINS // 2 else "Re λ ≥ 0",
            }
            for i, n in enumerate(counts)
        ]
        known = shares[name]
        negative = sum(x < 0 for x in values) / len(values) if known is None else known
        title = alt.Title(name, subtitle=f"{len(values):,} eigenvalues, {100 * negative:.1f} % with Re λ < 0")
        scale = alt.Scale(domain=["Re λ < 0", "Re λ ≥ 0"], range=["#7B4EA3", "#009E73"])
        bars = alt.Chart(alt.Data(values=rows)).mark_bar(binSpacing=0)
        panels.append(
            bars.encode(
                alt.X("from:Q", title="Re λ", bin="binned", scale=alt.Scale(domain=[-end, end], nice=False)),
                alt.X2("to:Q"),
                alt.Y("share:Q", title="share of eigenvalues", axis=alt.Axis(format="~%", tickCount=4)),
                alt.Y2Datum(0),
                alt.Color("sign:N", scale=scale, legend=alt.Legend(title=None, orient="top")),
            ).properties(width=260, height=150, title=title)
        )
    return alt.concat(*panels, columns=3, spacing={"column": 64, "row": 90}, bounds="flush")


def dominance(diagnoses: list[Diagnosis]) -> Any:
    """The share of inputs in which the smoothing eigenvalue dominates, by layer and head, a panel a model."""
    import altair as alt

    panels = []
    for name, diagnosis in _named(diagnoses):
        rows = []
        for depth, layer in enumerate(diagnosis.layers):
            said = layer.dominance.verdict_heads if layer.dominance else []
            for head in range(max((len(row) for row in said), default=0)):
                words = [row[head] for row in said if head < len(row)]
                rows.append({"depth": depth, "head": head, "share": words.count("smooth") / len(words)})
        if not rows:
            continue
        heads = max(row["head"] for row in rows) + 1
        scale = alt.Scale(domain=[0, 0.5, 1], range=["#D55E00", "#F6F7F9", "#0072B2"], interpolate="rgb")
        legend = alt.Legend(title="smoothing share", format="~%", gradientLength=90, values=[0, 0.5, 1])
        panels.append(
            alt.Chart(alt.Data(values=rows))
            .mark_rect(stroke="white", strokeWidth=0.75)
            .encode(
                alt.X("depth:O", title="depth", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
                alt.Y("head:O", title="head", axis=alt.Axis(labelOverlap=True)),
                alt.Color("share:Q", scale=scale, legend=legend),
            )
            .properties(width=_width(diagnosis), height=heads * max(6, min(18, 200 // heads)), title=name)
        )
    return alt.concat(*panels, columns=2, spacing=24) if panels else None


def extrapolation(diagnoses: list[Diagnosis]) -> Any:
    """HFC/LFC over further depth: solid the blocks themselves, dashed attention alone; a panel for the last block and
    one for the stack.
    """
    import altair as alt

    panels = []
    kinds = (("real", "the blocks themselves"), ("simulated", "attention alone, simulated"))
    for what in dict.fromkeys(e.what for d in diagnoses for e in d.extrapolation):
        rows = []
        for name, diagnosis in _named(diagnoses):
            for entry in (e for e in diagnosis.extrapolation if e.what == what):
                for kind, label in kinds:
                    course = getattr(entry, kind)
                    for depth, log in zip(course.depth, course.log_hfc_lfc, strict=True) if course else ():
                        value = None if log is None or log > 700 else max(math.exp(log), _LOWEST / 1e3)
                        rows.append({"model": name, "kind": label, "depth": depth, "value": value})
        values = [row["value"] for row in rows if row["value"] is not None]
        if not values:
            continue
        domain = [max(_LOWEST, min(values) / 1.15), max(values) * 1.15]
        end = max(row["depth"] for row in rows)
        ticks = [t for t in (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if t <= end] if end > 60 else alt.Undefined
        scale = alt.Scale(type="symlog", constant=2, nice=False) if end > 60 else alt.Scale(nice=False)
        words = [w for _, w in kinds]
        dash = alt.Scale(domain=words, range=[[1, 0], [5, 3]])
        panels.append(
            alt.Chart(alt.Data(values=rows))
            .mark_line(strokeWidth=2, clip=True)
            .encode(
                alt.X(
                    "depth:Q",
                    title="further blocks",
                    scale=scale,
                    axis=alt.Axis(values=ticks, grid=False, format="d"),
                ),
                alt.Y(
                    "value:Q",
                    title="HFC / LFC",
                    scale=alt.Scale(type="log", domain=domain, nice=False),
                    axis=alt.Axis(format="~g", tickCount=5),
                ),
                _colour(alt, diagnoses),
                alt.StrokeDash(
                    "kind:N", sort=words, scale=dash, legend=alt.Legend(title=None, orient="top", columns=2)
                ),
            )
            .properties(width=290, height=190, title=f"the {what}, repeated")
        )
    return alt.hconcat(*panels, spacing=64, bounds="flush") if panels else None


FIGURES: dict[str, Callable[[list[Diagnosis]], Any]] = {
    "curves": curves,
    "steered": steered,
    "changes": changes,
    "eigenvalues": eigenvalues,
    "dominance": dominance,
    "extrapolation": extrapolation,
}


def _depth_axis(alt: Any) -> Any:
    return alt.Axis(tickMinStep=1, format="d", tickCount=6, grid=False, labelFlush=False)


def _named(diagnoses: list[Diagnosis]) -> list[tuple[str, Diagnosis]]:
    return list(zip(distinct([visible(plain_signs(d.name)) for d in diagnoses]), diagnoses, strict=True))


def plain_signs(name: str) -> str:
    """Superscript signs are not in every font, and a label half in another one looks broken."""
    return name.replace("⁺", "+").replace("⁻", "−")


def _colour(alt: Any, diagnoses: list[Diagnosis]) -> Any:
    names = [name for name, _ in _named(diagnoses)]
    modes = [d.model.get("mode") or d.model.get("recipe", {}).get("variant") for d in diagnoses]
    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(names))]
    if len(set(modes)) == len(modes) and set(modes) <= set(_MODES):
        colours = [_MODES[str(mode)] for mode in modes]
    scale = alt.Scale(domain=names, range=colours)
    legend = alt.Legend(
        title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1, columns=3, labelLimit=240
    )
    return alt.Color("model:N", sort=names, scale=scale, legend=legend if len(names) > 1 else None)


def _band(value: float, spread: Number, log_spread: Number, scale: str) -> tuple[Number, Number]:
    """One standard deviation to either side; a factor where the axis is logarithmic."""
    if scale == "log":
        factor = None if log_spread is None else math.exp(min(max(log_spread, 0.0), 100.0))
        return (None, None) if factor is None else (value / factor, value * factor)
    return (None, None) if spread is None else (value - spread, value + spread)


def _width(diagnosis: Diagnosis) -> int:
    return max(120, min(420, 26 * len(diagnosis.layers)))


def _styled(chart: Any) -> Any:
    return (
        chart.configure(font="Helvetica, Arial, Liberation Sans, sans-serif", padding=8, background="white")
        .configure_view(stroke=None)
        .configure_axis(
            gridColor="#eceff3",
            domainColor="#9aa3ad",
            tickColor="#9aa3ad",
            labelColor="#3b4650",
            titleColor="#3b4650",
            titleFontWeight="normal",
            titleFontSize=12,
            labelFontSize=11,
        )
        .configure_title(fontSize=13, color="#1f2933", anchor="start", subtitleColor="#55606d", subtitleFontSize=11)
        .configure_legend(labelFontSize=12, titleFontSize=11, titleFontWeight="normal")
    )
