"""Prediction beside outcome: the table in the terminal, and the chart."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text
from torch import Tensor

from oversmooth.report.figures import styled
from oversmooth.report.style import PAPER, UNKNOWN, fixed, model_colour, number, ratio
from oversmooth.theory.toy import ToyOutcome

POWER = "datum.value == 1 ? '1' : format(datum.value, '.0e')"
# Below these a chart has nothing to show: σ₂/σ₁ is not resolved any more, and HFC/LFC is as good as zero.
_FLOOR = {"hfc_lfc": 1e-12, "sigma_ratio": 1e-7, "abs_cos": 0.0}
PANELS = (
    ("hfc_lfc", "HFC / LFC", "input convergence"),
    ("abs_cos", "mean |cos|", "angle convergence"),
    ("sigma_ratio", "σ₂ / σ₁", "rank collapse"),
)


def tables(outcomes: list[ToyOutcome]) -> list[Table]:
    """Three tables, a row a case: the spectra and the course, the three notions, and their numbers at the end."""
    course = _table("case", "ρ smooth", "ρ rough", "said", "seen", "per layer\nsaid", "\nseen", "agree")
    answers = _table("case", "input convergence", "angle convergence", "rank collapse")
    end = _table("case", "HFC/LFC\nsaid", "\nseen", "|cos|\nsaid", "\nseen", "σ₂/σ₁\nsaid", "\nseen")
    for outcome in outcomes:
        p, s, rate = outcome.prediction, outcome.observed, outcome.predicted_rate
        agrees = outcome.agrees
        claims = [a for a in agrees if a is not None]
        word = (
            UNKNOWN
            if not claims
            else f"{sum(claims)} of {len(claims)}"
            if len(agrees) > 1
            else "yes"
            if claims[0]
            else "no"
        )
        seen = outcome.seen_rate
        course.add_row(
            outcome.case.name,
            _spread(p.rho_smooth),
            _spread(p.rho_rough),
            _words(outcome.predicted),
            _words(outcome.happened),
            UNKNOWN if rate is None else f"× {_number(rate.mean())}",
            UNKNOWN if seen is None else f"× {_number(seen.mean())}",
            Text(word, style="dim" if not claims else "green" if all(claims) else "red"),
        )
        answers.add_row(outcome.case.name, *(_words(values) for values in outcome.notions.values()))
        end.add_row(
            outcome.case.name,
            _limit(outcome, "hfc_lfc"),
            _of_log(s.log_hfc_lfc[-1].mean()),
            _limit(outcome, "abs_cos"),
            _number(s.abs_cos[-1].mean()),
            _limit(outcome, "sigma_ratio"),
            _number(s.sigma_ratio[-1].mean()),
        )
    return [course, answers, end]


def _table(*headings: str) -> Table:
    out = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1), collapse_padding=True)
    for heading in headings:
        out.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    return out


def _limit(outcome: ToyOutcome, metric: str) -> str:
    """What the spectra say about the end: a number, a range where the limit turns, a dash where they cannot say."""
    p = outcome.prediction
    if outcome.case.draws > 1 or outcome.predicted[0] in ("tie", "undecided", "open"):
        return UNKNOWN
    if bool(p.smoothing[0]):
        return "1" if metric == "abs_cos" else "0"
    if outcome.case.norm != "none" or outcome.case.neutreno or p.array is None:
        return UNKNOWN
    low, high = (_number(end[0]) for end in getattr(p.array, metric))
    return low if low == high else f"{low}–{high}"


def remarks(outcomes: list[ToyOutcome]) -> list[str]:
    """What a reader of these cases should know beside the numbers."""
    sentences = []
    if any(outcome.case.norm == "post" and not outcome.case.neutreno for outcome in outcomes):
        sentences.append(
            "Post-LN with β = 0: the sign of a uniform γ has exactly no effect, since the update is odd in X."
        )
    if any(outcome.case.norm == "pre" for outcome in outcomes):
        sentences.append(
            "Pre-LN: X grows with depth and the layer's share shrinks, so where HFC/LFC falls it follows a power."
        )
    if any(outcome.case.neutreno for outcome in outcomes):
        sentences.append("NeuTRENO: V⁰ keeps tokens apart. Without a norm, smoothing has to beat 1 as well as ρ rough.")
    return sentences


def numbers(outcomes: list[ToyOutcome], title: str) -> dict[str, Any]:
    """Everything the chart and the table show, means over the draws, as plain values."""
    cases = []
    for outcome in outcomes:
        p, s = outcome.prediction, outcome.observed
        curves = {name: _plain(getattr(s, name).mean(-1)) for name, _, _ in PANELS if name != "hfc_lfc"}
        cases.append(
            {
                "settings": {k: v for k, v in vars(outcome.case).items() if k != "name"},
                "name": outcome.case.name,
                "predicted": outcome.predicted,
                "happened": outcome.happened,
                "rho_smooth": _plain(p.rho_smooth),
                "rho_rough": _plain(p.rho_rough),
                "notions": outcome.notions,
                "depth": _plain(s.depth),
                "log_hfc_lfc": _plain(s.log_hfc_lfc.mean(-1)),
                **curves,
            }
        )
    return {"title": title, "cases": cases}


def chart(outcomes: list[ToyOutcome], title: str) -> Any:
    """Three panels, one a notion: a line a case, and dashed what the spectra predict for the end."""
    import altair as alt  # heavy, and only charts need it

    names = [outcome.case.name for outcome in outcomes]
    legend = PAPER.legend(symbolType="stroke", symbolStrokeWidth=3)
    scale = alt.Scale(domain=names, range=PAPER.colours([model_colour(place) for place in range(len(names))]))
    colour = alt.Color("case:N", sort=names, scale=scale, legend=legend)
    # With Post-LN the two signs of γ give one curve: dots over a line show both.
    dashes = [[2, 3] if outcome.case.norm != "none" and outcome.case.gamma < 0 else [1, 0] for outcome in outcomes]
    dash = alt.StrokeDash("case:N", sort=names, scale=alt.Scale(domain=names, range=dashes), legend=legend)
    panels, has_predictions = [], False
    for metric, label, notion in PANELS:
        rows = [row for outcome in outcomes for row in curve(outcome, metric)]
        predicted = [row for outcome in outcomes for row in expected(outcome, metric)]
        scale = alt.Scale(domain=[0, 1]) if metric == "abs_cos" else alt.Scale(type="log", domain=domain(rows, metric))
        axis = alt.Axis(format=".1~f") if metric == "abs_cos" else alt.Axis(labelExpr=POWER, tickCount=5)
        y = alt.Y("value:Q", title=label, scale=scale, axis=axis)
        x = alt.X("layer:Q", title="layer", axis=alt.Axis(tickCount=5))
        tooltip = ["case:N", "layer:Q", alt.Tooltip("value:Q", title=label, format=".4~g")]
        curves = alt.Chart(alt.Data(values=rows))
        solid = curves.mark_line(clip=True, strokeWidth=2.5).encode(x, y, colour, dash, tooltip=tooltip)
        points = curves.mark_point(opacity=0, size=60).encode(x, y, colour, tooltip=tooltip)
        layers = [solid, points]
        if predicted:
            has_predictions = True
            dashed = alt.Chart(alt.Data(values=predicted)).mark_line(clip=True, strokeDash=[5, 4], opacity=0.75)
            layers.insert(0, dashed.encode(x, y, colour, detail="case:N"))
        panels.append(alt.layer(*layers).properties(width=270, height=240, title=notion))
    subtitle = (
        ["solid: what happened · dashed: the slope or level that the spectra of A and H give for the end"]
        if has_predictions
        else []
    )
    subtitle += ["dotted: γ negative"] if [2, 3] in dashes else []
    heading = alt.Title(title, subtitle=subtitle + remarks(outcomes), anchor="start", offset=12, fontSize=16)
    return styled(alt.hconcat(*panels, title=heading))


def curve(outcome: ToyOutcome, metric: str) -> list[dict[str, Any]]:
    values = getattr(outcome.observed, metric).mean(-1).tolist()
    depth = outcome.observed.depth.tolist()
    rows = []
    for layer, value in zip(depth, values, strict=True):
        if math.isfinite(value) and value >= _FLOOR[metric]:
            rows.append({"case": outcome.case.name, "layer": layer, "value": value})
    return rows


def expected(outcome: ToyOutcome, metric: str) -> list[dict[str, Any]]:
    """The predicted end of a single draw without norm: a level where the rough part wins, a slope where smoothing
    does.
    """
    case, p, s = outcome.case, outcome.prediction, outcome.observed
    if case.draws > 1 or case.norm != "none" or case.neutreno:
        return []
    depth = s.depth.tolist()
    if bool(p.smoothing[0]):
        if metric != "hfc_lfc":
            return [{"case": case.name, "layer": x, "value": 1.0} for x in depth] if metric == "abs_cos" else []
        rate, end = math.log(float(p.rho_rough[0] / p.rho_smooth[0])), float(s.log_hfc_lfc[-1, 0])
        line = [(x, math.exp(end + rate * (x - depth[-1]))) for x in depth if end + rate * (x - depth[-1]) < 0]
        return [{"case": case.name, "layer": x, "value": y} for x, y in line if y >= _FLOOR[metric]]
    if p.array is None or bool(p.array.turns[0]):
        return []
    value = float(getattr(p.array, metric)[0][0])
    if not _FLOOR[metric] <= value < math.inf:
        return []
    return [{"case": case.name, "layer": x, "value": value} for x in depth]


def domain(rows: list[dict[str, Any]], metric: str) -> list[float]:
    values = [row["value"] for row in rows] or [1.0]
    return [max(_FLOOR[metric], min(values) / 1.5), max(values) * 1.5]


def _words(values: list[str]) -> str:
    kinds = sorted(set(values))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{values.count(k)} {k}" for k in kinds)


def _number(value: Tensor | float) -> str:
    """With three decimals, so that a column can be compared, or by its power of ten."""
    value = float(value)
    return fixed(value, 3) if 1e-3 <= abs(value) < 1e3 else number(value, 2)


def _of_log(log: Tensor) -> str:
    value = math.exp(log) if -690 < log < 690 else None
    return _number(value) if value is not None else ratio(float(log))


def _spread(values: Tensor) -> str:
    low, high = float(values.min()), float(values.max())
    return _number(low) if high - low < 5e-4 else f"{fixed(low)}–{fixed(high)}"


def _plain(values: Tensor) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in values.tolist()]
