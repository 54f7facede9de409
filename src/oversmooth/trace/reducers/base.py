"""What a reducer is: it turns the arrays of a pass into small ones on the device, and those into numbers at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator
from oversmooth.trace.plans import BlockPlan, Site

K = TypeVar("K", bound=Hashable)


@dataclass
class PassFacts:
    """What is known of all inputs once a pass has ended."""

    inputs: int = 0
    """As the stream has them; each packed text is one input."""
    packed: int = 0
    """How many of them came packed with others."""
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """``(inputs,)``: valid tokens of each."""
    width: int = 0
    """Features of a token."""
    unread: set[Literal["mask_unread", "special_unread"]] = field(default_factory=set)
    """What arguments say of tokens and could not be used."""
    input_dependent: set[int] = field(default_factory=set)
    """Calls in which the factor on attention's output differs between inputs."""
    causal: bool | None = None
    """Of the attention that was captured; None: none was."""


class Reducer:
    """Subclass it, and override what is needed. Arrays are the model's own: reduce them at once, never write to them.

    ``site`` and ``attend`` are called in the order of the pass, for every batch; ``finish`` once, at the end.
    """

    attention = False
    """Whether it wants attention, which is then captured in every layer."""
    STATE: tuple[str, ...] = ()
    """The attributes that hold what was found so far: where blocks are streamed, a stopped pass resumes from them."""
    result: Any = None
    """What it found, once the pass has ended."""
    visible: Tensor | None = None
    """``(inputs, n)``, of the batch that runs: all tokens that attention sees, special ones as well; None: all."""
    special: Tensor | None = None
    """``(inputs, n)``, of the batch that runs: the tokens that masks leave out as special; None: none."""

    def begin(self, start: int, inputs: int) -> None:
        """A batch runs; where blocks are streamed, once for every block.

        Args:
            start: number of its first input.
            inputs: how many there are; each packed text is one.
        """

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        """The residual stream at one point.

        Args:
            site: which.
            x: ``(inputs, n, d)``: tokens.
            mask: ``(inputs, n)``: the valid ones; None: all.
        """

    def attend(self, call: int, block: BlockPlan, A: AttentionOperator) -> None:
        """The attention of one layer.

        Args:
            call: how many blocks ran before.
            block: the block it is in.
            A: ``(inputs, heads, n, n)``, as an operator.
        """

    def finish(self, facts: PassFacts) -> None:
        """The pass has ended; set ``result``.

        Args:
            facts: what is known of all inputs.
        """


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU, by one copy per dtype and device."""
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        alike[tensor.dtype, tensor.device].append(index)
    found: dict[int, Tensor] = {}
    for indices in alike.values():
        packed = torch.cat([tensors[index].detach().reshape(-1) for index in indices]).cpu()
        parts = packed.split([tensors[index].numel() for index in indices])
        found |= {index: part.reshape(tensors[index].shape) for index, part in zip(indices, parts, strict=True)}
    return [found[index] for index in range(len(tensors))]


def fetched(tables: Mapping[K, Sequence[Tensor]]) -> dict[K, Tensor]:
    """``(..., inputs)`` per key, in float64 on the CPU, from parts ``(..., batch)``; each device is waited for once."""
    host = iter(fetch([part for parts in tables.values() for part in parts]))
    return {key: torch.cat([next(host).double() for _ in parts], dim=-1) for key, parts in tables.items() if parts}


class Together:
    """Arrays that wait until enough of one shape have come, and are then reduced together, which takes a GPU hardly
    longer.

    ``reduce`` makes columns ``(batch, ...)`` by name of arrays ``(batch, ...)``; ``waiting`` are the bytes of first
    arrays that wait for others, by device: elsewhere none wait, as nothing is gained by it.
    """

    def __init__(self, reduce: Callable[..., dict[str, Tensor]], waiting: Mapping[str, int]) -> None:
        self.reduce, self.waiting = reduce, waiting
        self._alike: dict[Hashable, list[tuple[dict[str, Tensor], tuple[Tensor | None, ...]]]] = defaultdict(list)

    def add(self, row: dict[str, Tensor], x: Tensor, *others: Tensor | None) -> None:
        """Have columns added to a row, now or when `finish` is called."""
        arrays = (x, *others)
        alike = self._alike[tuple(None if one is None else (one.shape[1:], one.dtype, one.device) for one in arrays)]
        alike.append((row, arrays))
        if sum(first.nbytes for _, (first, *_) in alike if first is not None) >= self.waiting.get(x.device.type, 0):
            self.finish()

    def finish(self) -> None:
        """Reduce everything that waits."""
        waiting, self._alike = self._alike, defaultdict(list)
        for alike in waiting.values():
            rows, several = zip(*alike, strict=True)
            lengths = [len(arrays[0]) for arrays in several]
            columns = zip(*several, strict=True)
            found = self.reduce(*(None if parts[0] is None else torch.cat(parts) for parts in columns))
            for name, column in found.items():
                for row, part in zip(rows, column.split(lengths), strict=True):
                    row[name] = part
