"""How smooth tokens are while the model trains: what the engine asks of whatever looks, and what looks by default.

The default sees little, and is cheap by design: HFC/LFC and cosines after every block, on a few fixed inputs, no ranks,
and on a GPU a forward pass that is a CUDA graph and leaves the tokens of all depths in one array, measured in one
sweep. `oversmooth.Monitor`, which sees more, stands above the trainer and is handed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from oversmooth.observe.depths import StoredDepths
from oversmooth.safety.untouched import in_eval_mode
from oversmooth_papers.cuda_graphs import captured
from oversmooth_papers.engine.task import Task


class Watcher(Protocol):
    """``watcher.look(step)``: what is seen after a step, and the training is as without."""

    def look(self, step: int) -> dict[str, Any] | None:
        """By metric one number per depth, or one number; each finite, or None. None where the look failed."""


class MakesWatcher(Protocol):
    """A class or function, called once a run's model is on its device."""

    def __call__(self, task: Task, model: nn.Module, device: torch.device, every: int) -> Watcher:
        """every: steps between looks; there is also one after the first step, and one after the last."""


class SmoothingProbe:
    """Numbers by depth, the embedding first, each the mean over the task's probe."""

    def __init__(self, task: Task, model: nn.Module, device: torch.device, every: int = 1) -> None:  # noqa: ARG002 (all looks are alike)
        self.task, self.model, self.device = task, model, device
        self.probe = task.probe(model, device)
        self.depths = StoredDepths([(f"block {place}", block) for place, block in enumerate(self.probe.blocks)])
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _body(self) -> None:
        in_bf16 = self.task.recipe.autocasts(self.device.type)
        with in_eval_mode(self.model), torch.autocast(self.device.type, torch.bfloat16, enabled=in_bf16):
            self.depths.fill(lambda: self.model(*self.probe.inputs))

    def look(self, step: int) -> dict[str, list[float]]:  # noqa: ARG002 (all looks are alike)
        self._run()
        seen = {name: [float(f"{value:.5g}") for value in row] for name, row in self.depths.measure().items()}
        return seen | self.task.look_at_weights(self.model)
