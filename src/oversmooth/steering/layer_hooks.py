"""The hooks of one steered layer: where methods act on values, on what attention makes of them, and on its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.forward_state import ForwardState, ForwardStates, in_backward
from oversmooth.steering.mask_guard import MaskGuard
from oversmooth.steering.methods.base import Method, Part
from oversmooth.steering.open_attention import PROJECTED, OpenedAttention
from oversmooth.theory.radii import AttentionChange


class LayerHooks:
    """The parts of methods in one layer, by its index in the stack, and the hooks that run them. first: whether its
    values, the first time it runs in a forward pass, are V⁰.
    """

    def __init__(self, index: int, layer: AttentionLayer, states: ForwardStates, first: bool) -> None:
        self.index, self.layer, self.states, self.first = index, layer, states, first
        # By `Method.place`, one at most at each.
        self.parts: dict[str, Part] = {}
        self.methods: dict[str, Method] = {}
        self.tokens_first = False  # whether the block takes (n, batch, d), as torch's own may
        # Set where a method averages over tokens, or relies on attention being a weighted mean.
        self.guard: MaskGuard | None = None

    def method_at(self, place: str) -> Method:
        """The method that acts at a place, with the strength that it has now."""
        method, strength = self.methods[place], self.parts[place].ramped
        return method if strength is None else dataclasses.replace(method, strength=strength)  # type: ignore[type-var]

    def hook(self, modules: dict[str, nn.Module], remember_values: bool) -> list[Any]:
        """Register the hooks, and return their handles: the guard sees values as methods leave them, and attention's
        output before they change it. remember_values: whether some layer needs V⁰.
        """
        attention, output = modules[self.layer.name], modules[self.layer.output_module[0]]
        self.tokens_first = not getattr(attention, "batch_first", True)
        handles: list[Any] = []
        if "values" in self.parts or "attention" in self.parts or (self.first and remember_values):
            opened = isinstance(attention, OpenedAttention)
            values = getattr(attention, PROJECTED) if opened else modules[self.layer.value_module[0]]
            handles.append(values.register_forward_hook(self._on_values))
        handles += [] if self.guard is None else self.guard.hook(modules)
        if "attention" in self.parts:
            handles.append(output.register_forward_pre_hook(self._on_mixed))
        if "output" in self.parts:
            handles.append(output.register_forward_hook(self._on_output))
        return handles

    # What code that inspects the model asks for (anatomy.steered.SteeredLayer).

    def change(self, run: int) -> AttentionChange | None:
        change = None
        for place in ("values", "attention"):
            if self._acts(place, run) and (this := self.parts[place].change()) is not None:
                change = this if change is None else this @ change
        if "output" not in self.parts or (gains := self.parts["output"].output_gains()) is None:
            return change
        return dataclasses.replace(change or AttentionChange(), constant_gain=gains[0], centred_gain=gains[1])

    def why_undecided(self) -> str:
        unknown = [
            f"{self.method_at(place)} {part.why_unknown}"
            for place, part in self.parts.items()
            if (part.output_gains() if place == "output" else part.change()) is None
        ]
        return f"{' and '.join(unknown)}, and the spectra do not know it" if unknown else ""

    def formula(
        self, run: int, V: Tensor, attend: Callable[[Tensor], Tensor], mask: Tensor | None, V0: Tensor, x: Tensor
    ) -> Tensor:
        if self._acts("values", run):
            V = self.parts["values"](V, V0)
        U = attend(V)
        return self._attended(U, V, V0, mask, x) if self._acts("attention", run) else U

    def projected(self, Y: Tensor, mask: Tensor | None, stream: Tensor) -> Tensor:
        if (part := self.parts.get("output")) is None:
            return Y
        return part(Y, mask, stream) if self.methods["output"].uses_stream else part(Y, mask)

    def _acts(self, place: str, run: int) -> bool:
        """Whether a method acts at a place in this run of the layer: what adds V⁰ does not where V⁰ is made."""
        return place in self.parts and not (self.methods[place].uses_first_values and self.first and run <= 0)

    def _attended(self, U: Tensor, V: Tensor, V0: Tensor | None, mask: Tensor | None, x: Tensor | None) -> Tensor:
        part = self.parts["attention"]
        return part(U, V, V0, mask, x) if part.needs_input else part(U, V, V0, mask)

    def _on_values(self, _module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        """Remember V and, in the first run of the first layer, V⁰; change V where a method does."""
        rest, V = self.layer.split(out, -1)
        state = self.states.require(self.layer.name)
        if self.first and state.run <= 0 and state.running:  # not where the first block is only recomputed
            state.set_first_values(V)
        acts = self._acts("values", state.run)
        if acts:
            V = self.parts["values"](V, self._first_values(state, V))
        state.values = V
        if "attention" in self.parts and self.parts["attention"].needs_input:
            state.value_input = args[0] if args else None
        return self.layer.join(rest, V, -1) if acts else None

    def _on_mixed(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        state, part = self.states.require(self.layer.name), self.parts["attention"]
        V, state.values = state.values, None
        x, state.value_input = state.value_input, None
        if not self._acts("attention", state.run):
            return None
        U = args[0].unflatten(-1, (self.layer.heads, self.layer.head_dim))
        tokens = U.shape[:-2]
        V = self._fitting("its values", V, torch.Size((*tokens, self.layer.kv_heads, self.layer.head_dim)))
        V0 = self._first_values(state, V) if self.methods["attention"].uses_first_values else None
        mask = None if self.guard is None or not self.guard.averaging else self.guard.averaged_over(U, tokens)
        if part.needs_input:
            x = self._fitting("the input of its values", x, torch.Size((*tokens, self.layer.width)))
        return (self._attended(U, V, V0, mask, x).flatten(-2), *args[1:])

    def _on_output(self, _module: nn.Module, _args: Any, Y: Tensor) -> Tensor:
        mask, stream = None, Y
        if self.methods["output"].uses_stream:
            entered = self.states.require(self.layer.name).stream
            if entered is not None and self.tokens_first:
                entered = entered.transpose(0, 1)
            stream = self._fitting("the input of its block", entered, Y.shape)
        elif self.guard is not None and self.guard.averaging:
            if self.states.current() is None and in_backward():
                self.states.require(self.layer.name)  # recomputed: which tokens are padding is not known
            mask = self.guard.averaged_over(Y, Y.shape[:-1])
        return self.projected(Y, mask, stream)

    def _first_values(self, state: ForwardState, V: Tensor) -> Tensor:
        # A model may span several devices.
        return self._fitting("the array of the first layer's values", state.first_values, V.shape).to(V.device)

    def _fitting(self, what: str, x: Tensor | None, shape: torch.Size) -> Tensor:
        """An array that a method needs, of the shape that attention's output shows."""
        if x is None or x.shape != shape:
            raise InputError(
                f"{self.layer.name}: {what} has shape {None if x is None else tuple(x.shape)} and not {tuple(shape)}: "
                "attention rearranges its tokens, or layers run by themselves; run the whole model, or use Spectral"
            )
        return x
