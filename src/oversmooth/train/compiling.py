"""`torch.compile`, and a check that what it made does what the model does.

Compilers err, too. Up to torch 2.13 at least, code for GPUs may read in one thread what another has yet to write
(https://github.com/pytorch/pytorch/issues/190517), with some of the settings that each process tunes for itself. Of one
steered model the logits of a third of a batch came out wrong, in silence, in half of the processes; and differently in
every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Dynamo gives up on a function after this many compilations, and counts those of all models in the process.
_COMPILATIONS = 128
# Compiled and eager gradients in bfloat16 each lie 1 to 2 % from those in float32 with 4 blocks, and more with depth;
# where threads raced, logits were 50 % off.
_OFF = {True: 0.25, False: 0.01}
_UNSTEADY = 0.02
"""Between two calls; sums whose order is not fixed stay far below."""

Gradients = Callable[[Callable[..., Any]], Tensor]
"""Of a model, compiled or not, on one batch: all of them in one vector."""


def compiled(function: Any) -> Any:
    """`torch.compile` for one shape."""
    import torch._dynamo  # heavy, and eager runs do without

    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, _COMPILATIONS)
    return torch.compile(function, dynamic=False)


def checked(model: nn.Module, gradients: Gradients, *, half: bool, draws: bool) -> tuple[Any, str | None]:
    """The model compiled; or as it is, and why.

    Args:
        model: what is to be compiled.
        gradients: on the same batch, with the same random numbers, whenever it is called.
        half: whether it computes in half precision.
        draws: whether the model draws random numbers, which compiled code draws otherwise.
    """
    forward = compiled(model)
    first = gradients(forward)
    if (unsteady := _apart(gradients(forward), first)) > _UNSTEADY:
        return model, _slower(f"two calls with one batch are {_percent(unsteady)} apart")
    exact = None if draws else _if_it_fits(model, gradients)
    if exact is not None and exact.isfinite().all() and (off := _apart(first, exact)) > _OFF[half]:
        return model, _slower(f"they are {_percent(off)} from the model's own")
    return forward, None


def _if_it_fits(model: nn.Module, gradients: Gradients) -> Tensor | None:
    """Eager code may need more memory than the device has left."""
    try:
        return gradients(model)
    except torch.OutOfMemoryError:
        return None


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """The difference, relative to theirs; 0 where neither is finite, which is another's to say."""
    if not theirs.isfinite().all():
        return float("inf") if ours.isfinite().all() else 0.0
    size = theirs.double().norm()
    difference = (ours.double() - theirs.double()).norm()
    return float("inf") if not difference.isfinite() else float(difference / size) if size > 0 else float(difference)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value < float("inf") else "infinitely far"


def _slower(why: str) -> str:
    return (
        f"compiled code does not find this model's gradients: {why}; training goes on without compiling, which is "
        "right and slower (a newer torch may help: https://github.com/pytorch/pytorch/issues/190517)"
    )
