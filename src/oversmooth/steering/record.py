"""What was done to a model: enough to undo it, to save it, and to report it in a diagnosis."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from oversmooth.anatomy.layer import Anatomy
from oversmooth.anatomy.steered import steered_as
from oversmooth.steering.forward_state import ForwardState, ForwardStates
from oversmooth.steering.layer_hooks import LayerHooks
from oversmooth.steering.methods.base import Method
from oversmooth.steering.reparametrized import ReparametrizedLayer, check_products, weights_of_all
from oversmooth.steering.scaled_norms import ScaledNorm
from oversmooth.steering.spectrum_checks import Verification, check_spectra


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

    methods_given: list[Method]
    """The methods as `steer` received them; `methods` are as they act now."""
    layers: list[int]
    """Indices in the stack of the layers that are steered."""
    heads: int | None
    """As `steer` received it."""
    anatomy: Anatomy = field(repr=False)
    restored: bool = False
    """Whether it was loaded from a file, which does not have the original weights."""
    states: ForwardStates | None = field(default=None, repr=False)
    hooks: dict[int, LayerHooks] = field(default_factory=dict, repr=False)
    """By index in the stack, one per attention module."""
    handles: list[Any] = field(default_factory=list, repr=False)
    """Of all hooks that were registered."""
    reparametrized: list[ReparametrizedLayer] = field(default_factory=list, repr=False)
    norms: list[ScaledNorm] = field(default_factory=list, repr=False)
    moved: list[Moved] = field(default_factory=list, repr=False)
    without_nested: list[Any] = field(default_factory=list, repr=False)
    """torch's encoders whose use of nested tensors was switched off."""
    ramps: int = 0
    """How many ramps were made of it; only the last one counts."""

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

    def report(self) -> dict[str, Any]:
        """For a diagnosis: what was done, how far it moved the weights, and whether the spectral constraints hold."""
        moved = [{"layer": m.index, "heads": m.heads} for m in self.moved]
        verified = self.verify({}).summary() if self.reparametrized else None
        return {**self.settings(), "moved": moved, "verified": verified}

    def remarks(self) -> list[str]:
        """What a reader of a diagnosis should know."""
        where = "all layers" if len(self.layers) == len(self.anatomy) else f"layers {', '.join(map(str, self.layers))}"
        remarks = [f"steered by {' and '.join(map(str, self.methods))} on {where}"]
        if any(hooks.parts and not hooks.undecided() for hooks in self.hooks.values()):
            what = "attention as the method changes it"
            remarks.append(f"smoothing cases and ρ are of {what}; spectra of H are the weights'")
        return remarks

    def verify(self, attention: dict[str, Tensor]) -> Verification:
        """Whether the spectral constraints hold, computed from the weights in use.

        Args:
            attention: ``(..., heads, n, n)`` by the name of the layer.
        """
        return check_spectra(self.reparametrized, list(self.hooks.values()), attention)

    def check_projections(self) -> None:
        """Refuse a model whose steered projections were replaced since, or do more than their weights by now."""
        for hooks in self.hooks.values():
            if hooks.guard is not None:
                hooks.guard.check_projections()
        for layer in self.reparametrized:
            check_products(layer.index, layer.attention, layer.value[0], layer.output[0])

    def prepare_weights(self, state: ForwardState) -> None:
        """As a forward pass begins: compute the weights of all reparametrized layers."""
        state.weights.update(weights_of_all(self.reparametrized))

    # What code that inspects the model asks for (anatomy.steered.SteeredModel).

    def steered_layer(self, name: str) -> LayerHooks | None:
        """Where methods act inside a layer, by its name."""
        return next((hooks for hooks in self.hooks.values() if hooks.layer.name == name), None)

    def hold(self) -> tuple[ForwardState, Tensor | None] | None:
        """The current forward pass, for `resumed`."""
        return None if self.states is None else self.states.hold()

    def resumed(self, held: Any) -> AbstractContextManager[None]:
        """Blocks that run inside are part of a held forward pass."""
        return nullcontext() if self.states is None else self.states.resumed(held)


def steering_of(model: nn.Module) -> Steering | None:
    """What `steer` did to a model, or None where it is not steered."""
    return cast("Steering | None", steered_as(model))
