"""A pass that goes block by block: all inputs through one block, whose weights are not needed again, then the next.

No family is written out. Every step is the model's own forward pass, in which the blocks before the one that runs
return what they returned, and the pass ends where the next one begins. What lies between blocks is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import first_tensor, results_like
from oversmooth.trace.plans import Plan
from oversmooth.trace.reducers.base import Reducer
from oversmooth.trace.tracing import Trace, _Batch
from oversmooth.trace.valid import LeftOut
from oversmooth.trace.watch import Watch, replaced

OTHER_WAYS = "diagnose it without --stream, on a machine that holds it"


class _Reached(BaseException):
    """The block after the one that runs is about to run on x; no error, so that no model catches it."""

    def __init__(self, block: str, x: Tensor) -> None:
        self.block, self.x = block, x


class Steps:
    """Runs one block at a time of a model's forward pass; modules and blocks by name."""

    STATE = ("forms",)

    def __init__(self, modules: dict[str, nn.Module], blocks: Sequence[str]) -> None:
        self.modules, self.blocks = modules, list(dict.fromkeys(blocks))
        self.forms: list[tuple[bool, int, int] | None] = []
        """By call: whether the block returns a tuple or a list, its length, the stream's place; None: the stream."""
        self._call = self._count = 0
        self._given: Tensor | None = None
        self._left: Tensor | None = None
        self._inside = False

    @contextmanager
    def at(self, call: int) -> Iterator[None]:
        """While `run` runs this call of a block. Nothing else may replace forward functions inside."""
        self._call = call
        with ExitStack() as stack:
            for name in self.blocks:
                stack.enter_context(replaced(self.modules[name], partial(self._block, name)))
            yield

    def run(self, given: Tensor | None, forward: Callable[[], Any]) -> tuple[Tensor, Any, str | None]:
        """What the block leaves; what the model returns, and None, or the name of the next block where there is one.
        given: what the block before left; None before the first.
        """
        self._count, self._given, self._left = 0, given, None
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
            self._count, self._given = 0, None
            try:
                forward()
            except _Reached as reached:
                return reached
        raise InputError(f"the model ran without running {self.blocks[0]}; give inputs that pass through its layers")

    def _block(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return original(*args, **kwargs)
        call, self._count = self._count, self._count + 1
        if call > self._call:
            raise _Reached(name, first_tensor(args, kwargs))
        x = first_tensor(args, kwargs)
        if call < self._call:
            assert self._given is not None
            # What is no longer held is not a number, so that nobody takes it for what it was.
            y = self._given if call == self._call - 1 else torch.full_like(x, torch.nan)
            return self._as_returned(y, call)
        if call and bool(x.isnan().any()) and not bool(self._given.isnan().any()):  # type: ignore[union-attr]
            raise InputError(
                f"{name} receives more than the block before it left, and cannot be streamed; {OTHER_WAYS}"
            )
        self._inside = True
        try:
            out = original(*args, **kwargs)
        finally:
            self._inside = False
        self._left = results_like(x, out, name)[0]
        self._learn(name, call, out)
        return out

    def _learn(self, name: str, call: int, out: Any) -> None:
        form, others = None, out is not self._left
        if type(out) in (tuple, list):
            place = next(i for i, part in enumerate(out) if part is self._left)
            form, others = (
                (type(out) is tuple, len(out), place),
                any(p is not None for i, p in enumerate(out) if i != place),
            )
        if others:
            raise InputError(f"{name} returns more than the stream, so it cannot be streamed; {OTHER_WAYS}")
        if call == len(self.forms):
            self.forms.append(form)

    def _as_returned(self, y: Tensor, call: int) -> Any:
        if (form := self.forms[call]) is None:
            return y
        is_tuple, length, place = form
        returned = [y if i == place else None for i in range(length)]
        return tuple(returned) if is_tuple else returned


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
                self._tell(self._batch.tokens)
            for reducer in self.reducers:
                reducer.begin(*self._inputs[number])
        else:
            self._batch, start = _Batch(special), self.facts.inputs
        yield
        if not call:
            self._inputs.append((start, self.facts.inputs - start))
            self._batches.append(self._batch)
