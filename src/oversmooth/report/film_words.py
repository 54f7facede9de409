"""The runs of a film, how their metrics are called, and what a film says first: the finding in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report.style import UNKNOWN, arrow, number, percent

_THROUGH = {"attention": "attention", "mlp": "the MLP", "norm": "norms", "other": "other parts"}
_TITLES = {
    **{f"change_{part}": f"Change through {name}" for part, name in _THROUGH.items()},
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
    "cos": "How alike tokens are",
}
_AXES = {
    **{f"change_{part}": "Δ log HFC/LFC" for part in _THROUGH},
    "negative_share": "share", "rho_smooth": "ρ smooth", "asymmetry": "‖H − Hᵀ‖/‖H‖", "smoothing_share": "share",
    "joined_rho_smooth": "ρ smooth", "joined_rho_rough": "ρ rough", "strength": "λ̃", "room": "room",
    "gradient_norm": "norm", "gradient_hfc": "share", "cos": "mean cosine",
}  # fmt: skip
_LEADS = {
    "hfc_lfc": "HFC/LFC: what sets tokens apart over what they share.",
    "cos": "The mean cosine of two different tokens of one input.",
    "abs_cos": "The mean absolute cosine of two different tokens of one input.",
    "effective_rank": "How many directions the tokens of one input fill: the effective rank.",
    "stable_rank": "The stable rank of the tokens of one input.",
    "sigma_ratio": "The second singular value of an input over its first.",
    "rank_one_distance": "How far the tokens of one input are from a rank-one array.",
    "change_attention": "What attention adds to log HFC/LFC: below zero it brings tokens together.",
    "change_mlp": "What the MLP adds to log HFC/LFC: below zero it brings tokens together.",
    "change_norm": "What norms add to log HFC/LFC: below zero they bring tokens together.",
    "change_other": "What other parts add to log HFC/LFC: below zero they bring tokens together.",
    "negative_share": "Share of the eigenvalues of H = (W_V W_O)ᵀ with negative real part.",
    "rho_smooth": "The largest |1 + λ| over the eigenvalues λ of H = (W_V W_O)ᵀ: how fast a constant array grows.",
    "asymmetry": "‖H − Hᵀ‖/‖H‖ of H = (W_V W_O)ᵀ: 0 where it is symmetric.",
    "smoothing_share": "Share of heads whose smoothing eigenvalue dominates.",
    "joined_rho_smooth": "Growth per layer of what tokens share, all heads together, for the probe's first input.",
    "joined_rho_rough": "Growth per layer of what sets tokens apart, all heads together, for the probe's first input.",
    "strength": "Strength of the steering method.",
    "room": "How far eigenvalues are from where sharpening could turn into smoothing.",
    "gradient_norm": "Norm of the loss's gradient with respect to the tokens.",
    "gradient_hfc": "Share of the gradient's square that sets tokens apart.",
}
SHARES = ("cos", "negative_share", "smoothing_share", "gradient_hfc")
"""Metrics that are written in per cent."""
_HEADLINES = ("cos", "hfc_lfc", "effective_rank", "stable_rank")
"""What the headline is of: the first of these that was seen."""
_UNNAMED = ("", "run", "runs", "this run", "out", "output")
_MOST_NAMED = 4
_NOTICED = 0.01
"""Changes of less than this share are none."""


@dataclass(frozen=True)
class Run:
    """A training as it is shown."""

    name: str
    rows: list[dict[str, Any]]
    """Looks in the order of their steps: "step", and by metric one number per depth, or one for the whole model."""
    about: dict[str, Any] = field(default_factory=dict)
    """What is known of it: "model", the class, and "blocks", their names."""


def title_of(name: str) -> str:
    """Of a metric's section."""
    if name in _TITLES:
        return _TITLES[name]
    label = METRICS[name].label if name in METRICS else ""
    return label[0].upper() + label[1:] if label else name


def lead_of(name: str) -> str:
    """Below the title: what it is, in words."""
    start = " Depth 0 is what enters the first block." if name in METRICS else ""
    return f"{_LEADS.get(name, f'{title_of(name)}.')}{start}"


def axis_of(name: str) -> str:
    """Of a metric's axis."""
    return _AXES.get(name) or (METRICS[name].label if name in METRICS else "") or name


def value_of(name: str, value: float | None) -> str:
    """A metric's value as tables and sentences have it."""
    return percent(value, 0) if name in SHARES else number(value, 3)


def page_title(runs: Sequence[Run]) -> str:
    """Of the browser's tab: what it is, and of which runs where they have names that say something."""
    names = [run.name for run in runs if run.name.lower() not in _UNNAMED]
    between = "; " if any("," in name for name in names) else ", "
    return f"Smoothing over training{': ' if names else ''}{between.join(names)}"


def summary(run: Run, *, named: bool) -> str:
    """What was watched, in one line."""
    model, blocks = run.about.get("model"), run.about.get("blocks")
    words = [run.name] if named or run.name.lower() not in _UNNAMED else []
    if isinstance(model, str) and model:
        count = len(blocks) if isinstance(blocks, list) else 0
        words.append(f"{model} of {_counted(count, 'block')}" if count else model)
    steps = [row["step"] for row in run.rows]
    span = f", steps {steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f", step {steps[0]:,}" if steps else ""
    return " · ".join([*words, f"{_counted(len(steps), 'look')}{span}"])


def headline_metric(runs: Sequence[Run]) -> str | None:
    """What the headline and the first chart are of; None where nothing of tokens was seen."""
    return next((name for name in _HEADLINES if any(_ends(run, name) for run in runs)), None)


def finding(runs: Sequence[Run]) -> str:
    """The headline: how alike tokens of the last block were at first and at last, in one sentence."""
    metric = headline_metric(runs)
    if metric is None:
        looks = _counted(sum(len(run.rows) for run in runs), "look")
        return f"How a training went: {looks}, and nothing seen of its tokens"
    axis = axis_of(metric)
    subject = "Tokens of the last block" if metric == "cos" else f"{axis[:1].upper()}{axis[1:]} after the last block"
    seen = [(run, ends) for run in runs if (ends := _ends(run, metric))]
    if len(seen) > _MOST_NAMED:
        (low, least), (high, most) = (pick((ends[-1][1], run.name) for run, ends in seen) for pick in (min, max))
        extremes = f"{_alike(metric, low)} in {least} to {_alike(metric, high)} in {most}"
        return f"{subject} ended from {extremes}: {_counted(len(runs), 'run')}"
    clauses = [f"{_course(metric, ends)}{f' in {run.name}' if len(runs) > 1 else ''}" for run, ends in seen]
    return f"{subject} {'; '.join(clauses)}"


def ends(run: Run, metric: str) -> str:
    """After the last block, in the first look and in the last."""
    rows = [row[metric][-1] for row in run.rows if isinstance(row.get(metric), list) and row[metric]]
    return arrow(rows, partial(value_of, metric)) if rows else UNKNOWN


Ends = list[tuple[int, float]]
"""Steps, and what was seen there after the last block."""


def _ends(run: Run, metric: str) -> Ends:
    rows = [(row["step"], row[metric][-1]) for row in run.rows if isinstance(row.get(metric), list) and row[metric]]
    return [(step, value) for step, value in rows if value is not None]


def _alike(metric: str, value: float) -> str:
    return f"{value_of(metric, value)} alike" if metric == "cos" else value_of(metric, value)


def _course(metric: str, ends: Ends) -> str:
    """What was seen at first and at last, and in between where that lies beyond both."""
    (first, begin), (last, end) = ends[0], ends[-1]
    if len(ends) == 1:
        return f"began {_alike(metric, end)}, at step {first:,}: one look so far"
    over = f"over {_counted(last - first, 'step')}"
    low, high = sorted((begin, end))
    step, value = max(ends, key=lambda one: max(one[1] - high, low - one[1]))
    beyond = max(value - high, low - value)
    noticed = max(0.05 if metric == "cos" else 0.0, 0.25 * (high - low), 0.1 * max(abs(one) for _, one in ends))
    turn = f", with {value_of(metric, value)} at step {step:,} in between" if beyond > noticed else ""
    if value_of(metric, begin) == value_of(metric, end) or high - low < _NOTICED * max(abs(begin), abs(end)):
        return f"stayed {_alike(metric, end)} {over}{turn}"
    return f"went from {value_of(metric, begin)} to {_alike(metric, end)} {over}{turn}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
