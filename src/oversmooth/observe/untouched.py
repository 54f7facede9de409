"""A pass through a model that is being trained, after which everything is as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import nn

_PLAIN, _TENSOR, _GENERATOR = "plain", "tensor", "generator"
_KINDS: dict[str, tuple[type, ...]] = {
    _PLAIN: (bool, int, float, complex, str, type(None)),
    _TENSOR: (torch.Tensor,),
    _GENERATOR: (torch.Generator,),
}
_OWN = frozenset(name for name, value in nn.Module().__dict__.items() if isinstance(value, dict))
"""What torch keeps of every module: hooks, and what is put back by other ways."""
_LARGE = 2**24
"""Bytes of a tensor that is copied though it is no buffer: larger ones are caches, which a pass fills anew."""


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in eval mode, runs eagerly, and nothing that happens is left behind.

    Random states of torch, of Python and, where it is loaded, of numpy, and of generators that modules have; each
    module's own train flag; every buffer; attributes of modules that are numbers, text or tensors; the weights that
    autocast keeps cast; and what compiled code is (it is passed by, and not compiled again). Not seen: what hooks of
    others count, and what modules keep in lists, in other objects, or in large tensors that are no buffers.

    Args:
        model: the module itself, and no wrapper around it.
    """
    modules = list(model.modules())
    with ExitStack() as stack:
        stack.enter_context(random_states())
        stack.enter_context(_in_eval_mode(modules))
        stack.enter_context(_buffers(modules))
        stack.enter_context(_attributes(modules))
        stack.enter_context(_autocast())
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def random_states() -> Iterator[None]:
    """Whatever is drawn within the block, those outside draw what they would have drawn."""
    numpy: Any = sys.modules.get("numpy")
    python = random.getstate()
    arrays = None if numpy is None else numpy.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(arrays)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode within the block; afterwards each has its own flag again."""
    with _in_eval_mode(list(model.modules())):
        yield


@contextmanager
def _in_eval_mode(modules: list[nn.Module]) -> Iterator[None]:
    flags = [module.training for module in modules]
    _set_training(modules, [False] * len(modules))
    try:
        yield
    finally:
        _set_training(modules, flags)


def _set_training(modules: list[nn.Module], flags: list[bool]) -> None:
    """Not by train(), which some models override; only where it changes, and past torch's own slow way to set."""
    for module, flag in zip(modules, flags, strict=True):
        if module.training == flag:
            continue
        plain = "training" in module.__dict__ and not hasattr(type(module), "training")
        if plain and type(module).__setattr__ is nn.Module.__setattr__:
            module.__dict__["training"] = flag
        else:
            module.training = flag


@contextmanager
def _buffers(modules: list[nn.Module]) -> Iterator[None]:
    """Modules that count or average in their buffers may do so in eval mode too."""
    kept = [
        (module, name, value, value._version, value.detach().clone())
        for module in modules
        for name, value in module._buffers.items()
        if value is not None and not value.is_inference()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, value, version, copy in kept:
                if value._version != version:
                    value.copy_(copy)
                if module._buffers.get(name) is not value:
                    module._buffers[name] = value


@contextmanager
def _attributes(modules: list[nn.Module]) -> Iterator[None]:
    """What modules count or remember outside their buffers: lengths that they have seen, generators of their own.

    Not of a module that makes its weights in the pass: its flags must say that they are there.
    """
    before, tensors, generators = [], [], []
    for module in modules:
        plain: dict[str, Any] = {}
        for name, value in module.__dict__.items():
            if name in _OWN:  # most of them, and none is a number, text or a tensor
                continue
            kind = _kind_of(value)
            if kind in (_PLAIN, _TENSOR):
                plain[name] = value
            if kind == _TENSOR and _is_copied(value):
                tensors.append((value, value._version, value.detach().clone()))
            elif kind == _GENERATOR:
                generators.append((value, value.get_state()))
        before.append((module, _names(module), plain))
    try:
        yield
    finally:
        for generator, state in generators:
            generator.set_state(state)
        for module, names, values in before:
            if _names(module) == names:
                module.__dict__.update(values)
        with torch.no_grad():
            for tensor, version, copy in tensors:
                if tensor._version != version:
                    tensor.resize_(copy.shape).copy_(copy)


def _names(module: nn.Module) -> tuple[list[str], ...]:
    return list(module._parameters), list(module._modules), list(module._buffers)


def _kind_of(value: Any) -> str:
    """Which of the things that are put back an attribute is; "" for none."""
    try:
        return _kind(value.__class__)
    except (AttributeError, TypeError):  # one that has no class to ask, or none that can be remembered
        return next((kind for kind, types in _KINDS.items() if isinstance(value, types)), "")


@lru_cache(maxsize=1024)
def _kind(of: type) -> str:
    """Asked once of every type, as torch answers slowly."""
    return next((kind for kind, types in _KINDS.items() if issubclass(of, types)), "")


def _is_copied(value: torch.Tensor) -> bool:
    """Of plain dense tensors; views of memory that a wrapper has given back hold nothing that could be read."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_inference():
        return False
    return 0 < value.nbytes <= _LARGE and value.untyped_storage().nbytes() > 0 and value.device.type != "meta"


@contextmanager
def _autocast() -> Iterator[None]:
    """Autocast as it is, but for its cache: a weight that is cast here, without gradients, would be used in training
    until autocast ends, and would get none there.
    """
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        yield
