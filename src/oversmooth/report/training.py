"""The training report: what was recorded over time and depth, as one page that needs no network, and as figures."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from oversmooth.report import shell, training_charts, training_words
from oversmooth.report.charts.base import distinct
from oversmooth.report.figures import Figure
from oversmooth.report.fitting import embedded
from oversmooth.report.shell import check as check
from oversmooth.report.style import COLOURS_OF_MODELS, PAGE, PAPER
from oversmooth.report.training_words import Run as Run
from oversmooth.report.training_words import title_of
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

MOST_RUNS = COLOURS_OF_MODELS
MOST_SNAPSHOTS = 400  # of one run in a page: more would be thinner than a line on any screen


def save(runs: Sequence[Any], path: str | os.PathLike[str]) -> None:
    """The page as a file, there whole or not at all."""
    path = arguments.path(path)
    check(path)
    shell.write(render(runs), path)


def render(runs: Sequence[Any]) -> str:
    """The page of one run, or of several laid over each other; each is a `Run`, or a `History`."""
    shown = _checked(runs)
    names = training_charts.metrics(shown)
    if not names:
        raise InputError("these runs have no snapshots yet; record at least one")
    first = training_words.headline_metric(shown)
    keys = training_charts.keys(shown)
    steps = sorted({row["step"] for run in shown for row in run.rows})
    words = partial(training_words.summary, named=len(shown) > 1)
    thinned = [(run, _thinned(run.rows, names)) for run in shown]
    payload = {"steps": steps, "runs": [{"name": run.name, "rows": rows} for run, rows in thinned]}
    panels = {name: training_charts.panels(name, shown, first=name == first) for name in names}
    drawn = {"config": PAGE.config, "charts": {}, "panels": panels, "keys": keys, "first": first}
    return shell.rendered(
        "training.html.j2",
        ("charts.js", "training.js"),
        len(shown),
        style=shell.text_of("training.css"),
        page_title=training_words.page_title(shown),
        finding=training_words.finding(shown),
        runs=[
            {"name": run.name, "colour": key.colour, "summary": words(run), "metrics": training_charts.metrics([run])}
            for run, key in zip(shown, keys, strict=True)
        ],
        first=first,
        metrics=[{"name": name, "title": title_of(name), "lead": training_words.lead_of(name)} for name in names],
        table=[{"title": title_of(name), "cells": [training_words.ends(run, name) for run in shown]} for name in names],
        steps=steps,
        alarms=training_words.alarms(shown),
        left_out=[
            f"{run.name}: this page contains {len(rows):,} of {len(run.rows):,} snapshots, evenly spread, and the last."
            for run, rows in thinned
            if len(rows) < len(run.rows)
        ],
        payload=embedded(payload),
        drawn=embedded(drawn),
    )


def figures(runs: Sequence[Any], path: str | os.PathLike[str], metric: str = "cos") -> None:
    """Still heat maps of one metric, side by side, for paper: .pdf, .png or .svg."""
    shown = _checked(runs)
    known = training_charts.metrics(shown)
    if metric not in known:
        raise InputError(f"{metric!r} was not recorded; choose one of {', '.join(known)}")
    maps = [{**training_charts.heat(metric, shown, index, PAPER), "title": run.name} for index, run in enumerate(shown)]
    Figure({"title": title_of(metric), "hconcat": maps}).save(path)


def _checked(runs: Sequence[Any]) -> list[Run]:
    if not 1 <= len(runs) <= MOST_RUNS:
        raise InputError(f"a training report shows 1 to {MOST_RUNS} runs and {len(runs)} were given; choose among them")
    for run in runs:
        if not hasattr(run, "name") or not hasattr(run, "rows"):
            raise InputError(f"a run is {arguments.shown(run)}; give a History, or training.Run(name, rows)")
    names = distinct([run.name for run in runs])
    return [Run(name, run.rows, run.about, run.alarms) for name, run in zip(names, runs, strict=True)]


def _thinned(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    stride = math.ceil(len(rows) / MOST_SNAPSHOTS) or 1
    kept = [row for place, row in enumerate(rows) if place % stride == 0 or place == len(rows) - 1]
    return [{"step": row["step"], **{name: row[name] for name in names if name in row}} for row in kept]
