"""A diagnosis by several processes, as torchrun starts them: each observes a share of the inputs.

Reducers keep what they find per input, and whole batches are shared out in order. The parts are put one after the
other, nothing is rounded, and the diagnosis is that of one process.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oversmooth.inputs.batches import Batch
from oversmooth.safety.errors import InputError
from oversmooth.safety.processes import are_joined
from oversmooth.trace.reducers.base import PassFacts
from oversmooth.trace.reducers.heads import MOST_REASONS, HeadNumbers
from oversmooth.trace.reducers.tokens import TokenNumbers


class Share:
    """This process's batches, and the number of its first input."""

    def __init__(self, batches: Sequence[Batch | Tensor]) -> None:
        if not are_joined():
            raise InputError("processes=True needs processes that are joined; start them with torchrun")
        rank, self.world = dist.get_rank(), dist.get_world_size()
        starts = [0, *itertools.accumulate(map(len, batches))]
        own = [index for index in range(len(batches)) if starts[index] * self.world // starts[-1] == rank]
        if not own:
            remedy = "start fewer, or give a smaller --batch"
            raise InputError(f"process {rank + 1} of {self.world} has none of the {len(batches)} batches; {remedy}")
        self.start, self.batches = starts[own[0]], [batches[index] for index in own]

    def every(self, found: Any) -> list[Any]:
        """What each process found, in the order of their shares."""
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, found)
        return parts

    def union(self, found: set[int]) -> set[int]:
        return set().union(*self.every(found))

    def gathered(
        self, facts: PassFacts, tokens: TokenNumbers, heads: HeadNumbers | None, *others: Any
    ) -> tuple[Any, ...]:
        """What all processes found, as if one had seen all inputs."""
        rows: list[dict[Any, list[Any]]] = [tokens.massive, {} if heads is None else heads.joined]
        for by_key in rows:  # their first entry is the number of an input
            by_key |= {key: [(row[0] + self.start, *row[1:]) for row in found] for key, found in by_key.items()}
        all_of = [together(list(parts)) for parts in zip(*self.every((facts, tokens, heads, *others)), strict=True)]
        if heads is not None:
            because = all_of[2].undecided_because
            all_of[2].undecided_because = {call: why[:MOST_REASONS] for call, why in because.items()}
        return dataclasses.replace(all_of[0], width=facts.width), *all_of[1:]


def together(parts: list[Any]) -> Any:
    """Arrays and lists over inputs one after the other, counts summed, of errors the largest.

    >>> together([{"a": [1], "b": 0.1}, {"a": [2], "b": 0.2}])
    {'a': [1, 2], 'b': 0.2}
    """
    one = next((part for part in parts if part is not None), None)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one)]
        return dataclasses.replace(one, **{name: together([getattr(part, name) for part in parts]) for name in names})
    if isinstance(one, dict):
        keys = dict.fromkeys(key for part in parts for key in part)
        return {key: together([part[key] for part in parts if key in part]) for key in keys}
    if isinstance(one, Tensor):
        return torch.cat(parts)
    if isinstance(one, list):
        return list(itertools.chain(*parts))
    if isinstance(one, set):
        return set().union(*parts)
    return max(parts) if isinstance(one, float) else sum(parts) if type(one) is int else one
