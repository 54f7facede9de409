"""The film of a training: what was seen over time and depth, as one page that needs no network, and as figures."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report.packing import json_in_html
from oversmooth.report.shell import library, policy_hash, text_of
from oversmooth.report.style import COLOURS_OF_MODELS, PAGE, PAPER, Look, css_variables, model_colour, number
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_writable, whole_file
from oversmooth.safety.foreign import READABLE
from oversmooth.safety.libraries import import_library

MOST_RUNS = COLOURS_OF_MODELS
MOST_LOOKS = 400
"""Of one run in a page: more would be thinner than a line on any screen."""
_STEPS = 16
_TITLES = {
    "change_attention": "Change through attention",
    "change_mlp": "Change through the MLP",
    "change_norm": "Change through norms",
    "change_other": "Change through other parts",
    "negative_share": "Negative eigenvalues of H",
    "rho_smooth": "ρ_smooth of H",
    "asymmetry": "Asymmetry of H",
    "smoothing_share": "Heads that smooth",
    "joined_rho_smooth": "ρ_smooth of all heads",
    "joined_rho_rough": "ρ_rough of all heads",
    "strength": "Strength of steering",
    "room": "Distance to the flip",
    "gradient_norm": "Gradient",
    "gradient_hfc": "Share of the gradient that is HFC",
}
_AXES = {
    "change_attention": "log HFC/LFC", "change_mlp": "log HFC/LFC", "change_norm": "log HFC/LFC",
    "change_other": "log HFC/LFC", "negative_share": "share", "rho_smooth": "ρ_smooth", "asymmetry": "‖H − Hᵀ‖/‖H‖",
    "smoothing_share": "share", "joined_rho_smooth": "ρ_smooth", "joined_rho_rough": "ρ_rough",
    "strength": "λ̃", "room": "room", "gradient_norm": "norm", "gradient_hfc": "share",
}  # fmt: skip
_LOGARITHMIC = ("gradient_norm",)
_NOTHING = [0.1, 1.0]
"""The ends of an axis on which nothing is shown; logarithms have them too."""


@dataclass(frozen=True)
class Run:
    """A training as it is shown."""

    name: str
    rows: list[dict[str, Any]]
    """Looks in the order of their steps: "step", and by metric one number per depth, or one for the whole model."""


def check(path: Path) -> None:
    """Refuse what cannot become a page."""
    check_writable(path, (".html", ".htm"))
    for needed in ("jinja2", "vl_convert"):
        import_library(needed, "writing a page")


def save(runs: Sequence[Run], path: str | os.PathLike[str]) -> None:
    """The page as a file, there whole or not at all."""
    path = arguments.path(path)
    check(path)
    text = render(runs)
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", READABLE))


def render(runs: Sequence[Run]) -> str:
    """The page of one run, or of several laid over each other."""
    import jinja2  # only pages need it
    from markupsafe import Markup

    shown = _checked(runs)
    names = _metrics(shown)
    if not names:
        raise InputError("nothing was seen yet; look at least once")
    scripts = [library(), text_of("film.js")]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    panels = {
        name: {
            "heat": [_heat(name, shown, index, PAGE) for index in range(len(shown))],
            "depth": _over_depth(name, shown),
            "time": _over_time(name, shown),
            "first": _first_depth(name),
        }
        for name in names
    }
    steps = sorted({row["step"] for run in shown for row in run.rows})
    return environment.from_string(text_of("film.html.j2")).render(
        runs=[
            {
                "name": run.name,
                "colour": PAGE.colour(model_colour(index)),
                "looks": len(run.rows),
                "first": run.rows[0]["step"] if run.rows else 0,
                "last": run.rows[-1]["step"] if run.rows else 0,
            }
            for index, run in enumerate(shown)
        ],
        metrics=[{"name": name, "title": title_of(name)} for name in names],
        table=[{"title": title_of(name), "cells": [_ends(run, name) for run in shown]} for name in names],
        steps=steps,
        style=Markup(f"{css_variables()}\n{text_of('film.css')}"),
        scripts=[Markup(script) for script in scripts],
        hashes=[policy_hash(script) for script in scripts],
        payload=Markup(
            json_in_html(
                {
                    "config": PAGE.config,
                    "panels": panels,
                    "steps": steps,
                    "runs": [
                        {
                            "name": run.name,
                            "colour": PAGE.colour(model_colour(index)),
                            "rows": _thinned(run.rows, names),
                        }
                        for index, run in enumerate(shown)
                    ],
                }
            )
        ),
    )


def figures(runs: Sequence[Run], path: str | os.PathLike[str], metric: str = "cos") -> None:
    """Still heat maps of one metric, side by side, for paper.

    Args:
        runs: those to show.
        path: .pdf, .png or .svg.
        metric: which.
    """
    path = arguments.path(path)
    check_writable(path, (".pdf", ".png", ".svg"))
    convert = import_library("vl_convert", "drawing a figure")
    shown = _checked(runs)
    if metric not in _metrics(shown):
        raise InputError(f"{metric!r} was not seen; choose one of {', '.join(_metrics(shown))}")
    maps = [{**_heat(metric, shown, index, PAPER), "title": run.name} for index, run in enumerate(shown)]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": title_of(metric),
        "hconcat": maps,
        "config": PAPER.config,
    }
    kind = path.suffix.lower()
    drawn = {
        ".pdf": lambda: convert.vegalite_to_pdf(spec),
        ".png": lambda: convert.vegalite_to_png(spec, scale=2),
        ".svg": lambda: convert.vegalite_to_svg(spec).encode(),
    }[kind]()
    with whole_file(path) as temporary:
        temporary.write_bytes(drawn)


def title_of(name: str) -> str:
    """Of a metric's section."""
    if name in METRICS and METRICS[name].label:
        label = METRICS[name].label
        return label[0].upper() + label[1:]
    return _TITLES.get(name, name)


def _checked(runs: Sequence[Run]) -> list[Run]:
    if not 1 <= len(runs) <= MOST_RUNS:
        raise InputError(f"a film shows 1 to {MOST_RUNS} runs and {len(runs)} were given; choose among them")
    seen: dict[str, int] = {}
    named = []
    for run in runs:
        if not hasattr(run, "name") or not hasattr(run, "rows"):
            raise InputError(f"a run is {arguments.shown(run)}; give a History, or film.Run(name, rows)")
        seen[run.name] = seen.get(run.name, 0) + 1
        named.append(Run(run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})", run.rows))
    return named


def _metrics(runs: Sequence[Run]) -> list[str]:
    """What has one number per depth, in the order in which looks have it."""
    names = [name for run in runs for row in run.rows for name, value in row.items() if isinstance(value, list)]
    return list(dict.fromkeys(names))


def _first_depth(name: str) -> int:
    """Metrics of tokens begin with what enters the first block."""
    return 0 if name in METRICS else 1


def _is_log(name: str) -> bool:
    return name in _LOGARITHMIC or (name in METRICS and METRICS[name].scale == "log")


def _values(name: str, runs: Sequence[Run]) -> list[float]:
    known = [v for run in runs for row in run.rows for v in (row.get(name) or []) if v is not None]
    return [v for v in known if v > 0] if _is_log(name) else known


def _domain(name: str, runs: Sequence[Run]) -> tuple[float, float]:
    """Of the colours: all that was seen, on the scale on which it is shown."""
    values = _values(name, runs) or _NOTHING
    low, high = min(values), max(values)
    if _is_log(name):
        low, high = math.log10(low), math.log10(high)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    return low, high


def _colours(name: str, look: Look) -> list[str]:
    """From the ground to blue, which is what smoothing is everywhere: the more tokens are alike."""
    shares = [round(6 + 94 * i / (_STEPS - 1)) for i in range(_STEPS)]
    if name in METRICS and METRICS[name].falls:
        shares.reverse()
    if look.in_page:
        return [f"color-mix(in srgb, var(--smooth) {share}%, var(--raised))" for share in shares]
    dark, light = (0, 66, 110), (240, 245, 250)
    mixed = [[round(light[c] + (dark[c] - light[c]) * share / 100) for c in range(3)] for share in shares]
    return [f"rgb({r},{g},{b})" for r, g, b in mixed]


def _heat(name: str, runs: Sequence[Run], index: int, look: Look) -> dict[str, Any]:
    """Time across, depth upwards, one cell per look and depth; data are put in by the page, or here for paper."""
    low, high = _domain(name, runs)
    title = _AXES.get(name) or (METRICS[name].label if name in METRICS else name)
    label = "datum.value" if not _is_log(name) else "pow(10, datum.value)"
    legend = {
        "title": title,
        "orient": "right",
        "gradientLength": 130,
        "labelExpr": f"format({label}, '.3~g')",
        "values": [low, (low + high) / 2, high],
        "type": "symbol",
        "symbolType": "square",
    }
    layers: list[dict[str, Any]] = [
        {
            "data": {"name": "cells"} if look.in_page else {"values": cells(runs[index], name)},
            "mark": {"type": "rect", "tooltip": look.in_page},
            "encoding": {
                "x": {"field": "from", "type": "quantitative", "title": "step",
                      "scale": {"nice": False, "zero": False}},
                "x2": {"field": "to"},
                "y": {"field": "low", "type": "quantitative", "title": "depth", "scale": {"nice": False, "zero": False},
                      "axis": {"tickMinStep": 1, "format": "d"}},
                "y2": {"field": "high"},
                "color": {
                    "field": "shown",
                    "type": "quantitative",
                    "scale": {"type": "quantize", "domain": [low, high], "range": _colours(name, look)},
                    "legend": None if look.in_page else legend,
                },
            },
        }
    ]  # fmt: skip
    if look.in_page:
        layers.append(
            {
                "data": {"name": "at"},
                "mark": {"type": "rule", "color": look.colour("ink"), "strokeWidth": 1.5},
                "encoding": {"x": {"field": "step", "type": "quantitative"}},
            }
        )
    size = look.size(320, 180, 150)
    return {**size, "layer": layers, **({"datasets": {"cells": []}} if look.in_page else {})}


def cells(run: Run, name: str) -> list[dict[str, Any]]:
    """One rectangle per look and depth: each look lasts until the next."""
    rows = [row for row in run.rows if isinstance(row.get(name), list)]
    found = []
    for place, row in enumerate(rows):
        begin = row["step"]
        last = rows[place - 1]["step"] if place else begin - 1
        end = rows[place + 1]["step"] if place + 1 < len(rows) else 2 * begin - last
        for depth, value in enumerate(row[name], _first_depth(name)):
            if value is None or (_is_log(name) and value <= 0):
                continue
            shown = math.log10(value) if _is_log(name) else value
            found.append({"from": begin, "to": end, "low": depth - 0.5, "high": depth + 0.5, "shown": shown})
    return found


def _axis(name: str) -> dict[str, Any]:
    title = _AXES.get(name) or (METRICS[name].label if name in METRICS else name)
    scale = {"type": "log", "nice": False} if _is_log(name) else {"zero": False, "nice": True}
    return {"field": "value", "type": "quantitative", "title": title, "scale": scale}


def _colour_of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "field": "run",
        "type": "nominal",
        "scale": {
            "domain": [run.name for run in runs],
            "range": [PAGE.colour(model_colour(index)) for index in range(len(runs))],
        },
        "legend": None,
    }


def _over_depth(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Curves at the chosen step, bold, and at the steps that are kept, thin. The axis is that of all looks."""
    values = _values(name, runs) or _NOTHING
    axis = _axis(name)
    axis["scale"] = {**axis["scale"], "domain": [min(values), max(values)], "nice": False}
    return {
        **PAGE.size(320, 200, 200),
        "datasets": {"curves": []},
        "data": {"name": "curves"},
        "mark": {"type": "line", "point": {"size": 18}, "tooltip": True},
        "encoding": {
            "x": {"field": "depth", "type": "quantitative", "title": "depth", "axis": {"tickMinStep": 1, "format": "d"},
                  "scale": {"nice": False, "zero": False}},
            "y": axis,
            "color": _colour_of_runs(runs),
            "detail": {"field": "line"},
            "opacity": {"condition": {"test": "datum.kept", "value": 0.45}, "value": 1},
            "strokeDash": {"condition": {"test": "datum.kept", "value": [4, 3]}, "value": [1, 0]},
        },
    }  # fmt: skip


def _over_time(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """After the last block, over training."""
    return {
        **PAGE.size(320, 200, 200),
        "layer": [
            {
                "data": {"name": "last"},
                "mark": {"type": "line", "tooltip": True},
                "encoding": {
                    "x": {"field": "step", "type": "quantitative", "title": "step", "scale": {"nice": False}},
                    "y": _axis(name),
                    "color": _colour_of_runs(runs),
                },
            },
            {
                "data": {"name": "at"},
                "mark": {"type": "rule", "color": PAGE.colour("ink"), "strokeWidth": 1.5},
                "encoding": {"x": {"field": "step", "type": "quantitative"}},
            },
        ],
    }


def _ends(run: Run, name: str) -> str:
    """After the last block, in the first look and in the last."""
    rows = [row[name] for row in run.rows if isinstance(row.get(name), list) and row[name]]
    return f"{number(rows[0][-1])} → {number(rows[-1][-1])}" if rows else "–"


def _thinned(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    stride = max(1, math.ceil(len(rows) / MOST_LOOKS))
    kept = [row for place, row in enumerate(rows) if place % stride == 0 or place == len(rows) - 1]
    return [{"step": row["step"], **{name: row[name] for name in names if name in row}} for row in kept]
