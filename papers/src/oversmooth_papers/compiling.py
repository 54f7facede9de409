"""`torch.compile`, and a check that what it made computes what the model does.

Compilers can be wrong. In torch 2.11, code for GPUs may read in one thread what another has yet to write
(https://github.com/pytorch/pytorch/issues/190517). Of one steered model the logits of a third of a batch came out
wrong, in silence, in four of five processes; and differently in every call (benchmarks/compiled.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

# Dynamo gives up on a function after this many compilations, and counts those of all models in the process.
_COMPILATIONS = 128
# What compiled code may be off: several times what half precision itself makes of the model, and a little of what
# there is. Threads that raced were off by half of it.
_ROUNDINGS, _SHARE, _OF_ALL = 4.0, 0.02, 1e-3
_BETWEEN_CALLS = 0.05
_EXAMPLE, _EXAMPLES = 0.05, 0.05


@dataclass
class Numbers:
    """What one pass computes, forward and backward."""

    outputs: list[Tensor] = field(default_factory=list)
    """``(examples, numbers)``; a single one of a model that gives its loss."""
    gradients: list[Tensor] = field(default_factory=list)
    """One per weight."""

    @property
    def finite(self) -> bool:
        return all(bool(one.isfinite().all()) for one in (*self.outputs, *self.gradients))


Pass = Callable[[Callable[..., Any], bool], Numbers]
"""Of a model, compiled or not, in half precision or not; on the same batch, with the same random numbers."""


def compiled(function: Any) -> Any:
    """`torch.compile` for one shape."""
    import torch._dynamo  # heavy, and eager runs do without

    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, _COMPILATIONS)
    return torch.compile(function, dynamic=False)


def checked(model: nn.Module, run: Pass, *, half: bool, draws: bool) -> tuple[Any, str | None]:
    """The compiled model, or the model itself and the reason.

    draws: whether the model draws random numbers, which compiled code draws otherwise.
    """
    forward = compiled(model)
    first, again = run(forward, half), run(forward, half)
    try:
        if draws:
            off = _off((again,), first, first, _BETWEEN_CALLS)
        else:
            exact = run(model, False)
            off = _off((first, again), run(model, True) if half else exact, exact, _SHARE)
    except torch.OutOfMemoryError:  # eager code needs more memory than compiled code does
        return forward, "compiled code was not checked against the model itself, for which there is too little memory"
    if off is None:
        return forward, None
    return model, (
        f"compiled code does not reproduce this model: {off}; it is trained uncompiled, which is right and slower "
        "(torch's compiler has such faults, for instance https://github.com/pytorch/pytorch/issues/190517)"
    )


def checked_augmentation(function: Callable[..., tuple[Tensor, ...]], *given: Tensor) -> tuple[Any, str | None]:
    """As `checked`, of a function of batches in full precision.

    A last bit may turn a pixel that lies on a threshold: some examples may differ.
    """
    fast = compiled(function)
    theirs = function(*given)
    for ours in (fast(*given), fast(*given)):
        for mine, own in zip(ours, theirs, strict=True):
            mine, own = mine.float().flatten(1), own.float().flatten(1)
            wrong = ~(_rows(mine - own) <= _EXAMPLE * _rows(own).mean())
            if wrong.double().mean() > _EXAMPLES:
                off = f"{int(wrong.sum())} of {len(wrong)} examples are off"
                return function, f"compiled augmentation is wrong: {off}; it stays uncompiled, which is slower"
    return fast, None


def _off(ours: Iterable[Numbers], rounded: Numbers, exact: Numbers, share: float) -> str | None:
    """What lies further from the model in full precision than half precision explains, and how far."""
    if not (exact.finite and rounded.finite):
        return None  # not the compiler's; training says so
    total = float(sum(_norm(one).square() for one in exact.gradients)) ** 0.5
    for one in ours:
        for mine, half, full in zip(one.outputs, rounded.outputs, exact.outputs, strict=True):
            sizes = _rows(full)
            allowed = _ROUNDINGS * _rows(half - full).max() + share * sizes.mean()
            wrong = ~(_rows(mine - full) <= allowed)  # where it is not a number, too
            if wrong.any():
                return f"{int(wrong.sum())} of {len(wrong)} outputs are off, {_share(mine, full)} in all"
        for mine, half, full in zip(one.gradients, rounded.gradients, exact.gradients, strict=True):
            allowed = _ROUNDINGS * _norm(half - full) + share * _norm(full) + _OF_ALL * total
            if not _norm(mine - full) <= allowed:
                return f"the gradient of a weight {tuple(full.shape)} is {_share(mine, full)} off"
    return None


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float64)


def _rows(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)


def _share(ours: Tensor, theirs: Tensor) -> str:
    share = 100 * float(_norm(ours - theirs) / _norm(theirs))
    return f"{share:.1f} %" if share < float("inf") else "infinitely far"
