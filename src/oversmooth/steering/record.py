"""What was done to a model: enough to undo it, to save it, and to report it in a diagnosis."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from oversmooth.anatomy.layer import Anatomy
from oversmooth.anatomy.steered import steered_as
from oversmooth.safety.errors import InputError
from oversmooth.steering.mask_guard import MaskGuard
from oversmooth.steering.methods.base import Method
from oversmooth.steering.passes import Pass, Passes
from oversmooth.steering.promises import kept
from oversmooth.steering.reparametrized import ReparametrizedLayer, ScaledNorm, applies_its_weight, prepare
from oversmooth.steering.sites import Site


@dataclass
class Moved:
    """How far a warm start took one layer's H from what it was."""

    index: int
    name: str
    heads: list[float]
    """``‖H' − H‖ / ‖H‖`` per head."""


@dataclass
class Steering:
    """What was done to a model: enough to undo it, to save it, and to report it."""

    given: list[Method]
    """The methods as `steer` got them; `methods` are as they act now."""
    layers: list[int]
    """Indices in the stack of the layers that are steered."""
    stack: str
    heads: int | None
    anatomy: Anatomy = field(repr=False)
    sites: dict[int, Site] = field(default_factory=dict, repr=False)
    reparametrized: list[ReparametrizedLayer] = field(default_factory=list, repr=False)
    norms: list[ScaledNorm] = field(default_factory=list, repr=False)
    moved: list[Moved] = field(default_factory=list, repr=False)
    handles: list[Any] = field(default_factory=list, repr=False)
    guards: dict[int, MaskGuard] = field(default_factory=dict, repr=False)
    opened: list[nn.Module] = field(default_factory=list, repr=False)
    holders: list[nn.Module] = field(default_factory=list, repr=False)
    """Attention modules that got parts of their own."""
    no_nested: list[Any] = field(default_factory=list, repr=False)
    passes: Passes | None = field(default=None, repr=False)
    ramps: int = 0
    """How many ramps were made of it; only the last one counts."""
    restored: bool = False
    """Whether it was loaded from a file, which does not have the original weights."""

    @property
    def methods(self) -> list[Method]:
        """The methods as they act now: with the strength that a ramp has reached."""
        held = {type(m): site.acting(where) for site in self.sites.values() for where, m in site.methods.items()}
        return [held.get(type(method), method) for method in self.given]

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
        """For a diagnosis: what was done, how far it moved the weights, and whether the promised spectrum holds."""
        moved = [{"layer": m.index, "heads": m.heads} for m in self.moved]
        held = kept(self.reparametrized, list(self.sites.values()), {}).summary() if self.reparametrized else None
        return {**self.settings(), "moved": moved, "verified": held}

    def check_projections(self) -> None:
        """Refuse a model whose steered projections were replaced since, or do more than their weights by now."""
        for guard in self.guards.values():
            guard.check_projections()
        for layer in self.reparametrized:
            for owner, weight in (layer.value, layer.output):
                if not applies_its_weight(owner, weight, layer.shape.layout.transposed):
                    raise InputError(
                        f"a projection of layer {layer.index} ({layer.shape.name}), a {type(owner).__name__}, does not "
                        "give its input times its weight any more; merge what it adds into the weight"
                    )

    def hold(self) -> tuple[Pass, Tensor | None] | None:
        """The pass that is running, for `resumed`."""
        return None if self.passes is None else self.passes.hold()

    def resumed(self, held: Any) -> AbstractContextManager[None]:
        """Blocks that run inside are part of an earlier pass again."""
        return nullcontext() if self.passes is None else self.passes.resumed(held)

    def remarks(self) -> list[str]:
        """What a reader of a diagnosis should know."""
        where = "all layers" if len(self.layers) == len(self.anatomy) else f"layers {', '.join(map(str, self.layers))}"
        remarks = [f"steered by {' and '.join(map(str, self.methods))} on {where}"]
        if any(site.parts and not site.undecided() for site in self.sites.values()):
            what = "attention as the method changes it"
            remarks.append(f"smoothing cases and ρ are of {what}; spectra of H are the weights'")
        return remarks

    def site(self, layer: str) -> Site | None:
        """Where methods act inside a layer, by its name."""
        return next((site for site in self.sites.values() if site.layer.name == layer), None)

    def begin(self, running: Pass) -> None:
        """A pass begins: compute the weights of all reparametrized layers."""
        groups: dict[tuple[object, ...], list[ReparametrizedLayer]] = {}
        for layer in self.reparametrized:
            shape, theta = layer.shape, layer.theta
            alike = (shape.width, shape.heads, shape.kv_heads, shape.head_dim, theta.device, theta.dtype)
            groups.setdefault(alike, []).append(layer)
        prepare(list(groups.values()), running)


def steering_of(model: nn.Module) -> Steering | None:
    """What `steer` did to a model, or None where it is not steered."""
    return cast("Steering | None", steered_as(model))
