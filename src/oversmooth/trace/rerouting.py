"""Spans of blocks left out or run twice, exactly, in a model that stays as it is.

One unchanged pass is recorded. In a rerouted one the blocks up to the end of the span return what they did before, the
last of them with another stream in its place: what entered the span, or what the span makes of its own output. Blocks
after the span, and everything around blocks, run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import as_tokens, first_tensor, results_like, tensors_in, with_stream
from oversmooth.trace.plans import Plan, SampleBlock
from oversmooth.trace.watch import BlockCalls, run_again, without_fast_path

BlockRange = tuple[int, int]
"""The first block, and the one after the last, counted by what ran before."""


@dataclass
class _Call(SampleBlock):
    """One call of a block in the unchanged pass; x and y are copies, as it takes and returns them."""

    out: Any = None
    """What it returned."""
    returned: Tensor | None = None
    """The stream in it."""


class Rerouting(BlockCalls):
    """Context manager: `record` a pass of the model, then run it again with a span of blocks left out or run twice.

    Args:
        model: the module that is called inside, in eval mode.
        plan: of this model.

    >>> import torch
    >>> from oversmooth.trace import Rerouting, plan
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> with torch.no_grad(), Rerouting(model, plan(model, x)) as route:
    ...     y = route.record(lambda: model(x))
    ...     without_the_second = route.without((1, 2))
    ...     with_the_last_two_twice = route.twice((1, 3))
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__(dict(model.named_modules(remove_duplicate=False)), (block.block for block in plan.blocks))
        self.plan = plan
        self._calls: list[_Call] = []
        self._run: Callable[[], Any]
        self._stand_in: tuple[int, Tensor] | None = None  # the call that returns another stream, and that stream
        self._stack = ExitStack()

    def __enter__(self) -> Rerouting:
        with ExitStack() as stack:
            stack.enter_context(without_fast_path())
            stack.enter_context(self._counted())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._calls = []

    def spans(self, longest: int) -> list[BlockRange]:
        """Every span of at most so many blocks, shorter ones first, whose blocks hand the stream on as it is."""
        blocks = self.plan.blocks
        starts = ((i, i + length) for length in range(1, longest + 1) for i in range(len(blocks) - length + 1))
        return [(i, j) for i, j in starts if all(block.continues for block in blocks[i + 1 : j])]

    def record(self, run: Callable[[], Any]) -> Any:
        """What a call of the model returns, ``run``; spans are those of the latest call."""
        self._calls, self._run, self._stand_in = [], run, None
        out = self._again()
        if len(self._calls) != len(self.plan.blocks):
            raise InputError(
                f"{len(self._calls)} blocks ran where {len(self.plan.blocks)} did for the first input; give inputs "
                "that take one way"
            )
        return out

    def without(self, span: BlockRange) -> Any:
        """What the model returns if the stream skips these blocks."""
        i, j = span
        self._stand_in = j - 1, self._calls[i].x.clone()  # blocks may write to their input
        return self._again()

    def twice(self, span: BlockRange) -> Any:
        """What the model returns if these blocks run once more on what the last of them returned."""
        i, j = span
        x = self._calls[j - 1].y.clone()
        with self._uncounted():
            for call in self._calls[i:j]:
                x = run_again(self.modules, call, x)
        self._stand_in = j - 1, x
        return self._again()

    def check(self, out: Any) -> None:
        """Raise where blocks receive more than the stream from the first one, whose output the others are given here as
        it was recorded. out: what `record` returned.
        """
        self._stand_in = 0, self._calls[0].y.clone()
        try:
            same = all(map(torch.equal, tensors_in(out), tensors_in(self._again())))
        except InputError:  # steering that looks for what the first block computes
            same = False
        if not same:
            raise InputError(
                f"blocks of this {type(self.modules['']).__name__} receive more than the tokens of the block before; "
                "unsteer it, or give a model whose blocks pass tokens on"
            )

    def ends(self, span: BlockRange) -> tuple[Tensor, Tensor]:
        """The stream ``(b, n, d)`` before and after these blocks, in the recorded pass."""
        i, j = span
        first, last = self._calls[i], self._calls[j - 1]
        return self._tokens(first, first.x), self._tokens(last, last.y)

    def _tokens(self, call: _Call, x: Tensor) -> Tensor:
        return as_tokens(x, self.plan.layouts.get(call.plan.block, True))

    def _again(self) -> Any:
        self._next = 0
        return self._run()

    def _call(self, number: int, name: str, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if self._stand_in is not None and number <= self._stand_in[0]:
            known, (last, stream) = self._calls[number], self._stand_in
            return known.out if number < last else with_stream(known.out, known.returned, stream)
        x = None if self._stand_in is not None else first_tensor(args, kwargs).clone()
        with self._uncounted():
            out = original(*args, **kwargs)
        if x is not None:
            y = results_like(x, out, name)[0]
            plan = self.plan.blocks[min(number, len(self.plan.blocks) - 1)]
            self._calls.append(_Call(plan, None, x, y.clone(), args, kwargs, out=out, returned=y))
        return out
