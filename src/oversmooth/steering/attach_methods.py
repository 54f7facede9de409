"""Methods attached to a live model, in place, and detached: parts, hooks and reparametrized weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from oversmooth.anatomy.layer import Anatomy
from oversmooth.anatomy.steered import STEERING_PARTS
from oversmooth.safety.errors import InputError
from oversmooth.safety.signals import held_back
from oversmooth.steering.forward_state import ForwardStates
from oversmooth.steering.layer_hooks import LayerHooks
from oversmooth.steering.mask_guard import MaskGuard
from oversmooth.steering.methods.base import Method
from oversmooth.steering.methods.layernorm_scaling import LayerNormScaling
from oversmooth.steering.methods.spectral import Spectral
from oversmooth.steering.open_attention import OpenedAttention, close_attention, open_attention
from oversmooth.steering.record import Moved, Steering
from oversmooth.steering.reparametrized import ReparametrizedLayer
from oversmooth.steering.scaled_norms import scaled_norms
from oversmooth.steering.warm_start import placeholder, starts
from oversmooth.theory.small_matrices import one_core_each
from oversmooth.trace.valid import Padding, decodes


def attach_methods(model: nn.Module, steering: Steering, methods: list[Method]) -> None:
    """Attach methods to a model.

    Args:
        model: changed in place.
        steering: filled with what undoes it.
        methods: those of `steering` that change anything.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    inner = _inner(methods)
    blocks = [layer.block for layer in steering.anatomy]
    steering.states = ForwardStates(
        steering.prepare_weights,
        Padding(modules[_stack_module(steering.anatomy)], decodes(blocks)),
        averages=any(method.averages for method in inner),
        streams=any(method.uses_stream for method in inner),
    )
    # Opened first: parametrizations go on top of the class that a module has then.
    with held_back():
        _open_attention(modules, steering, inner)
    for method in methods:
        if isinstance(method, Spectral):
            _reparametrize(modules, steering, method)
        elif isinstance(method, LayerNormScaling):
            with held_back():
                for norm in scaled_norms(modules, steering.anatomy, steering.layers, method):
                    steering.norms.append(norm)
    with held_back():
        _add_parts(modules, steering, inner)
        if any(method.place != "norms" for method in methods):
            _register_hooks(modules, steering)


def attach_later(model: nn.Module, steering: Steering, method: Method) -> None:
    """Attach one of a steered model's methods that changed nothing so far, and so was left out.

    Args:
        model: changed in place; what other methods have learned stays.
        steering: likewise.
        method: one of its methods, without parts as yet.

    Raises:
        InputError: torch's own attention has reparametrized weights and cannot be opened beneath them.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    closed = [name for name in _touched(steering, [method]) if _is_closed(modules[name])]
    if closed and steering.reparametrized:
        raise InputError(
            f"{method} was left out where Spectral acts on torch's own attention, and cannot be added now; unsteer the "
            "model and steer it with a strength other than 0"
        )
    for handle in steering.handles:
        handle.remove()
    steering.handles.clear()
    assert steering.states is not None
    steering.states.averages |= method.averages
    steering.states.streams |= method.uses_stream
    _open_attention(modules, steering, [method])
    modules = dict(model.named_modules(remove_duplicate=False))
    _add_parts(modules, steering, [method])
    _register_hooks(modules, steering)
    recompile()


def _inner(methods: list[Method]) -> list[Method]:
    """The methods that act on arrays, through parts."""
    return [method for method in methods if method.place not in ("weights", "norms")]


def _steered_modules(steering: Steering) -> dict[str, int]:
    """Steered attention modules by name, each with the index of its first run."""
    first: dict[str, int] = {}
    for index in steering.layers:
        first.setdefault(steering.anatomy.layers[index].name, index)
    return first


def _touched(steering: Steering, inner: list[Method]) -> list[str]:
    """Attention modules whose insides these methods need."""
    needs_first = any(method.uses_first_values for method in inner)
    first = [steering.anatomy.layers[0].name] if needs_first else []
    return list(dict.fromkeys([*first, *(_steered_modules(steering) if inner else [])]))


def _is_closed(attention: nn.Module) -> bool:
    return isinstance(attention, nn.MultiheadAttention) and not isinstance(attention, OpenedAttention)


def _open_attention(modules: dict[str, nn.Module], steering: Steering, inner: list[Method]) -> None:
    for name in _touched(steering, inner):
        if _is_closed(modules[name]):
            open_attention(modules[name])


def _add_parts(modules: dict[str, nn.Module], steering: Steering, inner: list[Method]) -> None:
    anatomy = steering.anatomy
    first = anatomy.layers[0]
    if any(method.uses_first_values for method in inner):
        _hooks_of(steering, 0)
    for name, index in _steered_modules(steering).items() if inner else ():
        layer, hooks = anatomy.layers[index], _hooks_of(steering, index)
        weight = getattr(modules[layer.output_module[0]], layer.output_module[1]).detach()
        if STEERING_PARTS not in modules[name]._modules:
            modules[name].add_module(STEERING_PARTS, nn.ModuleDict())
        parts = modules[name].get_submodule(STEERING_PARTS)
        assert isinstance(parts, nn.ModuleDict)
        # In the layer that makes V⁰ nothing is added: a strength learned there would have no gradient.
        only_source = layer.name == first.name and sum(other.name == first.name for other in anatomy) == 1
        for method in inner:
            if only_source and method.uses_first_values:
                continue
            part = method.part(layer).to(device=weight.device, dtype=weight.dtype)
            parts[type(method).__name__.lower()] = part
            hooks.add(method, part)


def _hooks_of(steering: Steering, index: int) -> LayerHooks:
    """The hooks of a layer, made when they are first asked for."""
    assert steering.states is not None
    layers = steering.anatomy.layers
    first = layers[index].name == layers[0].name
    return steering.hooks.setdefault(index, LayerHooks(index, layers[index], steering.states, first))


def _register_hooks(modules: dict[str, nn.Module], steering: Steering) -> None:
    anatomy, states = steering.anatomy, steering.states
    assert states is not None
    needs_first = any(m.uses_first_values for hooks in steering.hooks.values() for m in hooks.methods.values())
    weighting = [m for m in steering.methods_given if m.place in ("weights", "values", "attention")]
    weighting = [m for m in weighting if not m.changes_nothing()]
    inside = {*([0] if needs_first else []), *(_steered_modules(steering).values() if weighting else [])}
    for index in sorted(inside | steering.hooks.keys()):
        layer, hooks = anatomy.layers[index], _hooks_of(steering, index)
        averaging = [m for m in hooks.methods.values() if m.averages]
        # Torch's own attention is known to weight values; sinks and gates take a share of the weights; no hook sees
        # what bare parameters compute.
        known = isinstance(modules[layer.name], nn.MultiheadAttention) or layer.leak is not None
        seen = layer.value_runs and layer.output_runs
        checked = weighting if index in inside and seen and not known else []
        if averaging or checked:
            hooks.guard = MaskGuard(index, layer, states, _names(averaging), _names(checked))
        steering.handles += hooks.hook(modules, needs_first)
    owner = modules[_stack_module(anatomy)]
    steering.handles.append(owner.register_forward_pre_hook(states.begin_stack, with_kwargs=True))
    steering.handles.append(owner.register_forward_hook(states.end_stack, always_call=True))
    for block in dict.fromkeys(layer.block for layer in anatomy):
        if modules[block] is not owner:
            steering.handles.append(modules[block].register_forward_pre_hook(states.begin_block, with_kwargs=True))
            steering.handles.append(modules[block].register_forward_hook(states.end_block, always_call=True))
    for module in modules.values():
        # Hooks close the encoder layer's fast path, which alone takes nested arrays.
        if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False):
            module.use_nested_tensor = False
            steering.without_nested.append(module)


def _names(methods: list[Method]) -> str:
    return " and ".join(type(method).__name__ for method in methods)


def _reparametrize(modules: dict[str, nn.Module], steering: Steering, method: Spectral) -> None:
    assert steering.states is not None
    indices = list(_steered_modules(steering).values())
    layers = [steering.anatomy.layers[index] for index in indices]
    generator = torch.Generator().manual_seed(method.seed)
    begins = map(placeholder, layers) if steering.restored else starts(method, layers, generator)
    for index, layer, start in zip(indices, layers, begins, strict=True):
        (value, V), (output, W) = layer.value_module, layer.output_module
        weights = ReparametrizedLayer(index, method, layer, (modules[value], V), (modules[output], W))
        with held_back():  # what is attached is on record, and the other way round
            steering.reparametrized.append(weights)
            if steering.restored:
                weights.attach(start, steering.states)
                continue
            W_O = layer.raw_W_O.detach().clone()
            weights.attach(start, steering.states)
            if method.start == "warm":
                in_threads = one_core_each if W_O.device.type == "cpu" else map
                list(in_threads(weights.shift_output_bias, [W_O]))
            steering.moved.append(Moved(index, layer.name, [round(m, 6) for m in start.moved.tolist()]))


def _stack_module(anatomy: Anatomy) -> str:
    """The module whose forward pass runs the blocks: what holds the list of them."""
    return anatomy.stack.split("*")[0].rstrip(".").rpartition(".")[0] if "*" in anatomy.stack else ""


_never_run: ContextVar[bool] = ContextVar("never run", default=False)


@contextmanager
def never_run() -> Iterator[None]:
    """For models that are steered within the block for their weights alone: what others compiled stays."""
    token = _never_run.set(True)
    try:
        yield
    finally:
        _never_run.reset(token)


def recompile() -> None:
    """Drop compiled code, which ignores hooks that were added or removed since, in any model of a class."""
    if "torch._dynamo" in sys.modules and not _never_run.get():
        torch.compiler.reset()


def detach_methods(model: nn.Module, steering: Steering, *, fold: bool) -> None:
    """Undo `attach_methods`, or what was done of it.

    Args:
        model: changed in place.
        steering: what was done; nothing of it is left.
        fold: whether reparametrized weights stay as they are computed now.
    """
    for handle in steering.handles:
        handle.remove()
    for layer in reversed(steering.reparametrized):
        layer.detach(fold=fold)
    for norm in reversed(steering.norms):
        norm.detach(fold=fold)
    for attention in list(model.modules()):
        attention._modules.pop(STEERING_PARTS, None)
        if isinstance(attention, OpenedAttention):
            close_attention(attention)
    for encoder in steering.without_nested:
        encoder.use_nested_tensor = True
    for record in (
        steering.handles, steering.reparametrized, steering.norms, steering.without_nested, steering.hooks
    ):  # fmt: skip
        record.clear()
    recompile()
