"""Prediction beside outcome: tables in the terminal, the chart, the page, and the numbers as a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from torch import Tensor

from oversmooth.report import figures, shell
from oversmooth.report.charts.base import Key, Panel, Spec
from oversmooth.report.charts.pieces import DASHES, answering, caption, marks, nominal, quantitative, tip
from oversmooth.report.fitting import embedded
from oversmooth.report.style import COLOURS_OF_MODELS, PAGE, PAPER, UNKNOWN, Medium, fixed, model_colour, number, ratio
from oversmooth.report.terminal import plain_table
from oversmooth.safety.files import check_writable, write_text
from oversmooth.theory.toy import ToyOutcome

ENDINGS = (".png", ".svg", ".pdf", ".html", ".json")
_POWER = "datum.value == 1 ? '1' : format(datum.value, '.0e')"
# Below these a chart has nothing to show: σ₂/σ₁ is not resolved any more, and HFC/LFC is as good as zero.
_FLOOR = {"hfc_lfc": 1e-12, "sigma_ratio": 1e-7, "abs_cos": 0.0}
_PANELS = (
    ("hfc_lfc", "HFC / LFC", "input convergence"),
    ("abs_cos", "mean |cos|", "angle convergence"),
    ("sigma_ratio", "σ₂ / σ₁", "rank collapse"),
)
_LEADS = {
    "Prediction and outcome": "ρ smooth is the growth per layer of the mean token, ρ rough that of the differences "
    "from it. The spectra predict smoothing (pred.) if ρ smooth is larger; applying the layers shows it (obs.).",
    "Predicted by definition": "Whether the spectra predict that tokens become equal, parallel, or a rank-one array.",
    "After the last layer": "The three metrics, predicted and observed.",
}


def check(path: Path) -> None:
    """Raise InputError if the path cannot be written, before the work that it shows."""
    check_writable(path, ENDINGS)


def save(outcomes: list[ToyOutcome], path: Path, title: str) -> None:
    """The chart as PNG, SVG or PDF, the page as HTML (everything inside, no network), or the numbers as JSON."""
    if path.suffix.lower() == ".html":
        shell.write(render(outcomes, title), path)
    elif path.suffix.lower() == ".json":
        write_text(path, json.dumps(numbers(outcomes, title), indent=1))
    else:
        chart(outcomes, title).save(path)


def tables(outcomes: list[ToyOutcome]) -> list[Table]:
    """Three tables, a row per scenario: spectra and outcome, the three definitions, and their metrics at the end."""
    course = plain_table("scenario", "ρ smooth", "ρ rough", "pred.", "obs.", "per layer\npred.", "\nobs.", "agree")
    answers = plain_table("scenario", "input convergence", "angle convergence", "rank collapse")
    end = plain_table("scenario", "HFC/LFC\npred.", "\nobs.", "|cos|\npred.", "\nobs.", "σ₂/σ₁\npred.", "\nobs.")
    for outcome in outcomes:
        p, s, rates_of = outcome.prediction, outcome.observed, (outcome.predicted_rate, outcome.seen_rate)
        agrees = outcome.agrees
        claims = [a for a in agrees if a is not None]
        word = f"{sum(claims)} of {len(claims)}" if len(agrees) > 1 else "yes" if all(claims) else "no"
        name, radii = outcome.case.name, (_spread(p.rho_smooth), _spread(p.rho_rough))
        rates = (UNKNOWN if rate is None else f"× {_number(rate.mean())}" for rate in rates_of)
        colour = "dim" if not claims else "green" if all(claims) else "red"
        smooths = _words(outcome.predicted), _words(outcome.happened)
        course.add_row(name, *radii, *smooths, *rates, Text(word if claims else UNKNOWN, style=colour))
        answers.add_row(name, *(_words(values) for values in outcome.notions.values()))
        log = float(s.log_hfc_lfc[-1].mean())
        seen = [_number(math.exp(log)) if abs(log) < 690 else ratio(log)]
        seen += [_number(values[-1].mean()) for values in (s.abs_cos, s.sigma_ratio)]
        expected = [_limit(outcome, metric) for metric in ("hfc_lfc", "abs_cos", "sigma_ratio")]
        end.add_row(name, *(cell for pair in zip(expected, seen, strict=True) for cell in pair))
    return [course, answers, end]


def _limit(outcome: ToyOutcome, metric: str) -> str:
    """What the spectra predict for the end: a number, a range if the limit oscillates, a dash if they do not decide."""
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
    """What a reader should know beside the numbers."""
    sentences = []
    if any(outcome.case.norm == "post" and not outcome.case.neutreno for outcome in outcomes):
        sentences.append("Post-LN with β = 0: the sign of a uniform γ has no effect, because the update is odd in X.")
    if any(outcome.case.norm == "pre" for outcome in outcomes):
        sentences.append(
            "Pre-LN: X grows with depth and each layer contributes less, so HFC/LFC falls at most as a power of depth."
        )
    if any(outcome.case.neutreno for outcome in outcomes):
        sentences.append(
            "NeuTRENO: V⁰ keeps tokens different. Without a norm, ρ smooth must exceed 1 as well as ρ rough to smooth."
        )
    return sentences


def numbers(outcomes: list[ToyOutcome], title: str) -> dict[str, Any]:
    """Everything the chart and the table show, means over the draws, as plain values."""
    cases = []
    for outcome in outcomes:
        p, s = outcome.prediction, outcome.observed
        case: dict[str, Any] = {
            "settings": {k: v for k, v in vars(outcome.case).items() if k != "name"},
            "name": outcome.case.name,
        }
        case |= {"predicted": outcome.predicted, "happened": outcome.happened}
        case |= {name: _plain(getattr(p, name)) for name in ("rho_smooth", "rho_rough")}
        case |= {"notions": outcome.notions, "depth": _plain(s.depth)}
        cases.append(
            case | {name: _plain(getattr(s, name).mean(-1)) for name in ("log_hfc_lfc", "abs_cos", "sigma_ratio")}
        )
    return {"title": title, "cases": cases}


def chart(outcomes: list[ToyOutcome], title: str) -> figures.Figure:
    """Three panels, one per definition: a line per scenario, and dashed what the spectra predict for the end."""
    subtitle = []
    if any(_expected(outcome, metric) for outcome in outcomes for metric, _, _ in _PANELS):
        subtitle.append("solid: observed · dashed: slope or level at the end, predicted by the spectra of A and H")
    subtitle += ["dotted: γ negative"] if any(_negative(outcome) for outcome in outcomes) else []
    heading = {"text": title, "subtitle": subtitle + remarks(outcomes), "anchor": "start", "offset": 12, "fontSize": 16}
    panels = [_panel(outcomes, *of, PAPER) for of in _PANELS]
    return figures.Figure({"title": heading, "hconcat": [{**panel.spec, "title": panel.title} for panel in panels]})


def render(outcomes: list[ToyOutcome], title: str) -> str:
    """The page. title: the settings, in words."""
    panels = [_panel(outcomes, *of, PAGE) for of in _PANELS]
    keys = panels[0].tips
    drawing = {"legend": keys, "panels": [vars(panel) for panel in panels]}
    chart = {"one_model": False, "missing": "nothing to draw", "of_model": [0], "drawings": [drawing]}
    drawn = {"config": PAGE.config, "charts": {"simulation": chart}, "at_once": COLOURS_OF_MODELS}
    return shell.rendered(
        "simulation.html.j2",
        ("charts.js", "simulation.js"),
        len(outcomes),
        payload=embedded(numbers(outcomes, title)),
        drawn=embedded(drawn),
        finding=finding(outcomes),
        settings=title,
        dotted=any(_negative(outcome) for outcome in outcomes),
        remarks=remarks(outcomes),
        places={panel.place: {"title": panel.title, "options": []} for panel in panels},
        colours=[key.colour for key in keys],
        tables=[
            {"title": name, "lead": lead, **_in_words(table)}
            for (name, lead), table in zip(_LEADS.items(), tables(outcomes), strict=True)
        ],
    )


def finding(outcomes: list[ToyOutcome]) -> str:
    """In how many draws the spectra predicted the outcome."""
    claims = [agrees for outcome in outcomes for agrees in outcome.agrees if agrees is not None]
    if not claims:
        return "The spectra do not decide whether tokens become equal"
    right = sum(claims)
    if len(claims) == 1:
        word = {"smooth": "smooths", "rough": "does not smooth"}.get(outcomes[0].predicted[0], "is a tie")
        return f"The spectra predict that this layer {word}: {'right' if right else 'wrong'}"
    often = f"all {right}" if right == len(claims) else f"{right} of {len(claims)}"
    return f"The spectra predict correctly whether tokens become equal in {often} scenarios"


def _panel(outcomes: list[ToyOutcome], metric: str, label: str, notion: str, medium: Medium) -> Panel:
    names = [outcome.case.name for outcome in outcomes]
    colours = medium.colours([model_colour(place) for place in range(len(names))])
    keys = [Key("line", colour, name, "case", name) for name, colour in zip(names, colours, strict=True)]
    rows = [
        {**row, **tip(medium, f"layer {row['layer']:g}", [(place, number(row["value"]))])}
        for place, outcome in enumerate(outcomes)
        for row in _course(outcome, metric)
    ]
    lines = [row for outcome in outcomes for row in _expected(outcome, metric)]
    values = [row["value"] for row in rows] or [1.0]
    bounds = [max(_FLOOR[metric], min(values) / 1.5), max(values) * 1.5]
    log = metric != "abs_cos"
    scale: Spec = {"type": "log", "domain": bounds, "nice": False} if log else {"domain": [0, 1]}
    ticks = {"labelExpr": _POWER} if log else {"format": ".1~f"}
    last = max(float(outcome.observed.depth[-1]) for outcome in outcomes)
    legend = medium.legend(symbolType="stroke", symbolStrokeWidth=3)
    # Lines that lie on one another all stay visible: the first drawn is the widest.
    widths = [1.6 + 1.3 * (len(names) - 1 - place) for place in range(len(names))]
    # With Post-LN the two signs of γ give one curve: dots over a line show both.
    dashes = [DASHES["line dotted" if _negative(outcome) else "line"] for outcome in outcomes]
    at = {
        "x": quantitative("layer", "layer", {"domain": [0, last], "nice": False}, tickCount=5, grid=False, format="d"),
        "y": quantitative("value", None if medium.in_page else label, scale, tickCount=5, **ticks),
        "color": nominal("case", names, colours, legend),
    }
    stroke = {
        "strokeDash": nominal("case", names, dashes, legend),
        "strokeWidth": nominal("case", names, widths, None),
    }
    predicted = {"x": at["x"], "y": at["y"], "detail": {"field": "case"}}
    layers: list[Spec] = [
        marks("line", at | stroke, rows, clip=True, opacity=1),
        marks("line", predicted, lines, clip=True, strokeDash=[5, 4], strokeWidth=1.2, color=medium.colour("ink")),
        marks("circle", at, rows if medium.in_page else [], opacity=0, size=90, aria=False, **answering(medium)),
    ]
    return Panel(
        caption(medium, notion),
        {**medium.size(270, 240, 260), "layer": layers},
        note=label,
        tips=keys,
        described=f"{label} of {', '.join(names)} by layer; the tables below have the ends",
        place=metric,
    )


def _negative(outcome: ToyOutcome) -> bool:
    return outcome.case.norm != "none" and outcome.case.gamma < 0


def _course(outcome: ToyOutcome, metric: str) -> list[dict[str, Any]]:
    values = getattr(outcome.observed, metric).mean(-1).tolist()
    course = zip(outcome.observed.depth.tolist(), values, strict=True)
    known = ((x, y) for x, y in course if math.isfinite(y) and y >= _FLOOR[metric])
    return [{"case": outcome.case.name, "layer": x, "value": y} for x, y in known]


def _expected(outcome: ToyOutcome, metric: str) -> list[dict[str, Any]]:
    """The predicted end of a single draw without norm: a slope if smoothing dominates, else a level."""
    case, p, s = outcome.case, outcome.prediction, outcome.observed
    depth = s.depth.tolist()
    course: list[tuple[float, float]] = []
    if case.draws > 1 or case.norm != "none" or case.neutreno:
        pass
    elif bool(p.smoothing[0]):
        if metric == "abs_cos":
            course = [(x, 1.0) for x in depth]
        elif metric == "hfc_lfc":
            rate, end = math.log(float(p.rho_rough[0] / p.rho_smooth[0])), float(s.log_hfc_lfc[-1, 0])
            logs = ((x, end + rate * (x - depth[-1])) for x in depth)
            course = [(x, math.exp(log)) for x, log in logs if log < 0]
    elif p.array is not None and not bool(p.array.turns[0]):
        value = float(getattr(p.array, metric)[0][0])
        course = [(x, value) for x in depth]
    return [{"case": case.name, "layer": x, "value": y} for x, y in course if _FLOOR[metric] <= y < math.inf]


def _words(values: list[str]) -> str:
    kinds = sorted(set(values))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{values.count(k)} {k}" for k in kinds)


def _number(value: Tensor | float) -> str:
    """With three decimals, so that a column can be compared, or by its power of ten."""
    value = float(value)
    return fixed(value, 3) if 1e-3 <= abs(value) < 1e3 else number(value, 2)


def _spread(values: Tensor) -> str:
    low, high = float(values.min()), float(values.max())
    return _number(low) if high - low < 5e-4 else f"{fixed(low)}–{fixed(high)}"


def _plain(values: Tensor) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in values.tolist()]


def _in_words(table: Table) -> dict[str, Any]:
    """A table of the terminal as words; headings over two columns are written out in both."""
    headings: list[str] = []
    above = ""
    for column in table.columns:
        first, _, second = str(column.header).partition("\n")
        above = first or above
        headings.append(f"{above}, {second}" if second else above)
    cells = [[cell.plain if isinstance(cell, Text) else str(cell) for cell in column.cells] for column in table.columns]
    return {"headings": headings, "rows": list(zip(*cells, strict=True))}
