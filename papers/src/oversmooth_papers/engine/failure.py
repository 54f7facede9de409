"""When training goes wrong: which layer first stopped being finite, and which batch a full GPU would take."""

from __future__ import annotations

import gc
import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.step import Step
from oversmooth_papers.engine.task import Task

_LOST = re.compile("CUDA (driver )?error|NCCL error|HIP error|CUBLAS_STATUS|CUDNN_STATUS")


class Diverged(InputError):
    """The loss or a gradient is not finite any more."""


def lost_device(error: RuntimeError, device: torch.device, done: int, saved: str) -> InputError | None:
    """What to say when a GPU stopped working, fell off the bus or lost its driver; None for any other error."""
    known = isinstance(error, torch.AcceleratorError) or _LOST.search(str(error))
    if not known or isinstance(error, torch.OutOfMemoryError):
        return None
    reason = str(error).strip().split("\n")[0][:120].rstrip(". ")
    return InputError(
        f"{device} stopped working after step {done:,} ({reason}); reset it or take another, and go on from {saved}"
    )


def not_finite(step: Step, mark: tuple[int, Tensor], saved: str) -> Diverged:
    """What to say of the failed step.

    Its weights are still those it met: a failed step changes none. mark: a step at or before it with the augmentation's
    state there, from which the batch is drawn again. saved: where the last checkpoint is, in words.
    """
    failed = int(step.failed)
    before, state = mark
    step.generator.set_state(state)
    step.seek(before % step.steps)
    for _ in range(failed - before + 1):
        step.feed.draw(step.generator)
    step.position.fill_(failed)
    step.set_strengths()
    try:
        loss, layer = _first(step)
    except InputError as error:  # steering's own words, such as of a V about to become singular
        return Diverged(f"step {failed + 1:,} (epoch {failed // step.steps + 1}): {error} ({saved})")
    return Diverged(
        f"step {failed + 1:,} (epoch {failed // step.steps + 1}): {loss}; {layer}: lower the learning rate "
        f"({step.recipe.lr:g}) or use float32, and go on from {saved}"
    )


def _first(step: Step) -> tuple[str, str]:
    """The loss, and the first layer whose parameters, output or gradient is not finite, each in words."""
    problems: list[str] = []
    handles = []

    def look(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and (bad := _bad(out)) and not problems:
                problems.append(
                    f"{name} is the first layer whose output is not finite ({bad:,} of {out.numel():,} entries)"
                )

        return hook

    for name, parameter in step.named.items():
        if bad := _bad(parameter):
            problems.append(f"{name} is not finite in {bad:,} of {parameter.numel():,} entries")
            break
    for name, module in step.model.named_modules():
        if name:
            handles.append(module.register_forward_hook(look(name)))
    try:
        loss = step.loss(step.batch(), step.model)
        if not problems:
            # Not into .grad: a graph that goes on after a retry writes there.
            grads = torch.autograd.grad(loss, list(step.named.values()), allow_unused=True)
            for name, grad in reversed(list(zip(step.named, grads, strict=True))):
                if grad is not None and (bad := _bad(grad)):
                    problems.append(f"the gradient of {name} is not finite in {bad:,} of {grad.numel():,} entries")
                    break
    finally:
        for handle in handles:
            handle.remove()
    value = float(loss.detach())
    if not problems and math.isfinite(value):
        return "the loss or a gradient was not finite", "when the step is run again, every layer is"
    summary = "a gradient is not finite" if math.isfinite(value) else f"the loss is {value:g}"
    return summary, problems[0] if problems else "every layer is finite"


def _bad(x: Tensor) -> int:
    return int((~x.detach().isfinite()).sum()) if x.is_floating_point() else 0


def too_large(task: Task, device: torch.device) -> InputError:
    """What to say when a batch does not fit: the largest half, quarter, ... of it that does."""
    batch = task.recipe.batch // 2
    while batch and not _fits(task, batch, device):
        batch //= 2
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device}"
    if not batch:
        return InputError(f"{where} has no memory for a batch of one of this model; free some, or give a smaller model")
    return InputError(f"a batch of {task.recipe.batch} does not fit into the memory of {where}; one of {batch} would")


def _fits(task: Task, batch: int, device: torch.device) -> bool:
    """Whether forward and backward of so many examples do, beside the optimiser's moments."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        model = task.model().to(device)
        moments = [torch.zeros_like(p) for p in model.parameters() for _ in range(2)]
        with torch.autocast(device.type, torch.bfloat16, enabled=task.recipe.autocasts(device.type)):
            loss = task.loss(model, task.blank(batch, device))
        loss.backward()
        del moments
    except torch.OutOfMemoryError:
        return False
    return True
