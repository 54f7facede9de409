"""Searches for radii, of several layers at a time: where they wait for work of one kind, it is done for all at once.

A search is a generator. It yields what it needs, `LargestEigenvalue` or `AllEigenvalues`, is sent the answer, and
returns what it found. A GPU takes hardly longer for the systems of many layers than for one, and small matrices share
the cores beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.theory.errors import eigenvalues_and_errors
from oversmooth.theory.krylov import Extremal, extremal
from oversmooth.theory.systems import CausalBlocks, JoinedHeads, Matrices

R = TypeVar("R")
MOST_ENTRIES = 1 << 29
"""Entries of Krylov bases, and of what is joined for them, held at once: 2 GiB in float32."""


@dataclass(frozen=True)
class LargestEigenvalue:
    """The largest ``|base + θ|`` of every item of a system."""

    system: JoinedHeads | Matrices | CausalBlocks
    base: float
    tolerance: float
    most: int
    first: int = 16
    restarts: int = 0
    group: Tensor | None = None
    """``(items,)``, numbers of the groups in which items compete, below that of the items where systems are joined;
    None: each stands alone."""
    vectors: bool = False
    seed: int = 0

    @property
    def kind(self) -> Hashable:
        """What is equal where two can be sought together."""
        if isinstance(self.system, CausalBlocks):  # which share their weights
            return id(self)
        rest = {name: value for name, value in vars(self).items() if name not in ("system", "group")}
        return type(self.system), self.system.kind, self.group is None, *rest.values()

    @classmethod
    def answers(cls, wanted: Sequence[LargestEigenvalue]) -> list[Extremal]:
        """The answers, within the memory set aside for bases."""
        first, answers, waiting = wanted[0], list[Extremal](), list(wanted)
        while waiting:
            items = [one.system.items for one in waiting]
            most = MOST_ENTRIES // (first.most * first.system.size + first.system.entries)
            count = max(1, sum(sum(items[: n + 1]) <= most for n in range(len(items))))
            some, waiting = waiting[:count], waiting[count:]
            system = some[0].system if count == 1 else type(first.system).cat([one.system for one in some])  # type: ignore
            ends = torch.tensor([0, *items[:count]]).cumsum(0).tolist()
            groups = [one.group + end for one, end in zip(some, ends, strict=False) if one.group is not None]
            found = replace(first, system=system, group=torch.cat(groups) if groups else None)._found()
            answers += [found.select(slice(a, b)) for a, b in itertools.pairwise(ends)]
        return answers

    def _found(self) -> Extremal:
        how: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in ("system", "base")}
        how["independent"] = not isinstance(self.system, CausalBlocks)  # which are never joined
        return extremal(self.system, lambda theta, reach, _: (self.base + theta).abs() + reach, **how)


@dataclass(frozen=True)
class AllEigenvalues:
    """All eigenvalues of a matrix ``(m, m)``, and how far rounding to ε of its norm may move each, ``(m,)``."""

    M: Tensor
    eps: float

    @property
    def kind(self) -> Hashable:
        return self.M.shape, self.M.dtype, self.M.device, self.eps

    @classmethod
    def answers(cls, wanted: Sequence[AllEigenvalues]) -> list[tuple[Tensor, Tensor]]:
        values, errors = eigenvalues_and_errors(torch.stack([one.M for one in wanted]), wanted[0].eps)
        return list(zip(values, errors, strict=True))


Search = Generator[Any, Any, R]
"""Yields `LargestEigenvalue` and `AllEigenvalues`, is sent `Extremal` and ``(values, errors)``."""


@torch.no_grad()
def side_by_side(searches: Sequence[Search[R]]) -> list[R]:
    """What the searches return. An error is raised inside the search that it is of."""
    answers: dict[int, Any] = dict.fromkeys(range(len(searches)))
    found: dict[int, R] = {}
    while answers:
        alike: dict[Hashable, dict[int, Any]] = {}
        for index, answer in answers.items():
            try:
                wanted = searches[index].send(answer)
                alike.setdefault((type(wanted), wanted.kind), {})[index] = wanted
            except StopIteration as end:
                found[index] = end.value
        answers = {}
        for some in alike.values():
            try:
                several = list(some.values())
                answers.update(zip(some, several[0].answers(several), strict=True))
            except InputError:
                for index, wanted in some.items():
                    try:
                        (answers[index],) = wanted.answers([wanted])
                    except InputError as error:
                        searches[index].throw(error)
    return [found[index] for index in range(len(searches))]
