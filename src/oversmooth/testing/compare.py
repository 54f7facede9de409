"""What the checks have in common: a model run once, and its outputs compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def outputs(model: nn.Module, inputs: Any, *, grad: bool = False) -> list[Tensor]:
    """Every floating tensor that a call of the model gives."""
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
    assert len(now) == len(before), f"{what}: {len(now)} outputs where there were {len(before)}"
    for a, b in zip(now, before, strict=True):
        assert torch.equal(a, b), f"{what}: outputs are off by {(a - b).abs().max():.2g}"


def close(now: list[Tensor], expected: list[Tensor], tolerance: float, what: str) -> None:
    for a, b in zip(now, expected, strict=True):
        off = float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
        assert off <= tolerance, f"{what}: outputs are off by {off:.2g}, over {tolerance:g}"


def same_weights(model: nn.Module, before: dict[str, Tensor], what: str) -> None:
    now = model.state_dict()
    assert list(now) == list(before), f"{what}: other names, {sorted({*now} ^ {*before})[:3]}"
    for name, value in before.items():
        assert torch.equal(now[name], value), f"{what}: {name} is another"


def untouched(model: nn.Module, what: str) -> None:
    for name, module in model.named_modules():
        assert "forward" not in module.__dict__, f"{what}: the forward of {name or 'the model'} was left replaced"
        hooks = (*module._forward_hooks, *module._forward_pre_hooks, *module._backward_hooks)
        assert not hooks, f"{what}: a hook was left on {name or 'the model'}"
