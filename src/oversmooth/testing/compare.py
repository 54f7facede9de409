"""Comparisons of outputs and weights, shared by the checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def outputs(model: nn.Module, inputs: Any, *, grad: bool = False) -> list[Tensor]:
    """Every floating tensor that the model returns."""
    with torch.set_grad_enabled(grad):
        return _tensors(model(**inputs) if isinstance(inputs, Mapping) else model(inputs))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def same_bits(now: list[Tensor], before: list[Tensor], what: str) -> None:
    assert len(now) == len(before), f"{what}: {len(now)} outputs instead of {len(before)}"
    for a, b in zip(now, before, strict=True):
        assert torch.equal(a, b), f"{what}: outputs differ by {(a - b).abs().max():.2g}"


def close(now: list[Tensor], expected: list[Tensor], tolerance: float, what: str) -> None:
    for a, b in zip(now, expected, strict=True):
        off = float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
        assert off <= tolerance, f"{what}: outputs differ by {off:.2g}, over the tolerance of {tolerance:g}"


def same_weights(model: nn.Module, before: dict[str, Tensor], what: str) -> None:
    now = model.state_dict()
    assert list(now) == list(before), f"{what}: names of weights differ, such as {sorted({*now} ^ {*before})[:3]}"
    for name, value in before.items():
        assert torch.equal(now[name], value), f"{what}: {name} has changed"


def check_untouched(model: nn.Module, what: str) -> None:
    for name, module in model.named_modules():
        assert "forward" not in module.__dict__, f"{what}: the forward of {name or 'the model'} is still replaced"
        hooks = (*module._forward_hooks, *module._forward_pre_hooks, *module._backward_hooks)
        assert not hooks, f"{what}: {name or 'the model'} still has a hook"
