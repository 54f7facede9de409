"""A pass that goes block by block: all inputs through one block, whose weights are not needed again, then the next.

No family is written out. Every step is the model's own forward pass, in which the blocks before the one that runs
return what they returned, and the pass ends where the next one begins. What lies between blocks is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import first_tensor, results_like, with_stream
from oversmooth.trace.plans import Plan
from oversmooth.trace.reducers.base import Reducer
from oversmooth.trace.tracing import Trace, _Batch
from oversmooth.trace.valid import LeftOut
from oversmooth.trace.watch import BlockCalls, Watch

OTHER_WAYS = "diagnose it without --stream, on a machine that holds it"


class _Reached(BaseException):
    """The block after the one that runs is about to run on x; no error, so that no model catches it."""

    def __init__(self, block: str, x: Tensor) -> None:
        self.block, self.x = block, x


class Steps(BlockCalls):
    """Runs one block at a time of a model's forward pass; modules and blocks by name."""

    STATE = ("forms",)

    def __init__(self, modules: dict[str, nn.Module], blocks: Iterable[str]) -> None:
        super().__init__(modules, blocks)
        self.forms: list[Any] = []
        """By call: what the block returns, with True in place of the stream."""
        self._at = 0
        self._given: Tensor | None = None
        self._left: Tensor | None = None

    @contextmanager
    def at(self, call: int) -> Iterator[None]:
        """While `run` runs this call of a block."""
        self._at = call
        with self._counted():
            yield

    def run(self, given: Tensor | None, forward: Callable[[], Any]) -> tuple[Tensor, Any, str | None]:
        """What the block leaves; what the model returns, and None, or the name of the next block where there is one.
        given: what the block before left; None before the first.
        """
        self._next, self._given, self._left = 0, given, None
        out, following = None, None
        try:
            out = forward()
        except _Reached as reached:
            following = reached.block
        if self._left is None:
            raise InputError("inputs take different numbers of blocks; give inputs that take one way")
        return self._left, out, following

    def first(self, forward: Callable[[], Any]) -> str:
        """The name of the block that runs first."""
        return self._first(forward).block

    def entering(self, forward: Callable[[], Any]) -> Tensor:
        """What enters it."""
        return self._first(forward).x

    def _first(self, forward: Callable[[], Any]) -> _Reached:
        with self.at(-1):
            self._next = 0
            try:
                forward()
            except _Reached as reached:
                return reached
        raise InputError(f"the model ran without running {self.blocks[0]}; give inputs that pass through its layers")

    def _call(self, number: int, name: str, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        x = first_tensor(args, kwargs)
        if number > self._at:
            raise _Reached(name, x)
        if number < self._at:
            # What is no longer held is not a number, so that nobody takes it for what it was.
            y = self._given if number == self._at - 1 else torch.full_like(x, torch.nan)
            return with_stream(self.forms[number], True, y)
        if number and bool(x.isnan().any()) and not bool(self._given.isnan().any()):  # type: ignore[union-attr]
            raise InputError(
                f"{name} receives more than the block before it left, and cannot be streamed; {OTHER_WAYS}"
            )
        with self._uncounted():
            out = original(*args, **kwargs)
        self._left = results_like(x, out, name)[0]
        parts = out if type(out) in (tuple, list) else [out]
        if any(part is not None and part is not self._left for part in parts):
            raise InputError(f"{name} returns more than the stream, so it cannot be streamed; {OTHER_WAYS}")
        if number == len(self.forms):
            self.forms.append(with_stream(out, self._left, True))
        return out


class StreamedTrace(Trace):
    """A trace in which all batches pass through one block before any passes through the next."""

    STATE = ("facts", "_lengths", "_explained", "_batches", "_inputs")

    def __init__(
        self, model: nn.Module, plan: Plan, reducers: Sequence[Reducer], left_out: LeftOut | None = None
    ) -> None:
        super().__init__(model, plan, reducers, left_out)
        self._learns = False  # the plan grows before each block
        self._batches: list[_Batch] = []
        self._inputs: list[tuple[int, int]] = []
        """The number of each batch's first input, and how many it has; packed texts are one each."""

    @contextmanager
    def block(self, call: int) -> Iterator[None]:
        """While batches pass through this call of a block, which the plan has by now."""
        here = self.plan.blocks[call]
        self._sites |= {(call, site.stage): site for site in here.sites(call)}
        layers = (self.plan.anatomy.blocks if self.plan.anatomy else {}) | {here.block: here.layer}
        self._watch = Watch(self._modules, layers, self, self.plan.parts, only=here.block, **self._how)  # type: ignore[arg-type]
        with self._watch:
            yield

    def count(self, number: int) -> int:
        """How many inputs a batch has."""
        return self._inputs[number][1]

    @contextmanager
    def batch(self, call: int, number: int, special: Tensor | None) -> Iterator[None]:
        """While one batch passes through it."""
        self._watch.calls, self._watch.wants_mask = call, not call
        if call:
            self._batch = self._batches[number]
            if self._batch.tokens is not None:
                self._hand_masks(self._batch.tokens)
            for reducer in self.reducers:
                reducer.begin(*self._inputs[number])
        else:
            self._batch, start = _Batch(special), self.facts.inputs
        yield
        if not call:
            self._inputs.append((start, self.facts.inputs - start))
            self._batches.append(self._batch)
