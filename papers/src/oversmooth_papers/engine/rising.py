"""Strengths that rise while a model is trained: what `steering.ramp` does in a loop of one's own, inside the step.

What acts is a function of the steps that are done and of the recipe. So there is nothing to save, and a CUDA graph
computes it from the number of the step, on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oversmooth.steering.ramps import held_strengths, hold_strengths


class RisingStrengths:
    """``rising.set(position)``: all fixed strengths of a model, evenly from 0 to what they were when this was made.

    Those that are learned are left alone.
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        """steps: after how many the ends are reached."""
        hold_strengths(model)
        self.steps = steps
        self._acting = held_strengths(model)
        self._ends = [strength.clone() for strength in self._acting]

    def share(self, done: int) -> float:
        """What acts after so many steps, of the ends."""
        return min(1.0, done / self.steps)

    @torch.no_grad()
    def set(self, position: Tensor) -> None:
        """In place, without waiting for the device. position ``(1,)``: steps that are done."""
        share = (position.double() / self.steps).clamp(max=1.0)[0]
        for acting, end in zip(self._acting, self._ends, strict=True):
            torch.mul(end, share, out=acting)

    def take_ends(self) -> None:
        """The strengths as they are now become the ends, in the very tensors that the graph reads."""
        for acting, end in zip(self._acting, self._ends, strict=True):
            end.copy_(acting)
