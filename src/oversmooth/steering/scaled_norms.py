"""Norms whose γ and β are multiplied by a number, through torch's parametrizations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from oversmooth.steering.reparametrized import remove_parametrization


class _Scaled(nn.Module):
    """``factor · (weight + offset) − offset``: γ is the weight plus the offset, 1 in Gemma's norms."""

    def __init__(self, factor: float, offset: float) -> None:
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, weight: Tensor) -> Tensor:
        if self.offset == 0:
            return self.factor * weight
        return self.factor * (weight + self.offset) - self.offset


class ScaledNorm:
    """One norm, between being made and `detach`. What is trained are its γ and β before the factor.

    Args:
        module: the norm.
        factor: on what it gives.
        offset: what it adds to its weight.
    """

    def __init__(self, module: nn.Module, factor: float, offset: float) -> None:
        self.module, self.factor = module, factor
        self.order = list(module._parameters)
        self.names = [name for name in ("weight", "bias") if module._parameters.get(name) is not None]
        for name in self.names:
            new = _Scaled(factor, offset if name == "weight" else 0.0)
            parametrize.register_parametrization(module, name, new, unsafe=True)

    def detach(self, *, fold: bool) -> None:
        """The same parameters as before, as they are now; with fold, multiplied."""
        kept: dict[str, Any] = {}
        for name in self.names:
            scaled = getattr(self.module, name).detach()
            kept[name] = self.module.parametrizations[name].original  # type: ignore[index, union-attr]
            if fold:
                with torch.no_grad():
                    kept[name].copy_(scaled)
        for name in self.names:
            remove_parametrization(self.module, name)
        parameters = {**self.module._parameters, **kept}
        self.module._parameters.clear()
        self.module._parameters.update({key: parameters[key] for key in self.order})
