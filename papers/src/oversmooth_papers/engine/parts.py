"""What a run is built of; the next run takes it over where it differs in the seed or the strength of a method alone.

On a GPU building means compiling and capturing, which takes as long as many epochs of a small model. Nothing of it
depends on the seed or a strength: weights, moments, the states of generators and strengths lie in tensors, and are
filled again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oversmooth.steering.attach import never_run
from oversmooth.steering.ramps import fill_strengths, hold_strengths
from oversmooth_papers.engine import failure
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.result import WatchSettings
from oversmooth_papers.engine.smoothing import Watcher
from oversmooth_papers.engine.step import Step
from oversmooth_papers.engine.task import Evaluation, Task


@dataclass
class Parts:
    """Of one run in this process."""

    model: nn.Module
    step: Step
    evaluation: Evaluation
    watcher: Watcher | None


def build(task: Task, device: torch.device, ranks: Ranks, *, watch: WatchSettings, compiled: bool | None) -> Parts:
    """All parts, on the device, with the weights that the task's seed gives.

    Raises:
        InputError: they do not fit into the device's memory.
    """
    task.check_memory(device)
    model = task.model().to(device)
    hold_strengths(model)  # always, so that a run is the same whether or not it takes another's parts over
    try:
        step = Step(task, model, device, ranks, compiled=compiled)
        evaluation = task.evaluation(model, device)
        watcher = watch.watcher(task, model, device, watch.monitor) if watch.monitor else None
        return Parts(model, step, evaluation, watcher)
    except torch.OutOfMemoryError:
        del model
        step = evaluation = None  # type: ignore[assignment]
    # Not inside the handler, where the error still holds all that was allocated.
    raise failure.too_large(task, device)


class Reuse:
    """``Reuse()``, given to one `train` after the other: each builds anew or takes over what the last one built.

    The model of a result belongs to the next run then: keep a copy of what is to be kept.
    """

    def __init__(self) -> None:
        self._last: tuple[Parts, tuple[Any, ...]] | None = None
        self.reused = 0
        """How often something was taken over."""

    def parts(
        self, task: Task, device: torch.device, ranks: Ranks, *, watch: WatchSettings, compiled: bool | None
    ) -> Parts:
        """As `build`."""
        asked = (device, watch.monitor, watch.watcher, compiled)
        if self._last is not None and ranks.world == 1:
            (parts, before), self._last = self._last, None
            if before == asked and _begin_again(parts.step, task):
                self._last = parts, asked
                self.reused += 1
                return parts
            del parts  # before others are built: two may not fit
        parts = build(task, device, ranks, watch=watch, compiled=compiled)
        self._last = parts, asked
        return parts

    def forget(self) -> None:
        """Hold nothing any more."""
        self._last = None


def _begin_again(step: Step, task: Task) -> bool:
    """Put a step at the beginning of a task's run, where it can be: it is left alone otherwise."""
    before = step.task
    if type(before) is not type(task) or not task.has_data_of(before) or step.beside:
        return False
    # As plain fields: a recipe between the two may be one that is refused, such as a ramp without a strength.
    may_differ = {"seed": task.recipe.seed, "variant": task.recipe.variant}
    if {**before.recipe.to_dict(), **may_differ} != task.recipe.to_dict():
        return False
    with never_run():  # its weights are all that is wanted
        fresh = task.model()
    kept = {name for name, _ in fresh.named_buffers()} - set(fresh.state_dict())
    own = dict(step.model.named_buffers())
    if any(not torch.equal(value, own[name].cpu()) for name, value in fresh.named_buffers() if name in kept):
        return False  # drawn with the seed, and not saved with the weights
    if not fill_strengths(step.model, task.recipe.methods()):
        return False
    step.begin_again(task, fresh)
    return True
