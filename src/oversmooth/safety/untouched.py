"""A pass through a model that is somebody's own, after which everything is as it was."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from oversmooth.safety.errors import InputError

_PLAIN = (bool, int, float, complex, str, type(None))
_OWN = frozenset(name for name, value in nn.Module().__dict__.items() if isinstance(value, dict))
"""What torch keeps of every module: hooks, and what is put back by other ways."""
_FROZEN = 2**28
"""Bytes of frozen weights that are copied, as a pass may write to them: copies that follow the trained ones."""
_LARGE = 2**24
"""Bytes of a tensor that is copied though it is no buffer: larger ones are caches, which a pass fills anew."""


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Within the block the model is in eval mode, runs eagerly, and nothing that happens is left behind.

    Random states of torch, of Python and, where it is loaded, of numpy, and of generators that modules have; each
    module's own train flag; every buffer; frozen weights, unless there are many; attributes of modules that are
    numbers, text or tensors; the weights that autocast keeps cast, and those that torch keeps of parametrizations; and
    what compiled code is (it is passed by, and not compiled again). Not seen: what hooks of others count, what modules
    make in this pass, and what they keep in lists, in other objects, or in large tensors that are no buffers.

    Args:
        model: the module itself, and no wrapper around it.

    Raises:
        InputError: the model wrote to weights of which there is no copy.
    """
    # Unless it is loaded nothing is compiled, and importing it takes seconds.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with random_states(), in_eval_mode(model), put_back(model, counted=True), caches_of_their_own(), eager:
        yield


@contextmanager
def in_its_own_mode(model: nn.Module) -> Iterator[None]:
    """Within the block the model runs as it is; what it counts, averages or draws in train mode is put back."""
    with ExitStack() as stack:
        stack.enter_context(caches_of_their_own())
        for what in (random_states(), put_back(model)) if model.training else ():
            stack.enter_context(what)
        yield


@contextmanager
def put_back(model: nn.Module, *, counted: bool = False) -> Iterator[None]:
    """What a model remembers, in whichever mode it runs: buffers, frozen weights, attributes; see `untouched`.

    counted: whether torch's count of writes tells which buffers have changed. Batch norm in train mode writes past it;
    a comparison of values waits for a GPU. Weights that are written to, and are not put back, are refused.
    """
    modules = list(model.modules())
    with _weights(model, modules, refused=counted), _buffers(modules, counted), _attributes(modules):
        yield


_leaves_weights_alone: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that were seen to write to no weights: no copies are made for them."""


@contextmanager
def _weights(model: nn.Module, modules: list[nn.Module], *, refused: bool) -> Iterator[None]:
    """Weights are too large to copy, and are not written to in a pass; but for those that follow others, as a momentum
    encoder's do, and embeddings of limited length.
    """
    # Those of wrappers, which move them about, are of types of their own.
    every = [p for module in modules for p in module._parameters.values() if type(p) is nn.Parameter]
    limited = [module.weight for module in modules if getattr(module, "max_norm", None) is not None]
    suspects = [] if model in _leaves_weights_alone else [p for p in every if not p.requires_grad]
    suspects = [p for p in (*suspects, *limited) if isinstance(p, nn.Parameter) and _can_be_copied(p)]
    copied = {id(p): p.detach().clone() for p in suspects} if sum(p.nbytes for p in suspects) <= _FROZEN else {}
    before = [(p, p._version) for p in every if not p.is_inference()]
    whole = False
    try:
        yield
        whole = True
    finally:
        written = [p for p, version in before if p._version != version]
        with torch.no_grad():
            for p in written:
                if id(p) in copied:
                    _write(p, copied[id(p)])
        lost = {id(p) for p in written if id(p) not in copied and _can_be_copied(p)} - {id(p) for p in limited}
        if whole and not written:
            _leaves_weights_alone.add(model)
        if whole and lost and refused:  # else another error is on its way
            name = next((name for name, p in model.named_parameters() if id(p) in lost), "of its own")
            raise Rewritten(
                f"the model's weight {name} was written to while it ran, which cannot be put back; "
                "freeze it, or watch a training by its passing batch"
            )


class Rewritten(InputError):
    """A pass changed weights for good."""


@contextmanager
def caches_of_their_own() -> Iterator[None]:
    """What torch keeps of weights within `autocast` and `parametrize.cached`: without gradients, as they are computed
    here, they would be used in training.
    """
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        stack.callback(setattr, parametrize, "_cache", parametrize._cache)
        parametrize._cache = {}
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
    """Every module in eval mode within the block; afterwards each has its own flag again.

    Not by train(), which some models override.
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, flag in flags:
            if flag:
                module.training = False
        yield
    finally:
        for module, flag in flags:
            if module.training != flag:
                module.training = flag


@contextmanager
def _buffers(modules: list[nn.Module], counted: bool) -> Iterator[None]:
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
                by_value = not counted and _can_be_copied(value)
                if not torch.equal(value, copy) if by_value else value._version != version:
                    _write(value, copy)
                if module._buffers.get(name) is not value:
                    module._buffers[name] = value


@contextmanager
def _attributes(modules: list[nn.Module]) -> Iterator[None]:
    """What modules count or remember outside their buffers: lengths that they have seen, generators of their own.

    Not of a module that makes its weights in the pass: its flags must say that they are there.
    """
    before, tensors, generators = [], [], []
    for module in modules:
        own = {name: value for name, value in module.__dict__.items() if name not in _OWN}
        for value in own.values():
            if type(value) is torch.Tensor and _can_be_copied(value) and value.nbytes <= _LARGE:
                tensors.append((value, value._version, value.detach().clone()))
            elif isinstance(value, torch.Generator):
                generators.append((value, value.get_state()))
        plain = {name: value for name, value in own.items() if isinstance(value, (*_PLAIN, torch.Tensor))}
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


def _write(value: torch.Tensor, copy: torch.Tensor) -> None:
    """Past torch's count of writes, where that can be: it holds what it held, and a backward pass may yet need it."""
    (value.data if _can_be_copied(value) else value).copy_(copy)


def _can_be_copied(value: torch.Tensor) -> bool:
    """Of plain dense tensors; views of memory that a wrapper has given back hold nothing that could be read."""
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_inference():
        return False
    return value.nbytes > 0 and value.device.type != "meta" and value.untyped_storage().nbytes() > 0
