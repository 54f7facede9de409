"""Which pass through the model a layer is part of: what methods must remember from one layer to the next.

A pass begins and ends with the module that runs the stack. Blocks that are recomputed during the backward pass
(activation checkpointing) come back after it has ended, perhaps after another began: they are known by their input,
which checkpointing hands back as the very tensor it was.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from oversmooth.anatomy.calls import PADDING_SHOWN
from oversmooth.safety.errors import InputError
from oversmooth.trace.valid import Padding, valid_tokens

_KEY = "oversmooth"


class Pass:
    """One run through the stack."""

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = mask
        """The valid tokens, ``(batch, n)``; None for all, or where no method asks."""
        self.told = mask is not None
        """Whether the stack was given the mask, and not attention alone."""
        self.open_mask: Tensor | None = None
        """A mask of pairs that hides no valid token from another."""
        self.runs = True
        """Until the module that runs the stack is done; blocks may be recomputed afterwards."""
        self.run = -1
        """How many blocks ran before the one that runs."""
        self._first: Tensor | None = None
        self._first_seen: Callable[[], Tensor | None] = lambda: None
        self.values: Tensor | None = None
        """V of the block that runs."""
        self.entering: Tensor | None = None
        """What its value projection got; kept where a method needs it."""
        self.stream: Tensor | None = None
        """What entered the block; likewise."""
        self.weights: dict[str, tuple[Tensor, Tensor]] = {}
        """Reparametrized weights of all layers, by layer."""

    def counted(self, tokens: torch.Size) -> Tensor | None:
        """The tokens that count of so many, ``(batch, n)``; None for all.

        Raises:
            InputError: the mask is that of other tokens, and may hide some of these.
        """
        mask = self.mask
        if mask is None or _fits(mask.shape, tokens):
            return mask
        if len(tokens) == 1 and mask.shape == (1, *tokens):  # a single input
            return mask[0]
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return None
        raise InputError(
            f"the mask of padding is of {tuple(mask.shape)} tokens where attention has {tuple(tokens)}, so what "
            "averages cannot leave it out; give a mask of all tokens to the module that runs the blocks, or use "
            "NeuTRENO, ValueResidual or Laplacian"
        )

    @property
    def first_values(self) -> Tensor | None:
        """V⁰ of the first block, ``(..., n, kv_heads, k)``, with its graph."""
        return self._first if self._first is not None else self._first_seen()

    def take_first(self, V: Tensor) -> None:
        self._first, self._first_seen = V, weakref.ref(V)

    def keep_first_for(self, x: Tensor) -> None:
        """Keep V⁰ alive as long as x, the input of a later block, which may be recomputed.

        It is attached to x's node of the graph, which V⁰'s own does not hold: a cycle through graph and Python would
        never be freed.
        """
        if self._first is not None and x.grad_fn is not None:
            x.grad_fn.metadata[_KEY] = self._first  # type: ignore[index]

    def over(self) -> None:
        """Release what holds a graph; V⁰ without one, of a frozen model, may be needed by recomputed blocks."""
        self.values = self.entering = self.stream = self.open_mask = None
        if self._first is not None and self._first.requires_grad:
            self._first = None
        self.runs = False


def _fits(mask: torch.Size, tokens: torch.Size) -> bool:
    return len(mask) == len(tokens) and all(m in (1, n) for m, n in zip(mask, tokens, strict=True))


class Passes:
    """All passes of one steered model, known by thread and, in recomputation, by input.

    Args:
        prepare: called as a pass begins.
        padding: reads the masks that the module that runs the stack is given.
        averages: whether a method averages over all tokens, so that masks must be known.
        streams: whether a method needs what enters a block.
    """

    def __init__(
        self, prepare: Callable[[Pass], None], padding: Padding, averages: bool, streams: bool = False
    ) -> None:
        self.prepare, self.padding, self.averages, self.streams = prepare, padding, averages, streams
        self._forget()

    def _forget(self) -> None:
        self._local = threading.local()
        self._known: Any = WeakIdKeyDictionary()

    # As state, and not as arguments of a call: `prepare` leads back here, and a copy must be one object to all hooks.
    def __getstate__(self) -> dict[str, Any]:
        """What belongs to a thread stays with it."""
        return {name: value for name, value in vars(self).items() if name not in ("_local", "_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the module that runs the stack."""
        new = Pass(self.padding.of(args, kwargs) if self.averages else None)
        self.prepare(new)
        if self.streams:
            new.stream = _tokens(args, kwargs)  # where this module is the only block
        self._local.active = new

    def end(self, _module: nn.Module, _args: Any, _out: Any) -> None:
        active = getattr(self._local, "active", None)
        if active is not None:
            active.over()
        self._local.active = None

    def enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a block."""
        active = getattr(self._local, "active", None)
        if torch.compiler.is_compiling():
            if active is not None:
                active.run += 1
                if self.streams:
                    active.stream = _tokens(args, kwargs)
            return
        x = _tokens(args, kwargs)
        if active is None:
            again = None if x is None else self._known.get(x)
            if again is not None:
                recomputed, run = again
                recomputed.run = run
                self._local.inside = True
                self._local.again = weakref.ref(recomputed)
            elif (earlier := self.current()) is not None:  # a later block of a segment that is recomputed as a whole
                earlier.run += 1
                self._local.inside = True
            if self.streams and (recalled := self.current()) is not None:
                recalled.stream = x
            return
        active.run += 1
        active.stream = x if self.streams else None
        if x is not None and torch.is_grad_enabled():
            self._known[x] = (active, active.run)
            if active.run > 0:
                active.keep_first_for(x)

    def leave(self, _module: nn.Module, _args: Any, _out: Any) -> None:
        """After a block."""
        if not torch.compiler.is_compiling():
            self._local.inside = False
            # A pass that is known by its input must not keep that alive.
            if self.streams and (running := self.current()) is not None:
                running.stream = None

    def weights(self, layer: str) -> tuple[Tensor, Tensor] | None:
        """The weights of a layer in the pass that it runs in, if it does."""
        running = getattr(self._local, "active", None)
        if running is None and not torch.compiler.is_compiling() and getattr(self._local, "inside", False):
            running = self.current()
        return None if running is None else running.weights.get(layer)

    def current(self) -> Pass | None:
        active = getattr(self._local, "active", None)
        if active is not None or torch.compiler.is_compiling():
            return active
        again = getattr(self._local, "again", None)
        return None if again is None else again()

    def hold(self) -> tuple[Pass, Tensor | None] | None:
        """The pass that runs, to be resumed when it is over, and its first values, which it releases then."""
        running = self.current()
        return None if running is None else (running, running.first_values)

    @contextmanager
    def resumed(self, held: tuple[Pass, Tensor | None] | None) -> Iterator[None]:
        """Blocks that run inside are part of this pass again: with its first values, mask and weights."""
        if held is None:
            yield
            return
        running, first = held
        if first is not None:
            running.take_first(first)
        before, self._local.active = getattr(self._local, "active", None), running
        try:
            yield
        finally:
            running.over()
            self._local.active = before

    def needed(self, layer: str) -> Pass:
        """The pass that a layer is part of, where a method requires one.

        Raises:
            InputError: the layer runs outside a pass.
        """
        running = self.current()
        if running is None:
            raise InputError(
                f"{layer} ran outside a pass through the model, so what it takes from the first layer is not known; "
                "run the whole model, and checkpoint with use_reentrant=False"
            )
        return running


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first array of numbers that a block got."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()), None)


def mask_of_attention(module: nn.Module, kwargs: dict[str, Any]) -> Tensor | None:
    """The valid tokens, from what attention itself was given; None where it is not said in a known way."""
    if isinstance(module, nn.MultiheadAttention):
        return valid_tokens(hidden=kwargs.get("key_padding_mask"))
    return valid_tokens(pairs=kwargs.get(PADDING_SHOWN))
