"""What tuning brought, as rows of a table: from what `tuning.Outcome.to_dict` gives, or a file that kept it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oversmooth.report.style import fixed
from oversmooth.steering.methods.registry import method_from
from oversmooth_papers.tuning.paired import ASSUMED_DISCORDANCE, smallest_detectable

HEAD = ("method", "top-1, %", "tuned", "difference", "gained, lost", "cross-entropy", "tuned", "difference", "p")


def detectable(images: int) -> str:
    """What so many images can show, to be said before anything is run."""
    share = smallest_detectable(images)
    assert share is not None
    seen = f"a difference of {100 * share:.1f} points"
    if share > ASSUMED_DISCORDANCE:
        seen += f" would be needed, and {100 * ASSUMED_DISCORDANCE:g} are the most there can be: nothing smaller shows"
    else:
        seen += " is the smallest that shows in 80 % of cases"
    return (
        f"{images:,} images: {seen} (2.80 √(d/n), the share d of answers that change between right and wrong assumed "
        f"at {ASSUMED_DISCORDANCE:.0%})."
    )


def row(outcome: dict[str, Any]) -> tuple[str, ...]:
    """One method's line; differences with their 95 % intervals."""
    accuracy, entropy = outcome["accuracy"], outcome["cross_entropy"]
    points = [100 * share for share in (accuracy["difference"], *accuracy["interval"])]
    changed = accuracy["gained"] + accuracy["lost"]
    return (
        _name(outcome["method"]),
        f"{100 * accuracy['before']:.1f}",
        f"{100 * accuracy['after']:.1f}",
        _with_interval(points, 1) if changed else "0.0 (no answer changed)",
        f"{accuracy['gained']}, {accuracy['lost']}",
        f"{entropy['before']:.4f}",
        f"{entropy['after']:.4f}",
        _with_interval([entropy["difference"], *entropy["interval"]], 4),
        f"{accuracy['p_value']:.2g}",
    )


def _with_interval(numbers: Sequence[float], decimals: int) -> str:
    middle, low, high = (fixed(number, decimals, sign=True) for number in numbers)
    return f"{middle} ({low} to {high})"


def terminal_rows(outcomes: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The heading and a row per method for a terminal, without what the differences already tell."""
    shown = (0, 1, 2, 3, 7, 8)
    head = ["cross-entropy" if place == 7 else HEAD[place] for place in shown]
    return head, [[line[place] for place in shown] for line in map(row, outcomes)]


def _name(settings: dict[str, Any]) -> str:
    """A method in few words: that it is learned from 0 goes without saying here."""
    method = method_from(settings)
    unsaid = {"method", "strength", "low", "high", "learned"}
    defaults = type(method)().settings()
    more = [
        f"{key} {value}" for key, value in method.settings().items() if key not in unsaid and value != defaults[key]
    ]
    return ", ".join([type(method).__name__, *more])


def notes(images: int, settings: dict[str, Any]) -> list[str]:
    """Paragraphs under the table. settings: those of `tuning.TuningSettings`."""
    long = f"{settings['epochs']} epochs" if settings["steps"] is None else f"{settings['steps']} steps"
    return [
        f"All weights frozen; strengths learned from 0 by AdamW without decay ({long} of {settings['batch']} images, "
        f"learning rate {settings['lr']:g}, seed {settings['seed']}), the last step counting. {settings['folds']} "
        f"folds: each of the {images:,} images is tested once, by strengths that never saw it.",
        "Intervals are of 95 %, for the paired difference: the error √(b + c − (b − c)²/n)/n for b gained and c lost, "
        "Student's t for the cross-entropy; p is McNemar's exact test, two-sided. They are of the choice of images to "
        "test; what other images to learn from would change, and that several methods are tried, is not in them.",
    ]
