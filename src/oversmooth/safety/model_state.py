"""Forward passes that leave a model and all random states unchanged."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from oversmooth.safety.errors import InputError

_PLAIN = (bool, int, float, complex, str, type(None))
# Attributes that torch keeps in every module: hooks, and state that is restored elsewhere.
_OWN = frozenset(name for name, value in nn.Module().__dict__.items() if isinstance(value, dict))
_FROZEN = 2**28  # bytes of frozen weights that are copied, because a pass may write to them, as momentum encoders do
_LARGE = 2**24  # bytes of a non-buffer tensor that is copied; larger ones are caches, which a pass refills


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Run the model in eval mode and eagerly within the block, and restore its state afterwards.

    Restored: random states of torch, Python, numpy (if loaded) and modules; train flags; buffers; frozen weights up to
    256 MiB; number, text and tensor attributes of modules; caches of autocast and of parametrizations. Compiled code
    is bypassed, not recompiled. Not restored: counters in other hooks, objects that modules create in the pass, lists
    and other containers, and tensors over 16 MiB that are not buffers. Raises `Rewritten` where the model changed
    weights that were not copied. model: the module itself, not a wrapper.
    """
    with random_states(), in_eval_mode(model), restoring(model, counted=True), caches_of_their_own(), eagerly():
        yield


def eagerly() -> AbstractContextManager[object]:
    """Within the block the modules inside compiled code run in its place: it would not call what is put on them."""
    # Unless dynamo is loaded nothing is compiled, and importing it takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def in_its_own_mode(model: nn.Module) -> Iterator[None]:
    """Keep the model's mode within the block; in train mode, restore its state afterwards."""
    if not model.training:
        with caches_of_their_own():
            yield
        return
    with caches_of_their_own(), random_states(), restoring(model):
        yield


@contextmanager
def restoring(model: nn.Module, *, counted: bool = False) -> Iterator[None]:
    """Restore buffers, frozen weights and attributes after the block; see `preserve_state`.

    counted: use torch's write counter to find changed buffers. Batch norm in train mode bypasses it, and comparing
    values synchronises a GPU. Raises if other weights were changed.
    """
    modules = list(model.modules())
    with _weights(model, modules, refused=counted), _buffers(modules, counted), _attributes(modules):
        yield


# Models that were observed to change no weights, for which no copies are made.
_leaves_weights_alone: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@contextmanager
def _weights(model: nn.Module, modules: list[nn.Module], *, refused: bool) -> Iterator[None]:
    """Restore the weights that a pass may change: those of momentum encoders, and embeddings with max_norm. All weights
    are too large to copy.
    """
    # Wrappers that move parameters use their own types.
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
                f"the forward pass changed the weight {name}, which cannot be restored; "
                "freeze it, or monitor with use_training_batch=True"
            )


class Rewritten(InputError):
    """A forward pass changed weights irreversibly."""


@contextmanager
def caches_of_their_own() -> Iterator[None]:
    """Separate caches of `autocast` and `parametrize.cached`: without gradients, they must not reach training."""
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
    """Restore all random states after the block."""
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
def seeded(seed: int) -> Iterator[None]:
    """Seed torch within the block, and restore all random states afterwards.

    Unlike `torch.manual_seed`, this does not seed GPUs that are not initialised yet.
    """
    with random_states():
        torch.default_generator.manual_seed(seed)
        for generator in torch.cuda.default_generators if torch.cuda.is_initialized() else ():
            generator.manual_seed(seed)
        yield


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode within the block, and restore each flag afterwards.

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
    """Restore buffers, which some modules change even in eval mode."""
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
    """Restore module attributes outside buffers: counters, cached lengths, generators.

    Skips modules that create their weights in the pass, whose flags must stay.
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
    """Copy without raising torch's write counter if possible: a later backward pass may need the value."""
    (value.data if _can_be_copied(value) else value).copy_(copy)


def _can_be_copied(value: torch.Tensor) -> bool:
    """Whether it is a plain dense tensor with memory; wrappers may have freed it."""
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_inference():
        return False
    return value.nbytes > 0 and value.device.type != "meta" and value.untyped_storage().nbytes() > 0
