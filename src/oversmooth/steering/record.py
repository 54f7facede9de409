"""What is done to a model: methods attached in place and detached again, and enough to save and to report them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import Anatomy
from oversmooth.anatomy.steered import STEERING_PARTS, steered_as
from oversmooth.safety.errors import InputError
from oversmooth.safety.signals import delay_signals
from oversmooth.steering.forward_state import ForwardStates
from oversmooth.steering.layer_hooks import LayerHooks
from oversmooth.steering.mask_guard import MaskGuard
from oversmooth.steering.methods.base import Method
from oversmooth.steering.methods.layernorm_scaling import LayerNormScaling
from oversmooth.steering.methods.spectral import Spectral
from oversmooth.steering.open_attention import OpenedAttention, close_attention, open_attention
from oversmooth.steering.reparametrized import ReparametrizedLayer, check_products, weights_of_all
from oversmooth.steering.scaled_norms import ScaledNorm, scaled_norms
from oversmooth.steering.spectrum_checks import Verification, check_spectra
from oversmooth.steering.warm_start import placeholder, starts
from oversmooth.theory.small_matrices import one_core_each
from oversmooth.trace.valid import Padding, decodes


@dataclass
class Moved:
    """How far a warm start took one layer's H from what it was."""

    index: int
    name: str
    heads: list[float]
    """``‖H' − H‖ / ‖H‖`` per head."""


@dataclass
class Steering:
    """What was done to a model."""

    model: InitVar[nn.Module]
    methods_given: list[Method]
    """The methods as `steer` received them; `methods` are as they act now."""
    layers: list[int]
    """Indices in the stack of the layers that are steered."""
    heads: int | None
    """As `steer` received it."""
    anatomy: Anatomy = field(repr=False)
    restored: bool = False
    """Whether it was loaded from a file, which does not have the original weights."""
    states: ForwardStates = field(init=False, repr=False)
    hooks: dict[int, LayerHooks] = field(default_factory=dict, repr=False)
    """By index in the stack, one per attention module."""
    handles: list[Any] = field(default_factory=list, repr=False)
    """Of all hooks that were registered."""
    reparametrized: list[ReparametrizedLayer] = field(default_factory=list, repr=False)
    norms: list[ScaledNorm] = field(default_factory=list, repr=False)
    moved: list[Moved] = field(default_factory=list, repr=False)
    without_nested: list[Any] = field(default_factory=list, repr=False)
    """torch's encoders whose use of nested tensors was switched off."""

    def __post_init__(self, model: nn.Module) -> None:
        # The module whose forward pass runs the blocks is what holds the list of them.
        self.owner = self.stack.split("*")[0].rstrip(".").rpartition(".")[0] if "*" in self.stack else ""
        padding = Padding(model.get_submodule(self.owner), decodes([layer.block for layer in self.anatomy]))
        self.states = ForwardStates(partial(weights_of_all, self.reparametrized), padding)

    @property
    def stack(self) -> str:
        """The name of the stack that is steered."""
        return self.anatomy.stack

    @property
    def methods(self) -> list[Method]:
        """The methods as they act now: with the strength that a ramp has reached."""
        now = {type(m): hooks.method_at(place) for hooks in self.hooks.values() for place, m in hooks.methods.items()}
        return [now.get(type(method), method) for method in self.methods_given]

    def settings(self) -> dict[str, Any]:
        """As JSON stores it; `saving` reads it back."""
        return {
            "version": 1,
            "methods": [method.settings() for method in self.methods],
            "layers": self.layers,
            "stack": self.stack,
            "heads": self.heads,
        }

    def verify(self, attention: dict[str, Tensor]) -> Verification:
        """Whether the spectral constraints hold, computed from the weights in use; A by the name of the layer."""
        return check_spectra(self.reparametrized, list(self.hooks.values()), attention)

    def check_projections(self) -> None:
        """Refuse a model whose steered projections were replaced since, or do more than their weights by now."""
        for hooks in self.hooks.values():
            if hooks.guard is not None:
                hooks.guard.check_projections()
        for layer in self.reparametrized:
            check_products(layer.index, layer.attention, layer.value[0], layer.output[0])

    # What code that inspects the model asks for (anatomy.steered.SteeredModel).

    def report(self) -> dict[str, Any]:
        moved = [{"layer": m.index, "heads": m.heads} for m in self.moved]
        verified = self.verify({}).summary() if self.reparametrized else None
        return {**self.settings(), "moved": moved, "verified": verified}

    def remarks(self) -> list[str]:
        where = "all layers" if len(self.layers) == len(self.anatomy) else f"layers {', '.join(map(str, self.layers))}"
        remarks = [f"steered by {' and '.join(map(str, self.methods))} on {where}"]
        if any(hooks.parts and not hooks.why_undecided() for hooks in self.hooks.values()):
            what = "attention as the method changes it"
            remarks.append(f"smoothing cases and ρ are of {what}; spectra of H are the weights'")
        return remarks

    def steered_layer(self, name: str) -> LayerHooks | None:
        return next((hooks for hooks in self.hooks.values() if hooks.layer.name == name), None)

    # Attaching and detaching.

    def attach(self, model: nn.Module, methods: list[Method]) -> None:
        """Attach those of `methods_given` that change anything; what is attached already stays as it learned."""
        modules, layers = dict(model.named_modules(remove_duplicate=False)), self.anatomy.layers
        inner = [method for method in methods if method.place not in ("weights", "norms")]
        # Attention modules by name, each with the index of its first run, and the one that makes V⁰.
        steered = {layers[index].name: index for index in reversed(self.layers)}
        inside = steered | ({layers[0].name: 0} if any(method.uses_first_values for method in inner) else {})
        closed = [modules[name] for name in inside if inner and _is_closed(modules[name])]
        if closed and self.reparametrized:
            raise InputError(
                f"{methods[0]} was left out where Spectral acts on torch's own attention, and cannot be added now; "
                "unsteer the model and steer it with a strength other than 0"
            )
        with delay_signals():
            for attention in closed:  # first: parametrizations go on top of the class that a module has then
                open_attention(attention)
        for method in methods:
            if isinstance(method, Spectral):
                self._reparametrize(modules, sorted(steered.values()), method)
            elif isinstance(method, LayerNormScaling):
                with delay_signals():
                    self.norms.extend(scaled_norms(modules, self.anatomy, self.layers, method))
        with delay_signals():
            if any(method.place != "norms" for method in methods):
                for name, index in sorted(inside.items(), key=lambda entry: entry[1]):
                    first = name == layers[0].name
                    self.hooks.setdefault(index, LayerHooks(index, layers[index], self.states, first))
                    if index in self.layers:
                        self._add_parts(modules, self.hooks[index], inner)
                self._register_hooks(modules)
        recompile()

    def _reparametrize(self, modules: dict[str, nn.Module], indices: list[int], method: Spectral) -> None:
        layers = [self.anatomy.layers[index] for index in indices]
        generator = torch.Generator().manual_seed(method.seed)
        begins = map(placeholder, layers) if self.restored else starts(method, layers, generator)
        for index, layer, start in zip(indices, layers, begins, strict=True):
            weights = ReparametrizedLayer(index, method, layer, modules, self.states)
            with delay_signals():  # what is attached is on record, and the other way round
                self.reparametrized.append(weights)
                W_O = None if self.restored else layer.raw_W_O.detach().clone()
                weights.attach(start)
                if W_O is None:
                    continue
                if method.start == "warm":
                    in_threads = one_core_each if W_O.device.type == "cpu" else map
                    list(in_threads(weights.shift_output_bias, [W_O]))
                self.moved.append(Moved(index, layer.name, [round(m, 6) for m in start.moved.tolist()]))

    def _add_parts(self, modules: dict[str, nn.Module], hooks: LayerHooks, methods: list[Method]) -> None:
        layer, attention = hooks.layer, modules[hooks.layer.name]
        # In the layer that makes V⁰ nothing is added: a strength learned there would have no gradient.
        only_source = hooks.first and sum(other.name == layer.name for other in self.anatomy) == 1
        methods = [method for method in methods if not (only_source and method.uses_first_values)]
        if not methods:
            return
        if STEERING_PARTS not in attention._modules:
            attention.add_module(STEERING_PARTS, nn.ModuleDict())
        weight = getattr(modules[layer.output_module[0]], layer.output_module[1]).detach()
        for method in methods:
            part = method.part(layer).to(device=weight.device, dtype=weight.dtype)
            attention.get_submodule(STEERING_PARTS).add_module(type(method).__name__.lower(), part)
            hooks.parts[method.place], hooks.methods[method.place] = part, method

    def _register_hooks(self, modules: dict[str, nn.Module]) -> None:
        used = [method for hooks in self.hooks.values() for method in hooks.methods.values()]
        weighting = [m for m in self.methods_given if m.place == "weights" or (m.place != "output" and m in used)]
        needs_first = any(method.uses_first_values for method in used)
        self.states.averages = any(method.averages for method in used)
        self.states.streams = any(method.uses_stream for method in used)
        self._remove_hooks()
        for index, hooks in sorted(self.hooks.items()):
            layer, averaging = hooks.layer, [method for method in hooks.methods.values() if method.averages]
            # Torch's own attention is known to weight values; sinks and gates take a share of the weights; no hook
            # sees what bare parameters compute.
            known = isinstance(modules[layer.name], nn.MultiheadAttention) or layer.leak is not None
            checked = weighting if layer.value_runs and layer.output_runs and not known else []
            if averaging or checked:
                hooks.guard = MaskGuard(index, layer, self.states, _names(averaging), _names(checked))
            self.handles += hooks.hook(modules, needs_first)
        owner = modules[self.owner]
        self.handles.append(owner.register_forward_pre_hook(self.states.begin_stack, with_kwargs=True))
        self.handles.append(owner.register_forward_hook(self.states.end_stack, always_call=True))
        for block in dict.fromkeys(modules[layer.block] for layer in self.anatomy):
            if block is not owner:
                self.handles.append(block.register_forward_pre_hook(self.states.begin_block, with_kwargs=True))
                self.handles.append(block.register_forward_hook(self.states.end_block, always_call=True))
        for module in modules.values():
            # Hooks close the encoder layer's fast path, which alone takes nested arrays.
            if isinstance(module, nn.TransformerEncoder) and getattr(module, "use_nested_tensor", False):
                module.use_nested_tensor = False
                self.without_nested.append(module)

    def _remove_hooks(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def detach(self, model: nn.Module, *, fold: bool) -> None:
        """Undo `attach`, or what was done of it. fold: reparametrized weights stay as they are computed now."""
        self._remove_hooks()
        for weights in reversed(self.reparametrized):
            weights.detach(fold=fold)
        for norm in reversed(self.norms):
            norm.detach(fold=fold)
        for attention in list(model.modules()):
            attention._modules.pop(STEERING_PARTS, None)
            if isinstance(attention, OpenedAttention):
                close_attention(attention)
        for encoder in self.without_nested:
            encoder.use_nested_tensor = True
        for record in (self.reparametrized, self.norms, self.without_nested, self.hooks):
            record.clear()
        recompile()


def _is_closed(attention: nn.Module) -> bool:
    return isinstance(attention, nn.MultiheadAttention) and not isinstance(attention, OpenedAttention)


def _names(methods: list[Method]) -> str:
    return " and ".join(type(method).__name__ for method in methods)


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


def steering_of(model: nn.Module) -> Steering | None:
    """What `steer` did to a model, or None where it is not steered."""
    return cast("Steering | None", steered_as(model))
