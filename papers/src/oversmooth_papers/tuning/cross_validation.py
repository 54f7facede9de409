"""What learned strengths are worth: every image is tested once, by strengths that never saw it.

The images are cut into K parts at random. For each part the strengths are learned from 0 on the others, so K sets of
strengths are tested and none is chosen; the comparison with the untouched model is paired.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode
from oversmooth.steering import Method
from oversmooth.trace.feed import class_count
from oversmooth_papers.tuning.labelled import Labelled
from oversmooth_papers.tuning.learning import TuningSettings, frozen, learn, scores, steered
from oversmooth_papers.tuning.paired import compare_right, mean_difference

OnProgress = Callable[[int, int, str], None]
"""Told how many images are tested, of how many, and what is being done."""


@dataclass(frozen=True)
class Answers:
    """Of one classifier on every image: whether it is right, and its cross-entropy."""

    right: list[bool]
    losses: list[float]


@dataclass(frozen=True)
class Outcome:
    """A method's cross-validation beside the untouched model."""

    method: Method
    before: Answers
    after: Answers
    strengths: dict[str, list[float]]
    """By name: the mean strength of each fold."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON stores it; ``right`` has a 1 for every image that is right, in the order of the data."""
        both = {"before": self.before, "after": self.after}
        return {
            "method": self.method.settings(),
            "images": len(self.before.right),
            "accuracy": compare_right(self.before.right, self.after.right),
            "cross_entropy": mean_difference(self.before.losses, self.after.losses),
            "right": {when: "".join(str(int(one)) for one in answers.right) for when, answers in both.items()},
            "strengths": self.strengths,
        }


def folds_of(images: int, folds: int, seed: int) -> list[Tensor]:
    """The rows of each fold, sorted: a seeded permutation cut into parts whose sizes differ by one at most."""
    if folds > images:
        remedy = "give as many images as folds, or fewer folds"
        raise InputError(f"{images:,} images cannot be cut into {folds:,} folds; {remedy}")
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return [part.sort().values for part in order.tensor_split(folds)]


def check_classifier(model: nn.Module, data: Labelled, name: str) -> None:
    """Refuse a model that does not give one score per class for an image."""
    with torch.no_grad(), in_eval_mode(model):
        made = scores(model, data, torch.arange(1))
    shape = tuple(made.shape) if isinstance(made, Tensor) else ()
    if len(shape) != 2 or shape[1] != class_count(model):
        given = f"an array of shape {shape} for" if isinstance(made, Tensor) else "no array for"
        raise InputError(
            f"{name} is no classifier: it gives {given} one image, not a score per class; give one that is"
        )


def answers_of(
    model: nn.Module,
    data: Labelled,
    rows: Tensor | None = None,
    *,
    batch: int = 32,
    on_images: Callable[[int], None] = lambda _count: None,
) -> Answers:
    """What a model, in eval mode, makes of some images, or of all.

    rows ``(m,)``: which. batch: images at once. on_images: receives how many are done.
    """
    right: list[bool] = []
    losses: list[float] = []
    rows = torch.arange(len(data)) if rows is None else rows
    with torch.no_grad():
        for part in rows.split(batch):
            out, labels = scores(model, data, part).float().cpu(), data.labels[part]
            right += (out.argmax(1) == labels).tolist()
            losses += nn.functional.cross_entropy(out, labels, reduction="none").tolist()
            on_images(len(right))
    return Answers(right, losses)


def baseline(model: nn.Module, data: Labelled, batch: int, progress: OnProgress = lambda *_: None) -> Answers:
    """What the model makes of all images as it is. batch: images at once."""
    with frozen(model):
        return answers_of(model, data, batch=batch, on_images=lambda done: progress(done, len(data), "as it is"))


def cross_validate(
    model: nn.Module,
    method: Method,
    data: Labelled,
    before: Answers,
    settings: TuningSettings,
    progress: OnProgress = lambda *_: None,
) -> Outcome:
    """Test a method on every image, by strengths that were learned on the other folds.

    Args:
        model: a classifier, left as it was.
        method: with strengths that are learned from 0.
        data: labelled images, two or more.
        before: what the untouched model makes of all of them.
        settings: how.
        progress: told how far it is.

    Raises:
        InputError: too few images, or the method does not fit the model.
    """
    parts = folds_of(len(data), settings.folds, settings.seed)
    after = Answers([False] * len(data), [math.nan] * len(data))
    strengths: dict[str, list[float]] = {}

    def learning(fold: int, done: int, step: int) -> None:
        progress(done, len(data), f"fold {fold} of {len(parts)}, step {step}")

    for fold, tested in enumerate(parts, 1):
        seen = torch.cat([rows for rows in parts if rows is not tested])
        done = sum(map(len, parts[: fold - 1]))
        learning(fold, done, 0)
        with steered(model, method) as learned:
            on_step = functools.partial(learning, fold, done)
            learn(model, learned, data, seen, settings, seed=settings.seed + fold, on_step=on_step)
            answers = answers_of(model, data, tested, batch=settings.batch)
            progress(done + len(tested), len(data), f"fold {fold} of {len(parts)}, tested")
            for name, parameter in learned.items():
                strengths.setdefault(name, []).append(statistics.fmean(parameter.detach().flatten().tolist()))
        for row, is_right, loss in zip(tested.tolist(), answers.right, answers.losses, strict=True):
            after.right[row], after.losses[row] = is_right, loss
    return Outcome(method, before, after, strengths)
