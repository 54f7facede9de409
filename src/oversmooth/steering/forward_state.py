"""What methods remember from one layer to the next within a forward pass: valid tokens, first values, weights.

A forward pass begins and ends with the module that runs the stack. Activation checkpointing runs blocks again during
the backward pass, perhaps after another forward pass began. Such a block is recognised by its input, because
checkpointing hands back the very tensor.
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

from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import first_tensor
from oversmooth.trace.valid import Padding

_KEY = "oversmooth"


class ForwardState:
    """The state of one forward pass through the stack: valid tokens ``(batch, n)`` (None: all, or no method asks), and
    reparametrized weights by layer.
    """

    def __init__(self, mask: Tensor | None, weights: dict[str, tuple[Tensor, Tensor]]) -> None:
        self.mask, self.weights = mask, weights
        self.has_mask = mask is not None  # passed to the stack, and not to attention alone
        self.unrestrictive_mask: Tensor | None = None  # of pairs; it hides no valid token from another
        self.running = True  # until the module that runs the stack has returned; blocks may still be recomputed
        self.run = -1  # how many blocks ran before the current one
        # Of the current block: V, and where a method needs them, the inputs of its value projection and of the block.
        self.values: Tensor | None = None
        self.value_input: Tensor | None = None
        self.stream: Tensor | None = None
        self._first: Tensor | None = None
        self._first_ref: Callable[[], Tensor | None] = lambda: None

    def valid_for(self, tokens: torch.Size) -> Tensor | None:
        """The valid tokens ``(batch, n)`` of an array with these leading dimensions; None for all."""
        mask = self.mask
        if mask is None or _broadcasts(mask.shape, tokens):
            return mask
        if len(tokens) == 1 and mask.shape == (1, *tokens):  # a single input
            return mask[0]
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return None
        raise InputError(
            f"the padding mask has shape {tuple(mask.shape)} but attention has tokens of shape {tuple(tokens)}, so "
            "averages cannot leave padding out; give a mask of all tokens to the module that runs the blocks, or use "
            "NeuTRENO, ValueResidual or Laplacian"
        )

    @property
    def first_values(self) -> Tensor | None:
        """V⁰ of the first block, ``(..., n, kv_heads, k)``, with its graph."""
        return self._first if self._first is not None else self._first_ref()

    def set_first_values(self, V: Tensor) -> None:
        self._first, self._first_ref = V, weakref.ref(V)

    def retain_first_values(self, x: Tensor) -> None:
        """Keep V⁰ alive as long as x, the input of a later block, which may be recomputed.

        It is attached to x's node of the graph, which V⁰'s own does not hold: a cycle through graph and Python would
        never be freed.
        """
        if self._first is not None and x.grad_fn is not None:
            x.grad_fn.metadata[_KEY] = self._first  # type: ignore[index]

    def release(self) -> None:
        """Release what holds a graph. V⁰ of a frozen model has none, and recomputed blocks may need it."""
        self.values = self.value_input = self.stream = self.unrestrictive_mask = None
        if self._first is not None and self._first.requires_grad:
            self._first = None
        self.running = False


def _broadcasts(mask: torch.Size, tokens: torch.Size) -> bool:
    return len(mask) == len(tokens) and all(m in (1, n) for m, n in zip(mask, tokens, strict=True))


Held = tuple[ForwardState, Tensor | None]
"""A forward pass and its first values."""


class ForwardStates:
    """All forward passes of one steered model, found by thread and, in recomputation, by input. weights: computes them
    as a pass begins; padding: reads the masks that the module which runs the stack receives.
    """

    averages = False
    """Whether a method averages over all tokens, so that masks must be known."""
    streams = False
    """Whether a method needs what enters a block."""

    def __init__(self, weights: Callable[[], dict[str, tuple[Tensor, Tensor]]], padding: Padding) -> None:
        self._compute, self.padding = weights, padding
        self._forget()

    def _forget(self) -> None:
        self._local = threading.local()
        self._by_input: Any = WeakIdKeyDictionary()

    # As state, and not as arguments of a call: `weights` leads back here, and a copy must be one object to all hooks.
    def __getstate__(self) -> dict[str, Any]:
        """What belongs to a thread stays with it."""
        return {name: value for name, value in vars(self).items() if name not in ("_local", "_by_input")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    @property
    def _active(self) -> ForwardState | None:
        """The forward pass that runs in this thread."""
        return getattr(self._local, "active", None)

    def begin_stack(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the module that runs the stack."""
        state = ForwardState(self.padding.of(args, kwargs) if self.averages else None, self._compute())
        if self.streams:
            state.stream = _tokens(args, kwargs)  # where this module is the only block
        self._local.active = state

    def end_stack(self, _module: nn.Module, _args: Any, _out: Any) -> None:
        """After the module that runs the stack."""
        if (active := self._active) is not None:
            active.release()
        self._local.active = None

    def begin_block(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a block."""
        x, compiling = _tokens(args, kwargs), torch.compiler.is_compiling()
        state = active = self._active
        if active is not None:
            active.run += 1
        elif not compiling:
            state = self._recomputed(x)
        if state is not None and self.streams:
            state.stream = x
        if active is not None and not compiling and x is not None and torch.is_grad_enabled():
            self._by_input[x] = (active, active.run)
            if active.run > 0:
                active.retain_first_values(x)

    def _recomputed(self, x: Tensor | None) -> ForwardState | None:
        """The forward pass that a block is recomputed for."""
        found = None if x is None else self._by_input.get(x)
        if found is not None:
            state, state.run = found
            self._local.recomputed = weakref.ref(state)
            return state
        if (state := self.current()) is not None:  # a later block of a segment that is recomputed as a whole
            state.run += 1
        return state

    def end_block(self, _module: nn.Module, _args: Any, _out: Any) -> None:
        """After a block: a forward pass that is found by its input must not keep that alive."""
        if self.streams and not torch.compiler.is_compiling() and (state := self.current()) is not None:
            state.stream = None

    def weights(self, layer: str) -> tuple[Tensor, Tensor] | None:
        """The weights of a layer in the forward pass that it runs in, if it does."""
        state = self.current()
        return None if state is None else state.weights.get(layer)

    def current(self) -> ForwardState | None:
        """The forward pass that runs in this thread or, within a backward pass, the last one that a block was
        recomputed for.
        """
        if self._active is not None or torch.compiler.is_compiling() or not in_backward():
            return self._active
        recomputed = getattr(self._local, "recomputed", None)
        return None if recomputed is None else recomputed()

    def require(self, layer: str) -> ForwardState:
        """The forward pass that a layer is part of."""
        if (state := self.current()) is None:
            raise InputError(
                f"{layer} ran outside a forward pass of the model, so the first layer's values and the mask are not "
                "known; run the whole model, and checkpoint with use_reentrant=False"
            )
        return state

    def hold(self) -> Held | None:
        """The current forward pass, to be resumed when it is over, and its first values, which it releases then."""
        state = self.current()
        return None if state is None else (state, state.first_values)

    @contextmanager
    def resumed(self, held: Held | None) -> Iterator[None]:
        """Blocks that run inside are part of a held forward pass: with its first values, mask and weights."""
        if held is None:
            yield
            return
        state, first = held
        if first is not None:
            state.set_first_values(first)
        before, self._local.active = self._active, state
        try:
            yield
        finally:
            state.release()
            self._local.active = before


def in_backward() -> bool:
    """Whether autograd runs what is called: checkpointing runs blocks a second time."""
    return int(torch._C._current_graph_task_id()) != -1


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first array of numbers among the arguments of a block, before any inside one of them, such as rotations."""
    plain = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point() and v.ndim > 1)
    return next(plain, first_tensor(args, kwargs, needed=False))
