"""Check the contract of steering methods on one model."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.steering import METHODS, Method, fold, save_steered, steer, steering_of, unsteer
from oversmooth.steering.methods.registry import method_from
from oversmooth.steering.saving import load_into
from oversmooth.testing.compare import check_untouched, close, outputs, same_bits, same_weights


def check_method(method: Method, model: nn.Module, inputs: Any, *, tolerance: float = 1e-5) -> None:
    """Check that a method satisfies the contract of all methods.

    Strength 0 changes no bit, any other strength changes the outputs, gradients reach learned parameters, and saving,
    loading, unsteering and folding work.

    Args:
        method: an instance of a class registered with `oversmooth.steering.register`.
        model: any that `oversmooth.steer` supports; a copy is checked.
        inputs: a tensor, or a dict of the model's arguments.
        tolerance: relative, of a folded model's outputs.

    Raises:
        AssertionError: with what is wrong.
    """
    kind = type(method).__name__
    assert METHODS.get(kind) is type(method), f"{kind} is not registered; decorate it with oversmooth.steering.register"
    assert method_from(method.settings()) == method, f"{method} is not restored from its settings"
    plain = copy.deepcopy(model).eval()
    expected = outputs(plain, inputs)
    if "strength" in {field.name for field in dataclasses.fields(method)}:  # type: ignore[arg-type]
        nothing = steer(copy.deepcopy(plain), dataclasses.replace(method, strength=0.0))  # type: ignore[type-var]
        same_bits(outputs(nothing, inputs), expected, f"{method} with strength 0")
    steered = steer(copy.deepcopy(plain), method)
    changed = outputs(steered, inputs)
    alike = all(torch.equal(a, b) for a, b in zip(changed, expected, strict=True))
    assert not alike or method.changes_nothing(), f"{method} changes nothing, but changes_nothing() is False"
    _check_gradients(method, steered, plain, inputs)
    _check_saved(method, steered, plain, inputs, changed)
    off = unsteer(copy.deepcopy(steered))
    same_weights(off, plain.state_dict(), f"{method}, unsteered")
    check_untouched(off, f"{method}, unsteered")
    same_bits(outputs(off, inputs), expected, f"{method}, unsteered")
    _check_folded(method, steered, inputs, changed, tolerance)


def _check_gradients(method: Method, steered: nn.Module, plain: nn.Module, inputs: Any) -> None:
    """Check parameters that the method adds; those of the stock model may be unused."""
    stock = dict(plain.named_parameters())
    model = copy.deepcopy(steered).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.stack([out.float().square().sum() for out in outputs(model, inputs, grad=True)]).sum().backward()
    for name, parameter in model.named_parameters():
        if name in stock or not parameter.requires_grad:
            continue
        assert parameter.grad is not None, f"{method}: {name} receives no gradient"
        assert bool(parameter.grad.isfinite().all()), f"{method}: the gradient of {name} is not finite"


def _check_saved(method: Method, steered: nn.Module, plain: nn.Module, inputs: Any, changed: list[Tensor]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steered.safetensors"
        save_steered(steered, file)
        stock = copy.deepcopy(plain)
        with torch.no_grad():
            for parameter in stock.parameters():
                parameter.zero_()
        loaded = load_into(stock, file).eval()
        same_bits(outputs(loaded, inputs), changed, f"{method}, saved and loaded")
    steering = steering_of(loaded)
    assert steering is not None, f"{method}: the loaded model is not steered"
    assert steering.methods == [method], f"{method}: the loaded model is steered by {steering.methods}"


def _check_folded(method: Method, steered: nn.Module, inputs: Any, changed: list[Tensor], tolerance: float) -> None:
    if method.why_no_fold:
        before = {name: value.clone() for name, value in steered.state_dict().items()}
        try:
            fold(steered)
        except InputError:
            same_weights(steered, before, f"{method}, refused to fold")
            return
        raise AssertionError(f"{method} has why_no_fold, but was folded")
    fold(steered)
    assert steering_of(steered) is None, f"{method}, folded: the model is still steered"
    close(outputs(steered, inputs), changed, tolerance, f"{method}, folded")
