"""The runs of a training report, the names of their metrics, and the finding in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report.headline import counted, course
from oversmooth.report.style import UNKNOWN, arrow, fixed, number, percent

_SUBLAYERS = {"attention": "attention", "mlp": "the MLP", "norm": "norms", "other": "other sublayers"}
_H, _JOINT = "H = (W_V W_O)ᵀ", "all heads jointly, for the probe's first input"
_WORDS = {  # of a metric: its title and the title of its axis, where they are not its label, and what it is
    "hfc_lfc": ("", "", "HFC/LFC: the differences between tokens, relative to their mean."),
    "cos": ("Mean cosine", "mean cosine", "The mean cosine of two different tokens of one input."),
    "abs_cos": ("", "", "The mean absolute cosine of two different tokens of one input."),
    "effective_rank": ("", "", "The number of directions that the tokens of one input fill."),
    "stable_rank": ("", "", "The stable rank of the tokens of one input."),
    "sigma_ratio": ("", "", "The second singular value of an input over its first."),
    "rank_one_distance": ("", "", "The distance of the tokens of one input to a rank-one array."),
    **{
        f"change_{part}": (
            f"Change through {name}",
            "Δ log HFC/LFC",
            f"The change of log HFC/LFC through {name}. Below zero, tokens become more similar.",
        )
        for part, name in _SUBLAYERS.items()
    },
    "negative_share": (
        "Negative eigenvalues of H", "share", f"Share of the eigenvalues of {_H} with negative real part.",
    ),
    "rho_smooth": (
        "ρ_smooth of H", "ρ smooth", f"The largest |1 + λ| over the eigenvalues λ of {_H}: how fast equal tokens grow.",
    ),
    "asymmetry": ("Asymmetry of H", "‖H − Hᵀ‖/‖H‖", f"‖H − Hᵀ‖/‖H‖ of {_H}: 0 if H is symmetric."),
    "smoothing_share": ("Smoothing heads", "share", "Share of heads whose smoothing eigenvalue dominates."),
    "joined_rho_smooth": (
        "ρ_smooth of all heads jointly", "ρ smooth", f"Growth per layer of what tokens share, {_JOINT}.",
    ),
    "joined_rho_rough": (
        "ρ_rough of all heads jointly", "ρ rough", f"Growth per layer of their differences, {_JOINT}.",
    ),
    "strength": ("Strength of steering", "λ̃", "Strength of the steering method."),
    "room": (
        "Margin before sharpening becomes smoothing", "margin",
        "The distance of the eigenvalues to the value at which sharpening becomes smoothing.",
    ),
    "gradient_norm": ("Gradient norm", "norm", "Norm of the gradient of the loss with respect to the tokens."),
    "gradient_hfc": (
        "HFC share of the gradient", "share",
        "Share of the squared gradient that acts on the differences between tokens.",
    ),
}  # fmt: skip
SHARES = ("negative_share", "smoothing_share", "gradient_hfc")  # metrics that are written in per cent
# What the headline is of: the first of these that was recorded.
_HEADLINES = ("cos", "hfc_lfc", "effective_rank", "stable_rank")
_UNNAMED = ("", "run", "runs", "this run", "out", "output")
_ABOUT_EQUAL = 0.02


@dataclass
class Run:
    """A training as it is shown."""

    name: str
    rows: list[dict[str, Any]]
    """Snapshots in the order of their steps: "step", and by metric one number per depth, or one for the model."""
    about: dict[str, Any] = field(default_factory=dict)
    """What is known of it: "model", the class, and "blocks", their names."""
    alarms: list[dict[str, Any]] = field(default_factory=list)  # as `History.alarms` has them


def title_of(name: str) -> str:
    """Of a metric's section."""
    title, _, _ = _WORDS.get(name, ("", "", ""))
    label = METRICS[name].label if name in METRICS else ""
    return title or label[:1].upper() + label[1:] or name


def lead_of(name: str) -> str:
    """Below the title: what it is, in words."""
    _, _, lead = _WORDS.get(name, ("", "", f"{title_of(name)}."))
    return f"{lead} Depth 0 is the input of the first block." if name in METRICS else lead


def axis_of(name: str) -> str:
    """Of a metric's axis."""
    _, axis, _ = _WORDS.get(name, ("", "", ""))
    return axis or (METRICS[name].label if name in METRICS else "") or name


def value_of(name: str, value: float | None) -> str:
    """A metric's value as tables and sentences have it."""
    return percent(value, 0) if name in SHARES else fixed(value) if name == "cos" else number(value, 3)


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
        words.append(f"{model} of {counted(count, 'block')}" if count else model)
    steps = [row["step"] for row in run.rows]
    span = f", steps {steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f", step {steps[0]:,}" if steps else ""
    return " · ".join([*words, f"{counted(len(steps), 'snapshot')}{span}"])


def headline_metric(runs: Sequence[Run]) -> str | None:
    """What the headline and the first chart are of; None where nothing of tokens was recorded."""
    return next((name for name in _HEADLINES if any(_ends(run, name) for run in runs)), None)


def finding(runs: Sequence[Run]) -> str:
    """The headline: a metric after the last block over training, or which runs end highest and lowest in it."""
    metric = headline_metric(runs)
    if metric is None:
        return f"{counted(sum(len(run.rows) for run in runs), 'snapshot')} of a training, without tokens"
    subject = f"{title_of(metric)} after the last block"
    recorded = [(run.name, ends) for run in runs if (ends := _ends(run, metric))]
    if len(recorded) == 1:
        steps, values = zip(*recorded[0][1], strict=True)
        of = f" of {recorded[0][0]}" if len(runs) > 1 else ""
        over, shown = counted(steps[-1] - steps[0], "step"), partial(value_of, metric)
        return f"{subject}{of} {course(values, over, 'step', steps, shown)}"
    (low, least), (high, most) = (pick((ends[-1][1], name) for name, ends in recorded) for pick in (min, max))
    if high - low < _ABOUT_EQUAL * max(abs(high), abs(low)):
        return f"{subject} ends about equal in all {len(recorded)} runs, at {value_of(metric, high)}"
    highest, lowest = f"{most}, at {value_of(metric, high)}", f"{least}, at {value_of(metric, low)}"
    return f"{subject} ends highest in {highest}, and lowest in {lowest}"


def alarms(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Every alarm in words, with what set it off, by run."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for run in runs:
        for alarm in run.alarms:
            found.setdefault(alarm["text"], []).append((run.name, [one["text"] for one in alarm["crossings"]]))
    return list(found.items())


def ends(run: Run, metric: str) -> str:
    """After the last block, in the first snapshot and in the last."""
    values = [value for _, value in _last(run, metric)]
    return arrow(values, partial(value_of, metric)) if values else UNKNOWN


def _ends(run: Run, metric: str) -> list[tuple[int, float]]:
    return [(step, value) for step, value in _last(run, metric) if value is not None]


def _last(run: Run, metric: str) -> list[tuple[int, float | None]]:
    """Steps, and the metric there after the last block."""
    return [(row["step"], row[metric][-1]) for row in run.rows if isinstance(row.get(metric), list) and row[metric]]
