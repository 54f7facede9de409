"""Where methods act in a layer: on what its value projection gives, on what its output projection gets and gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.mask_guard import MaskGuard
from oversmooth.steering.methods.base import Method, Part
from oversmooth.steering.open_attention import VALUES, OpenedAttention
from oversmooth.steering.passes import Pass, Passes
from oversmooth.theory.radii import AttentionChange


class Site:
    """The hooks of one layer.

    Args:
        index: of the layer in the stack.
        layer: its attention.
        passes: of the steered model.
        first: whether its values, the first time it runs in a pass, are V⁰.
    """

    def __init__(self, index: int, layer: AttentionLayer, passes: Passes, first: bool) -> None:
        self.index, self.layer, self.passes = index, layer, passes
        self.first = first
        self.parts: dict[str, Part] = {}
        self.methods: dict[str, Method] = {}
        """Those that the parts are of, by the same key: one formula at most per `Method.place`."""
        self.tokens_first = False
        """Whether blocks get tokens in the first dimension and inputs in the second, as torch's own may."""
        self.guard: MaskGuard | None = None
        """Set where a method averages over all tokens."""

    def add(self, method: Method, part: Part) -> None:
        self.parts[method.place], self.methods[method.place] = part, method

    def acting(self, where: str) -> Method:
        """The method that acts at a place, with the strength that it has now."""
        method, strength = self.methods[where], self.parts[where].ramped
        return method if strength is None else dataclasses.replace(method, strength=strength)  # type: ignore[type-var]

    def hook(self, modules: dict[str, nn.Module], remember_values: bool) -> list[Any]:
        """Put the hooks on, and return their handles.

        Args:
            modules: every module of the model by name.
            remember_values: whether some layer needs V⁰.
        """
        attention, output = modules[self.layer.name], modules[self.layer.output_module[0]]
        self.tokens_first = not getattr(attention, "batch_first", True)
        handles = []
        if "values" in self.parts or "attention" in self.parts or (self.first and remember_values):
            if isinstance(attention, OpenedAttention):
                handles.append(getattr(attention, VALUES).register_forward_hook(self._opened_values))
            else:
                handles.append(modules[self.layer.value_module[0]].register_forward_hook(self._values))
        if "attention" in self.parts:
            handles.append(output.register_forward_pre_hook(self._mixed))
        if "output" in self.parts:
            handles.append(output.register_forward_hook(self._output))
        return handles

    def _values(self, _module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        rest, V = self.layer.split(out, -1)
        changed = self._take(V, args[0] if args else None)
        return None if changed is None else self.layer.join(rest, changed, -1)

    def _opened_values(self, _module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        changed = self._take(out.unflatten(-1, (self.layer.kv_heads, self.layer.head_dim)), args[1])
        return None if changed is None else changed.flatten(-2)

    def change(self, run: int) -> AttentionChange | None:
        """What is done to attention, where it is linear in A; None for nothing.

        Args:
            run: how many blocks ran before.
        """
        change = None
        for where in ("values", "attention"):
            if self._acts(where, run) and (this := self.parts[where].change()) is not None:
                change = this if change is None else this @ change
        output = self.parts.get("output")
        gains = None if output is None else output.output_gains()
        if gains is None:
            return change
        plain = AttentionChange.none(self.layer.heads) if change is None else change
        return dataclasses.replace(plain, constant_gain=gains[0], centred_gain=gains[1])

    def _acts(self, where: str, run: int) -> bool:
        """Whether a method acts at a place in this run of the layer: what adds V⁰ does not where V⁰ is made."""
        return where in self.parts and not (self.methods[where].uses_first_values and self.first and run <= 0)

    def undecided(self) -> str:
        """Why spectra do not decide about this layer: a method here is not linear in A. Empty where all are."""
        known = {
            where: part.output_gains() if where == "output" else part.change() for where, part in self.parts.items()
        }
        unknown = [
            f"{self.acting(where)} {self.parts[where].why_unknown}" for where, effect in known.items() if effect is None
        ]
        return f"{' and '.join(unknown)}, and the spectra do not know it" if unknown else ""

    def formula(
        self, run: int, V: Tensor, attend: Callable[[Tensor], Tensor], mask: Tensor | None, V0: Tensor, x: Tensor
    ) -> Tensor:
        """What the output projection gets, as the hooks make it.

        Args:
            run: how many blocks ran before.
            V: ``(b, n, heads, k)``: values.
            attend: multiplies values by A.
            mask: ``(b, n)``: tokens that count.
            V0: ``(b, n, heads, k)``: the first layer's values.
            x: ``(b, n, d)``: what the value projection got.
        """
        if "values" in self.parts and not (self.first and run <= 0):
            V = self.parts["values"](V, V0)
        U = attend(V)
        return self._attended(U, V, V0, mask, x) if self._acts("attention", run) else U

    def _attended(self, U: Tensor, V: Tensor, V0: Tensor | None, mask: Tensor | None, x: Tensor | None) -> Tensor:
        part = self.parts["attention"]
        return part(U, V, V0, mask, x) if part.needs_input else part(U, V, V0, mask)

    def projected(self, Y: Tensor, mask: Tensor | None, stream: Tensor) -> Tensor:
        """What methods make of the output projection's result.

        Args:
            Y: ``(b, n, d)``: that result.
            mask: ``(b, n)``: tokens that count.
            stream: ``(b, n, d)``: what entered the block.
        """
        part = self.parts.get("output")
        if part is None:
            return Y
        return part(Y, mask, stream) if self.methods["output"].uses_stream else part(Y, mask)

    def _take(self, V: Tensor, x: Tensor | None) -> Tensor | None:
        """Remember V and, in the first run of the first layer, V⁰. Returns V where a method changes it."""
        running = self.passes.needed(self.layer.name)
        source = self.first and running.run <= 0
        if source and running.runs:  # not where the first block is only recomputed
            running.take_first(V)
        changed = None
        if "values" in self.parts and not source:
            changed = V = self.parts["values"](V, self._first_values(running, V))
        running.values = V
        if "attention" in self.parts and self.parts["attention"].needs_input:
            running.entering = x
        return changed

    def _mixed(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        running, part = self.passes.needed(self.layer.name), self.parts["attention"]
        V, running.values = running.values, None
        x, running.entering = running.entering, None
        if not self._acts("attention", running.run):
            return None
        U = args[0].unflatten(-1, (self.layer.heads, self.layer.head_dim))
        if V is None or V.shape[:-2] != U.shape[:-2]:
            got = "nothing" if V is None else tuple(V.shape)
            raise InputError(
                f"{self.layer.name}: values have shape {got} where attention gave {tuple(U.shape)}; this attention "
                "rearranges its tokens, and methods that act inside it cannot follow"
            )
        V0 = self._first_values(running, V) if self.methods["attention"].uses_first_values else None
        mask = None if self.guard is None else self.guard.averaged_over(U, U.shape[:-2])
        if part.needs_input and (x is None or x.shape != (*U.shape[:-2], self.layer.width)):
            got = "nothing" if x is None else tuple(x.shape)
            raise InputError(
                f"{self.layer.name}: its value projection got {got} where attention gave {tuple(U.shape)}; "
                f"{self.acting('attention')} needs the tokens that attention gets"
            )
        return (self._attended(U, V, V0, mask, x).flatten(-2), *args[1:])

    def _output(self, _module: nn.Module, _args: Any, Y: Tensor) -> Tensor:
        if not self.methods["output"].uses_stream:
            if self.guard is None:
                return self.projected(Y, None, Y)
            if self.passes.current() is None and torch._C._current_graph_task_id() != -1:
                self.passes.needed(self.layer.name)  # recomputed: which tokens are padding is not known
            return self.projected(Y, self.guard.averaged_over(Y, Y.shape[:-1]), Y)
        stream = self.passes.needed(self.layer.name).stream
        if stream is not None and self.tokens_first:
            stream = stream.transpose(0, 1)
        if stream is None or stream.shape != Y.shape:
            got = "nothing" if stream is None else tuple(stream.shape)
            raise InputError(
                f"{self.layer.name}: {got} entered its block where attention gave {tuple(Y.shape)}; "
                f"{self.acting('output')} needs the stream that attention adds to"
            )
        return self.projected(Y, None, stream)

    def _first_values(self, running: Pass, V: Tensor) -> Tensor:
        V0 = running.first_values
        if V0 is None or V0.shape != V.shape:
            got = "are not there" if V0 is None else f"have shape {tuple(V0.shape)} and not {tuple(V.shape)}"
            raise InputError(f"{self.layer.name}: the first layer's values {got}; run the whole model in one pass")
        return V0.to(V.device)  # a model may span several devices
