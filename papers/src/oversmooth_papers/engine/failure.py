"""When a step is not finite: which layer was the first."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.step import Step


class Diverged(InputError):
    """The loss or a gradient is not finite any more."""


def not_finite(step: Step, mark: tuple[int, Tensor], saved: str) -> Diverged:
    """What to say of the failed step.

    Its weights are still those it met: a failed step changes none. mark: a step at or before it with the augmentation's
    state there, from which the batch is drawn again. saved: where the last checkpoint is, in words.
    """
    failed = int(step.failed)
    before, state = mark
    step.draws.augment.set_state(state)
    step.seek(before % step.steps)
    for _ in range(failed - before + 1):
        step.feed.draw(step.draws.augment)
    step.position.fill_(failed)
    step.set_strengths()
    where = f"step {failed + 1:,} (epoch {failed // step.steps + 1})"
    try:
        loss, layer = _first(step)
    except InputError as error:  # steering's own words, such as of a V about to become singular
        return Diverged(f"{where}: {error} ({saved})")
    remedy = f"lower the learning rate ({step.recipe.lr:g}) or use float32, and go on from {saved}"
    return Diverged(f"{where}: {loss}; {layer}: {remedy}")


def _first(step: Step) -> tuple[str, str]:
    """The loss, and the first layer whose parameters, output or gradient is not finite, each in words."""
    problems = [f"{name} is not finite in {bad}" for name, p in step.named.items() if (bad := _bad(p))]

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and (bad := _bad(out)):
                problems.append(f"{name} is the first layer whose output is not finite ({bad})")

        return hook

    with ExitStack() as hooks:
        for name, module in step.model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(watch(name)))
        loss = step.loss(step.batch(), step.model)
        # Not into .grad: a graph that goes on after a retry writes there.
        grads = torch.autograd.grad(loss, list(step.named.values()), allow_unused=True)
    for name, grad in reversed(list(zip(step.named, grads, strict=True))):
        if grad is not None and (bad := _bad(grad)):
            problems.append(f"the gradient of {name} is not finite in {bad}")
    value = float(loss.detach())
    if math.isfinite(value) and not problems:
        return "the loss or a gradient was not finite", "when the step is run again, every layer is"
    summary = "a gradient is not finite" if math.isfinite(value) else f"the loss is {value:g}"
    return summary, problems[0] if problems else "every layer is finite"


def _bad(x: Tensor) -> str:
    """How many entries are not finite, in words; empty if all are."""
    bad = int((~x.detach().isfinite()).sum()) if x.is_floating_point() else 0
    return f"{bad:,} of {x.numel():,} entries" if bad else ""
