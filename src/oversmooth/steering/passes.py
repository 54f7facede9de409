"""Which run through the model a layer is part of: what methods must remember from one layer to the next.

A pass begins and ends with the module that runs the stack. Blocks that are recomputed during the backward pass
(activation checkpointing) come back after it has ended, perhaps after another began: they are known by their input,
which checkpointing hands back as the very tensor it was.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from oversmooth.errors import InputError


class Pass:
    """One run through the stack."""

    def __init__(self, mask: Tensor | None, causal: bool) -> None:
        self.mask = mask
        """The tokens that count, ``(batch, n)``; None for all."""
        self.causal = causal
        self.run = -1
        """How many blocks ran before the one that runs."""
        self.first_values: Tensor | None = None
        """V⁰ of the first block, ``(..., n, kv_heads, k)``, with its graph."""
        self.values: Tensor | None = None
        """V of the block that runs."""
        self.weights: dict[str, tuple[Tensor, Tensor]] = {}
        """Reparametrized weights of all layers, by layer."""


class Passes:
    """All passes of one steered model, found by thread and, in recomputation, by input."""

    def __init__(self, prepare: Callable[[Pass], None], arguments: tuple[str, ...]) -> None:
        """prepare: called as a pass begins; arguments: names of what the module that runs the stack takes, in order."""
        self.prepare, self.arguments = prepare, arguments
        self._local = threading.local()
        self._known: Any = WeakIdKeyDictionary()

    def __deepcopy__(self, memo: dict[int, Any]) -> Passes:
        return Passes(copy.deepcopy(self.prepare, memo), self.arguments)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the module that runs the stack."""
        named = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        new = Pass(_token_mask(named), bool(named.get("is_causal")))
        self.prepare(new)
        self._local.active = new

    def end(self, module: nn.Module, args: Any, out: Any) -> None:
        self._local.active = None

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a block."""
        active = getattr(self._local, "active", None)
        if torch.compiler.is_compiling():
            if active is not None:
                active.run += 1
            return
        x = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()), None)
        if active is None:
            again = None if x is None else self._known.get(x)
            if again is not None:
                found, run = again
                found.run = run
                self._local.again = weakref.ref(found)
            elif (earlier := self.current()) is not None:  # a later block of a segment that is recomputed as a whole
                earlier.run += 1
            return
        active.run += 1
        if x is not None and torch.is_grad_enabled():
            self._known[x] = (active, active.run)

    def current(self) -> Pass | None:
        active = getattr(self._local, "active", None)
        if active is not None or torch.compiler.is_compiling():
            return active
        again = getattr(self._local, "again", None)
        return None if again is None else again()

    @contextmanager
    def resumed(self, running: Pass | None) -> Iterator[None]:
        """Blocks that run meanwhile are part of this pass again: with its first values, mask and weights."""
        before = getattr(self._local, "active", None)
        self._local.active = running
        try:
            yield
        finally:
            self._local.active = before

    def needed(self, layer: str) -> Pass:
        """The pass that a layer is part of, where a method cannot do without."""
        found = self.current()
        if found is None:
            raise InputError(
                f"{layer} ran outside a pass through the model, so what it takes from the first layer is not known; "
                "run the whole model, and checkpoint with use_reentrant=False"
            )
        return found


def _token_mask(kwargs: dict[str, Any]) -> Tensor | None:
    """Which tokens are not padding, from whatever mask the stack was given."""
    hidden = kwargs.get("src_key_padding_mask")
    if isinstance(hidden, Tensor):
        return ~hidden if hidden.dtype == torch.bool else hidden == 0
    for name in ("attention_mask", "attn_mask"):
        mask = kwargs.get(name)
        if not isinstance(mask, Tensor):
            continue
        if mask.ndim == 2:
            return mask.bool()
        if mask.ndim == 4:  # (batch, 1, queries, keys): a token counts if anyone may look at it
            seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            return seen.any(2)[:, 0]
    return None
