"""Norms whose γ and β are multiplied by a factor, through torch's parametrizations (LayerNorm scaling)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.methods.layernorm_scaling import LayerNormScaling
from oversmooth.steering.reparametrized import restore_parameters


class ScaledNorm:
    """One norm, times a factor, between being made and `detach`. What is trained are its γ and β before the factor; the
    offset is what it adds to its weight.
    """

    def __init__(self, module: nn.Module, factor: float, offset: float) -> None:
        self.module = module
        self.order = list(module._parameters)
        self.names = [name for name in ("weight", "bias") if module._parameters.get(name) is not None]
        for name in self.names:
            new = _Scaled(factor, offset if name == "weight" else 0.0)
            parametrize.register_parametrization(module, name, new, unsafe=True)

    def detach(self, *, fold: bool) -> None:
        """The same parameters as before, as they are now; with fold, multiplied."""
        parameters: dict[str, Any] = {}
        for name in self.names:
            scaled = getattr(self.module, name).detach()
            parameters[name] = self.module.parametrizations[name].original  # type: ignore[index, union-attr]
            if fold:
                with torch.no_grad():
                    parameters[name].copy_(scaled)
        restore_parameters(self.module, parameters, self.order)


class _Scaled(nn.Module):
    """``factor · (weight + offset) − offset``: γ is the weight plus the offset, 1 in Gemma's norms."""

    def __init__(self, factor: float, offset: float) -> None:
        super().__init__()
        self.factor, self.offset = factor, offset

    def forward(self, weight: Tensor) -> Tensor:
        if self.offset == 0:
            return self.factor * weight
        return self.factor * (weight + self.offset) - self.offset


def scaled_norms(
    modules: dict[str, nn.Module], anatomy: Anatomy, layers: list[int], method: LayerNormScaling
) -> list[ScaledNorm]:
    """Scale the norms before attention and MLP of the layers with these indices.

    Raises:
        InputError: the norms of a layer are not known, or shared; nothing has changed.
    """
    found: list[tuple[str, float, float]] = []
    owners = Counter(id(part) for module in set(modules.values()) for part in _parts(module))
    for index in layers:
        layer, factor = anatomy.layers[index], method.factor(index)
        if factor == 1:
            continue
        assert layer.norm is not None
        norms, why = _norms_of(modules, layer), ""
        shared = [n for n in norms if any(owners[id(part)] > 1 for part in (modules[n], *_parts(modules[n])))]
        if shared:
            why = f"{shared[0]} shares its weights with something else; give each a copy of its own"
        if len(norms) > 2:
            why = f"it has {len(norms)} norms, and which one stands before its MLP is not known"
        if why:
            raise InputError(f"{type(method).__name__} cannot act on layer {index} ({layer.name}): {why}")
        found += [(name, factor, layer.norm.offset) for name in norms]
    return [ScaledNorm(modules[name], factor, offset) for name, factor, offset in found]


def _parts(module: nn.Module) -> list[object]:
    return [part for part in (*module._modules.values(), *module._parameters.values()) if part is not None]


def _norms_of(modules: dict[str, nn.Module], layer: AttentionLayer) -> list[str]:
    """Names of the norm before attention and of that before the MLP, where the block has one; more: it is not known."""
    assert layer.norm is not None
    before = layer.norm.name
    inside = layer.block + "." if layer.block else ""
    others = [
        name
        for name, module in modules.items()
        if name.startswith(inside)
        and name != before
        and not name.startswith(layer.name + ".")
        and "norm" in type(module).__name__.lower()
        and not any(True for _ in module.children())
        and getattr(getattr(module, "weight", None), "shape", None) == (layer.width,)
    ]
    if len(others) > 1:  # norms stand on both sides of each sublayer
        named = [name for name in others if name.rpartition(".")[2].startswith("pre_feedforward")]
        others = named if len(named) == 1 else others
    return [before, *others]
