"""Every metric that a diagnosis takes, with what tables, pages and figures need to show it.

A new metric is a function of tokens that is registered::

    @register(label="spread", scale="log", falls=True)
    def spread(x, *, mask=None):
        \"""``(..., n, d)`` -> ``(...)``\"""

It is then measured after every block and appears in the diagnosis, the terminal, the page and the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


class Function(Protocol):
    """A metric of tokens, ``(..., n, d) -> (...)``; mask ``(..., n)``, true for the valid tokens."""

    __name__: str

    def __call__(self, x: Tensor, /, *, mask: Tensor | None = None) -> Tensor: ...


Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Metric:
    """A metric of a token array, and how it is shown."""

    name: str
    """Its name in a diagnosis, and its key in JSON."""
    label: str
    """Its name on pages and in figures; empty: it is not shown."""
    notion: str
    """The notion of smoothing that it measures; its own label where it is none of the three."""
    scale: Scale = "linear"
    """Of its axis."""
    falls: bool = True
    """Whether it falls as tokens become alike; False: it rises."""
    heading: str = ""
    """Of its column in the terminal; empty: it has none. `register` puts the label in its place."""
    fixed: bool = False
    """Whether it is shown with two decimals, since it lies between −1 and 1."""
    panel: bool = False
    """Whether it has a panel of its own in figures."""
    of: Function | None = None
    """Its function; None: it is measured together with others, in one sweep."""


METRICS: dict[str, Metric] = {}
"""By name, in the order in which they are shown."""


def register(
    *, label: str, scale: Scale = "linear", falls: bool = True, heading: str = "", fixed: bool = False
) -> Callable[[Function], Function]:
    """A decorator that makes a function of tokens a metric of every diagnosis, under the function's name.

    Args:
        label: the metric's name on pages and in figures.
        scale: of its axis.
        falls: whether it falls as tokens become alike; False: it rises.
        heading: of its column in the terminal; empty: the label.
        fixed: whether to show it with two decimals, since it lies between −1 and 1.

    Returns:
        The decorator, which leaves the function as it is.
    """

    def registered(function: Function) -> Function:
        name = function.__name__
        METRICS[name] = Metric(name, label, label, scale, falls, heading or label, fixed, panel=True, of=function)
        return function

    return registered


def extra() -> list[Metric]:
    """The metrics that have a function of their own."""
    return [metric for metric in METRICS.values() if metric.of is not None]


_INPUT, _ANGLE, _RANK, _SINK = "input convergence", "angle convergence", "rank collapse", "attention sinks"
_TOGETHER = (
    Metric("hfc_lfc", "HFC/LFC", _INPUT, "log", heading="HFC/\nLFC", panel=True),
    Metric("log_hfc_lfc", "", _INPUT),
    Metric("log_hfc", "", _INPUT),
    Metric("log_lfc", "", _INPUT),
    Metric("cos", "mean cos", _ANGLE, falls=False, heading="cos", fixed=True, panel=True),
    Metric("abs_cos", "mean |cos|", _ANGLE, falls=False, heading="|cos|", fixed=True),
    Metric("effective_rank", "effective rank", _RANK, heading="eff.\nrank", panel=True),
    Metric("sigma_ratio", "σ₂/σ₁", _RANK, "log"),
    Metric("stable_rank", "stable rank", _RANK),
    Metric("rank_one_distance", "", _RANK),
    Metric("hfc_lfc_special", "HFC/LFC with special tokens", _INPUT, "log"),
    Metric("cos_special", "mean cos with special tokens", _SINK, falls=False, fixed=True),
    Metric("first_norm", "norm of the first token over the median", _SINK, "log", falls=False),
    Metric("sink_rate", "share of heads whose sink is the first token", _SINK, falls=False, fixed=True),
    Metric("sink_attention", "mean attention to the first token", _SINK, falls=False, fixed=True),
)
"""Taken in one sweep over a token array (`summary`), from its singular values (`ranks_of`), or by a trace that sees
special tokens and attention."""
METRICS.update({metric.name: metric for metric in _TOGETHER})
