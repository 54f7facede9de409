"""How smooth tokens are while the model trains: HFC/LFC and cosines after every block, on a few fixed test images.

Cheap by design: few images, no ranks, and on a GPU the forward pass is a CUDA graph that leaves the tokens of all
depths in one array, measured in one sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.metrics.summary import summary
from oversmooth.train.cuda_graphs import captured
from oversmooth.train.tasks.images.build import augment_of
from oversmooth.train.tasks.images.recipe import Recipe

IMAGES = 8


class Monitor:
    """``monitor.measure()``: numbers by depth, the embedding first, each the mean over the images."""

    def __init__(self, recipe: Recipe, model: nn.Module, images: Tensor, device: torch.device) -> None:
        """images ``(n, c, h, w)`` uint8; the first few are used."""
        self.recipe, self.model, self.device = recipe, model, device
        self.x = augment_of(recipe).to(device).normalise(images[:IMAGES].to(device).float())
        shape = recipe.shape
        self.tokens = torch.zeros(shape.depth + 1, len(self.x), shape.tokens, shape.width, device=device)
        self._blocks: Any = model.blocks
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    @torch.no_grad()
    def _body(self) -> None:
        def before(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self.tokens[0].copy_(args[0])

        def after(depth: int) -> Callable[..., None]:
            def keep(_module: nn.Module, _args: tuple[Any, ...], out: Tensor) -> None:
                self.tokens[depth].copy_(out)

            return keep

        handles = [self._blocks[0].register_forward_pre_hook(before)]
        handles += [block.register_forward_hook(after(depth + 1)) for depth, block in enumerate(self._blocks)]
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
                self.model(self.x)
        finally:
            for handle in handles:
                handle.remove()

    def measure(self) -> dict[str, list[float]]:
        self._run()
        measured = summary(self.tokens)
        columns = torch.stack([measured.log_hfc_lfc.mean(1).exp(), measured.cos.mean(1), measured.abs_cos.mean(1)])
        hfc_lfc, cos, abs_cos = columns.tolist()
        return {"hfc_lfc": _rounded(hfc_lfc), "cos": _rounded(cos), "abs_cos": _rounded(abs_cos)}


def _rounded(row: list[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in row]
