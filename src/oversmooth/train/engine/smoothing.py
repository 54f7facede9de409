"""How smooth tokens are while the model trains: HFC/LFC and cosines after every block, on a few fixed inputs.

Cheap by design: few inputs, no ranks, and on a GPU the forward pass is a CUDA graph that leaves the tokens of all
depths in one array, measured in one sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.metrics.summary import summary
from oversmooth.train.cuda_graphs import captured
from oversmooth.train.engine.recipe import BaseRecipe
from oversmooth.train.engine.task import Probe


class Monitor:
    """``monitor.measure()``: numbers by depth, the embedding first, each the mean over the inputs."""

    def __init__(self, recipe: BaseRecipe, model: nn.Module, probe: Probe, device: torch.device) -> None:
        self.recipe, self.model, self.probe, self.device = recipe, model, probe, device
        self.tokens: Tensor | None = None  # (depth + 1, inputs, n, d), as the first pass shows
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _keep(self, depth: int, tokens: Any) -> None:
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        if self.tokens is None:
            self.tokens = torch.zeros(len(self.probe.blocks) + 1, *tokens.shape, device=self.device)
        self.tokens[depth].copy_(tokens)

    @torch.no_grad()
    def _body(self) -> None:
        def before(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self._keep(0, args)

        def after(depth: int) -> Callable[..., None]:
            return lambda _module, _args, out: self._keep(depth, out)

        blocks, model, training = self.probe.blocks, self.model, self.model.training
        handles = [blocks[0].register_forward_pre_hook(before)]
        handles += [block.register_forward_hook(after(depth + 1)) for depth, block in enumerate(blocks)]
        model.eval()
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
                model(*self.probe.inputs)
        finally:
            model.train(training)
            for handle in handles:
                handle.remove()

    def measure(self) -> dict[str, list[float]]:
        self._run()
        assert self.tokens is not None, "the first pass made it"
        measured = summary(self.tokens)
        columns = torch.stack([measured.log_hfc_lfc.mean(1).exp(), measured.cos.mean(1), measured.abs_cos.mean(1)])
        hfc_lfc, cos, abs_cos = columns.tolist()
        return {"hfc_lfc": _rounded(hfc_lfc), "cos": _rounded(cos), "abs_cos": _rounded(abs_cos)}


def _rounded(row: list[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in row]
