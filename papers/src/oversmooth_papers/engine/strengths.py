"""Fixed strengths of steering as arrays that compiled steps and CUDA graphs read anew, filled for another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oversmooth.steering.methods.base import Method, MethodWithStrength
from oversmooth.steering.ramps import parts_of, steerings, strength_buffer


def held_strengths(model: nn.Module) -> list[Tensor]:
    """The arrays ``()`` that hold the fixed strengths of a model, one per part.

    Args:
        model: after `hold_strengths`.

    Raises:
        InputError: a method keeps its strength elsewhere than in its parts.
    """
    parts = [one for _, steering in steerings(model) for one in parts_of(steering)]
    return [
        strength_buffer(part, method)
        for method, _, part in parts
        if isinstance(method, MethodWithStrength) and not method.learned
    ]


@torch.no_grad()
def fill_strengths(model: nn.Module, methods: Sequence[Method]) -> bool:
    """Give strengths that `hold_strengths` holds the values that these methods have.

    Args:
        model: steered by methods that differ from these in strengths above 0 alone.
        methods: in the same order.

    Returns:
        Whether the model is steered by these now; if not, nothing was changed.
    """
    changes: list[tuple[Tensor, float]] = []
    every = [steering for _, steering in steerings(model)]
    for steering in every:
        if len(steering.methods) != len(methods):
            return False
        for acting, wanted in zip(steering.methods, methods, strict=True):
            if acting == wanted:
                continue
            parts = [part for _, _, part in parts_of(steering, type(acting).__name__)]
            if not (
                isinstance(acting, MethodWithStrength)
                and isinstance(wanted, MethodWithStrength)
                and parts  # none where the strength was 0
                and all(part.ramped is not None for part in parts)
                and wanted.strength
                and dataclasses.replace(acting, strength=wanted.strength) == wanted
            ):
                return False
            changes += [(strength_buffer(part, acting), wanted.strength) for part in parts]
    for held, strength in changes:
        held.fill_(strength)
    return bool(every) or not methods
