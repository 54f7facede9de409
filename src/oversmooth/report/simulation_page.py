"""Prediction beside outcome as a page, in the design of all pages."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from oversmooth.report import shell
from oversmooth.report.charts.base import Key, Panel, Spec
from oversmooth.report.charts.pieces import DASHES, inline, nominal, quantitative
from oversmooth.report.packing import json_in_html, packed
from oversmooth.report.simulation import PANELS, POWER, curve, domain, expected, numbers, remarks, tables
from oversmooth.report.style import COLOURS_OF_MODELS, PAGE, model_colour, number
from oversmooth.theory.toy import ToyOutcome

_LEADS = {
    "What the spectra say, and what happened": "ρ smooth and ρ rough are the growth per layer of what tokens have in "
    "common and of what sets them apart; said: by the spectra, seen: by applying the layers.",
    "The three notions": "Whether tokens become equal, parallel, or a rank-one array, by the spectra.",
    "At the end": "Said and seen after the last layer, by each of the three.",
}


def render(outcomes: list[ToyOutcome], title: str) -> str:
    """The page. title: the settings, in words."""
    from markupsafe import Markup

    colours = [PAGE.colour(model_colour(place)) for place in range(len(outcomes))]
    keys = [
        Key("line", colour, outcome.case.name, "case", outcome.case.name)
        for outcome, colour in zip(outcomes, colours, strict=True)
    ]
    panels = [_panel(outcomes, keys, *of) for of in PANELS]
    drawing = {
        "legend": keys,
        "panels": [{k: packed(v) for k, v in vars(panel).items() if v not in ("", [], None)} for panel in panels],
    }
    chart = {"one_model": False, "missing": "nothing to draw", "of_model": [0], "drawings": [drawing]}
    drawn = {"config": PAGE.config, "charts": {"simulation": chart}, "at_once": COLOURS_OF_MODELS}
    return shell.rendered(
        "simulation.html.j2",
        ("charts.js", "simulation.js"),
        len(outcomes),
        finding=finding(outcomes),
        settings=title,
        dotted=any(_negative(outcome) for outcome in outcomes),
        remarks=remarks(outcomes),
        places={panel.place: {"title": panel.title, "options": []} for panel in panels},
        colours=colours,
        tables=[
            {"title": name, "lead": lead, **_plain(table)}
            for (name, lead), table in zip(_LEADS.items(), tables(outcomes), strict=True)
        ],
        payload=Markup(json_in_html(numbers(outcomes, title))),
        drawn=Markup(json_in_html(drawn)),
    )


def finding(outcomes: list[ToyOutcome]) -> str:
    """In how many draws the spectra predicted what happened."""
    claims = [agrees for outcome in outcomes for agrees in outcome.agrees if agrees is not None]
    if not claims:
        return "The spectra leave open what happens here"
    held = sum(claims)
    if len(claims) == 1:
        said, how = outcomes[0].predicted[0], "and so it was" if held else "but it was not so"
        word = {"smooth": "smooths", "rough": "does not smooth"}.get(said, said)
        return f"The spectra say that this layer {word}, {how}"
    often = f"all {held}" if held == len(claims) else f"{held} of {len(claims)}"
    return f"In {often} cases the spectra predicted rightly whether tokens become equal"


def _panel(outcomes: list[ToyOutcome], keys: list[Key], metric: str, label: str, notion: str) -> Panel:
    rows = [row for outcome in outcomes for row in curve(outcome, metric)]
    lines = [row for outcome in outcomes for row in expected(outcome, metric)]
    names = [key.label for key in keys]
    log = metric != "abs_cos"
    scale: Spec = {"type": "log", "domain": domain(rows, metric), "nice": False} if log else {"domain": [0, 1]}
    ticks: dict[str, Any] = {"labelExpr": POWER, "tickCount": 5} if log else {"format": ".1~f", "tickCount": 5}
    last = max(float(outcome.observed.depth[-1]) for outcome in outcomes)
    x = quantitative("layer", "layer", {"domain": [0, last], "nice": False}, tickCount=5, grid=False, format="d")
    y = quantitative("value", None, scale, **ticks)
    colour = nominal("case", names, [key.colour for key in keys], None)
    dashes = [DASHES["line dotted" if _negative(outcome) else "line"] for outcome in outcomes]
    for row in rows:
        place = names.index(row["case"])
        row |= {"title": f"layer {row['layer']:g}", "tip": [[place, number(row["value"])]]}
    at = {"x": x, "y": y, "color": colour}
    layers: list[Spec] = [
        {
            "data": inline(lines),
            "mark": {"type": "line", "clip": True, "strokeDash": [5, 4], "opacity": 0.75},
            "encoding": {**at, "detail": {"field": "case"}},
        },
        {
            "data": inline(rows),
            "mark": {"type": "line", "clip": True, "strokeWidth": 2.2},
            "encoding": {**at, "strokeDash": nominal("case", names, dashes, None)},
        },
        {
            "data": inline(rows),
            "mark": {"type": "circle", "opacity": 0, "size": 90, "aria": False, "tooltip": {"content": "data"}},
            "encoding": at,
        },
    ]
    return Panel(
        notion[:1].upper() + notion[1:],
        {**PAGE.size(270, 240, 260), "layer": layers},
        note=label,
        tips=keys,
        described=f"{label} of {', '.join(names)}, layer by layer; the tables below have the ends",
        place=metric,
    )


def _negative(outcome: ToyOutcome) -> bool:
    return outcome.case.norm != "none" and outcome.case.gamma < 0


def _plain(table: Table) -> dict[str, Any]:
    """A table of the terminal as words; headings over two columns are written out in both."""
    headings: list[str] = []
    above = ""
    for column in table.columns:
        first, _, second = str(column.header).partition("\n")
        above = first or above
        headings.append(f"{above}, {second}" if second else above)
    cells = [[cell.plain if isinstance(cell, Text) else str(cell) for cell in column.cells] for column in table.columns]
    return {"headings": headings, "rows": list(zip(*cells, strict=True))}
