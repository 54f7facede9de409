"""How smooth tokens are while the model trains: HFC/LFC and cosines after every block, on a few fixed inputs.

The same eyes as `oversmooth.Monitor`'s, and cheap by design: few inputs, no ranks, and on a GPU the forward pass is a
CUDA graph that leaves the tokens of all depths in one array, measured in one sweep.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from oversmooth.observe.depths import StoredDepths
from oversmooth.observe.untouched import in_eval_mode
from oversmooth.train.cuda_graphs import captured
from oversmooth.train.engine.recipe import BaseRecipe
from oversmooth.train.engine.task import Probe


class SmoothingProbe:
    """``probe.measure()``: numbers by depth, the embedding first, each the mean over the inputs."""

    def __init__(self, recipe: BaseRecipe, model: nn.Module, probe: Probe, device: torch.device) -> None:
        self.recipe, self.model, self.probe, self.device = recipe, model, probe, device
        self.depths = StoredDepths([(f"block {place}", block) for place, block in enumerate(probe.blocks)])
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _body(self) -> None:
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type))
        with in_eval_mode(self.model), autocast:
            self.depths.fill(lambda: self.model(*self.probe.inputs))

    def measure(self) -> dict[str, list[float]]:
        self._run()
        return {name: [float(f"{value:.5g}") for value in row] for name, row in self.depths.measure().items()}
