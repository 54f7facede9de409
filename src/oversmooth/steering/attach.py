"""How methods are put on a live model, in place, and taken off again: parts, hooks and reparametrized weights."""

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
from oversmooth.steering import open_attention as opened
from oversmooth.steering.mask_guard import MaskGuard
from oversmooth.steering.methods.base import Method
from oversmooth.steering.methods.layernorm_scaling import LayerNormScaling, norms_of
from oversmooth.steering.methods.spectral import Spectral
from oversmooth.steering.passes import Passes
from oversmooth.steering.record import Moved, Steering
from oversmooth.steering.reparametrized import ReparametrizedLayer, ScaledNorm
from oversmooth.steering.sites import Site
from oversmooth.steering.warm_start import placeholder, starts
from oversmooth.theory.small_matrices import one_core_each
from oversmooth.trace.valid import Padding, decodes


def put_on(model: nn.Module, steering: Steering, methods: list[Method]) -> None:
    """Put methods on a model.

    Args:
        model: changed in place.
        steering: filled with what undoes it.
        methods: those of `steering` that change anything.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    inner = [method for method in methods if method.place not in ("weights", "norms")]
    averages, streams = (any(getattr(m, name) for m in inner) for name in ("averages", "uses_stream"))
    owner = modules[_owner(steering.anatomy)]
    padding = Padding(owner, decodes([layer.block for layer in steering.anatomy]))
    steering.passes = passes = Passes(steering.begin, padding, averages, streams)
    # Opened first: parametrizations go on top of the class that a module has then.
    with held_back():
        _open(modules, steering, inner)
    for method in methods:
        if isinstance(method, Spectral):
            _reparametrize(modules, steering, method, _distinct(steering), passes)
        elif isinstance(method, LayerNormScaling):
            with held_back():
                _scale_norms(modules, steering, method)
    with held_back():
        _add_parts(modules, steering, inner, passes)
        if any(method.place != "norms" for method in methods):
            _hook(modules, steering, passes)


def put_on_later(model: nn.Module, steering: Steering, method: Method) -> None:
    """Put one more method of the record on a steered model: one that changed nothing so far, and so was left out.

    Args:
        model: changed in place; what other methods have learned stays.
        steering: likewise.
        method: one of its methods, without parts as yet.

    Raises:
        InputError: torch's own attention has reparametrized weights and cannot be opened beneath them.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    closed = [m for m in (modules[name] for name in _touched(steering, [method])) if m not in steering.opened]
    if steering.reparametrized and any(isinstance(module, nn.MultiheadAttention) for module in closed):
        raise InputError(
            f"{method} was left out where Spectral acts on torch's own attention, and cannot be added now; unsteer the "
            "model and steer it with a strength other than 0"
        )
    for handle in steering.handles:
        handle.remove()
    steering.handles.clear()
    assert steering.passes is not None
    steering.passes.averages |= method.averages
    steering.passes.streams |= method.uses_stream
    _open(modules, steering, [method])
    modules = dict(model.named_modules(remove_duplicate=False))
    _add_parts(modules, steering, [method], steering.passes)
    _hook(modules, steering, steering.passes)
    recompile()


def _distinct(steering: Steering) -> dict[str, int]:
    """Steered attention modules by name, each with the index of its first run."""
    return {steering.anatomy.layers[index].name: index for index in reversed(steering.layers)}


def _touched(steering: Steering, inner: list[Method]) -> list[str]:
    """Attention modules whose insides these methods need."""
    wants_first = any(method.uses_first_values for method in inner)
    first = [steering.anatomy.layers[0].name] if wants_first else []
    return list(dict.fromkeys([*first, *(_distinct(steering) if inner else [])]))


def _open(modules: dict[str, nn.Module], steering: Steering, inner: list[Method]) -> None:
    for name in _touched(steering, inner):
        if isinstance(modules[name], nn.MultiheadAttention) and modules[name] not in steering.opened:
            opened.open_attention(modules[name])
            steering.opened.append(modules[name])


def _add_parts(modules: dict[str, nn.Module], steering: Steering, inner: list[Method], passes: Passes) -> None:
    anatomy = steering.anatomy
    first = anatomy.layers[0]
    if any(method.uses_first_values for method in inner) and 0 not in steering.sites:
        steering.sites[0] = Site(0, first, passes, first=True)
    for name, index in _distinct(steering).items() if inner else ():
        layer = anatomy.layers[index]
        site = steering.sites.setdefault(index, Site(index, layer, passes, first=layer.name == first.name))
        weight = getattr(modules[layer.output_module[0]], layer.output_module[1]).detach()
        if STEERING_PARTS not in modules[name]._modules:
            modules[name].add_module(STEERING_PARTS, nn.ModuleDict())
            steering.holders.append(modules[name])
        parts = modules[name].get_submodule(STEERING_PARTS)
        assert isinstance(parts, nn.ModuleDict)
        # In the layer that gives V⁰ nothing is added: a strength learned there would have no gradient.
        only_source = layer.name == first.name and sum(other.name == first.name for other in anatomy) == 1
        for method in inner:
            if only_source and method.uses_first_values:
                continue
            part = method.part(layer).to(device=weight.device, dtype=weight.dtype)
            parts[type(method).__name__.lower()] = part
            site.add(method, part)


def _hook(modules: dict[str, nn.Module], steering: Steering, passes: Passes) -> None:
    anatomy = steering.anatomy
    owner = modules[_owner(anatomy)]
    wants_first = any(m.uses_first_values for site in steering.sites.values() for m in site.methods.values())
    for site in steering.sites.values():
        steering.handles += site.hook(modules, wants_first)
    # After those of methods, whose results the guards compare.
    acting = [m for m in steering.given if m.place in ("weights", "values", "attention") and not m.changes_nothing()]
    inside = {*([0] if wants_first else []), *(_distinct(steering).values() if acting else [])}
    for index in sorted(inside | steering.sites.keys()):
        layer = anatomy.layers[index]
        averaging = [m for m in steering.sites[index].methods.values() if m.averages] if index in steering.sites else []
        # Torch's own attention is known to weigh values; sinks and gates take a share of the weights.
        known = isinstance(modules[layer.name], nn.MultiheadAttention) or layer.leak is not None
        if not averaging and (index not in inside or known):
            continue
        guard = steering.guards.setdefault(index, MaskGuard(index, layer, passes))
        guard.averaging, guard.inside = _words(averaging), "" if known or index not in inside else _words(acting)
        if averaging:
            steering.sites[index].guard = guard
        steering.handles += guard.hook(modules)
    steering.handles.append(owner.register_forward_pre_hook(passes.begin, with_kwargs=True))
    steering.handles.append(owner.register_forward_hook(passes.end, always_call=True))
    for block in dict.fromkeys(layer.block for layer in anatomy):
        if modules[block] is not owner:
            steering.handles.append(modules[block].register_forward_pre_hook(passes.enter, with_kwargs=True))
            steering.handles.append(modules[block].register_forward_hook(passes.leave, always_call=True))
    for module in modules.values():
        # Hooks close the encoder layer's fast path, which alone takes nested arrays.
        if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False):
            module.use_nested_tensor = False
            steering.no_nested.append(module)


def _words(methods: list[Method]) -> str:
    return " and ".join(type(method).__name__ for method in methods)


def _reparametrize(
    modules: dict[str, nn.Module], steering: Steering, method: Spectral, distinct: dict[str, int], passes: Passes
) -> None:
    generator = torch.Generator().manual_seed(method.seed)
    ordered = sorted(distinct.items(), key=lambda item: item[1])
    shapes = [steering.anatomy.layers[index] for _, index in ordered]
    begins = map(placeholder, shapes) if steering.restored else starts(method, shapes, generator)
    for (name, index), shape, begin in zip(ordered, shapes, begins, strict=True):
        (value, V), (output, W) = shape.value_module, shape.output_module
        layer = ReparametrizedLayer(index, method, shape, (modules[value], V), (modules[output], W))
        with held_back():  # what is attached is on record, and the other way round
            steering.reparametrized.append(layer)
            before = None if steering.restored else shape.raw_W_O.detach().clone()
            layer.attach(begin, passes)
            if before is not None and method.start == "warm":
                offsets = one_core_each if before.device.type == "cpu" else map
                list(offsets(layer.keep_offset, [before]))
        if not steering.restored:
            steering.moved.append(Moved(index, name, [round(m, 6) for m in begin.moved.tolist()]))


def _scale_norms(modules: dict[str, nn.Module], steering: Steering, method: LayerNormScaling) -> None:
    for index in steering.layers:
        layer = steering.anatomy.layers[index]
        factor = method.factor(index)
        if factor == 1:
            continue
        assert layer.norm is not None
        names = norms_of(modules, layer)
        why = names if isinstance(names, str) else _shared(modules, steering.anatomy, names)
        if why:
            raise InputError(f"{type(method).__name__} cannot act on layer {index} ({layer.name}): {why}")
        steering.norms += [ScaledNorm(modules[name], factor, layer.norm.offset) for name in names]


def _shared(modules: dict[str, nn.Module], anatomy: Anatomy, norms: list[str]) -> str:
    """Why norms cannot have a factor of their own: they are, or their weights are, also something else's. Empty where
    they can.
    """
    blocks = {layer.block: {id(module) for module in modules[layer.block].modules()} for layer in anatomy}
    if len({id(modules[norm]) for norm in norms}) < len(norms):
        return f"{norms[0]} and {norms[1]} are one module; give each a copy of its own"
    for norm in norms:
        holding = [block for block, inside in blocks.items() if id(modules[norm]) in inside]
        if len(holding) > 1:
            return f"{norm} is the norm of {holding[0]} and of {holding[1]}; give each a copy of its own"
        for name in (name for name, module in modules.items() if module is modules[norm]):
            around = [modules[name[:end]] for end, letter in enumerate(name) if letter == "."]
            if not any(module is modules[holding[0]] for module in around):  # not merely another name of its block
                return f"{norm} is also {name}; give each a copy of its own"
        own = {id(parameter): key for key, parameter in modules[norm]._parameters.items() if parameter is not None}
        for name, module in modules.items():
            tied = [own[id(p)] for p in module._parameters.values() if id(p) in own]
            if tied and module is not modules[norm]:
                return f"{norm}.{tied[0]} is tied to {name}; give each a copy of its own"
    return ""


def _owner(anatomy: Anatomy) -> str:
    """The module whose forward pass runs the blocks: what holds the list of them."""
    return anatomy.stack.split("*")[0].rstrip(".").rpartition(".")[0] if "*" in anatomy.stack else ""


_never_run: ContextVar[bool] = ContextVar("never run", default=False)


@contextmanager
def never_run() -> Iterator[None]:
    """For models that are steered within the block and then only looked at: what others compiled stays."""
    token = _never_run.set(True)
    try:
        yield
    finally:
        _never_run.reset(token)


def recompile() -> None:
    """Compiled code does not look again for hooks that were put on or taken off since, in any model of a class."""
    if "torch._dynamo" in sys.modules and not _never_run.get():
        torch.compiler.reset()


def detach(steering: Steering, *, fold: bool) -> None:
    """Undo `put_on`, or what was done of it.

    Args:
        steering: what was done; nothing of it is left.
        fold: whether reparametrized weights stay as they are computed now.
    """
    for handle in steering.handles:
        handle.remove()
    steering.handles.clear()
    steering.guards.clear()
    for layer in reversed(steering.reparametrized):
        layer.detach(fold=fold)
    steering.reparametrized.clear()
    for norm in reversed(steering.norms):
        norm.detach(fold=fold)
    steering.norms.clear()
    for module in steering.holders:
        del module._modules[STEERING_PARTS]
    steering.holders.clear()
    for module in steering.opened:
        opened.close_attention(module)
    steering.opened.clear()
    for module in steering.no_nested:
        module.use_nested_tensor = True
    steering.no_nested.clear()
    steering.sites.clear()
    recompile()
