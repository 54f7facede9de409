"""What a reducer is: it turns the arrays of a pass into small ones on the device, and those into numbers at the end."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    unread: set[str] = field(default_factory=set)
    """What was given about tokens and could not be used."""
    varies: set[int] = field(default_factory=set)
    """Calls in which the factor on attention's output differs between inputs."""
    causal: bool | None = None
    """Of the attention that was captured; None: none was."""


class Reducer:
    """Subclass it, and override what is needed. Arrays are the model's own: reduce them at once, never write to them.

    ``site`` and ``attend`` are called in the order of the pass, for every batch; ``finish`` once, at the end.
    """

    attention = False
    """Whether it wants attention, which is then captured in every layer."""
    result: Any = None
    """What it found, once the pass has ended."""

    def begin(self, start: int, inputs: int) -> None:
        """A batch runs.

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


def fetched(tables: Mapping[K, Sequence[Tensor]]) -> dict[K, Tensor]:
    """``(..., inputs)`` per key, in float64 on the CPU, from parts ``(..., batch)``; the device is waited for once.

    Args:
        tables: by key, parts on one device, which are joined along their last axis.
    """
    joined = {key: torch.cat(list(parts), dim=-1).detach().double() for key, parts in tables.items() if parts}
    if not joined:
        return {}
    host = torch.cat([x.flatten() for x in joined.values()]).cpu()
    parts = host.split([x.numel() for x in joined.values()])
    return {key: part.view(x.shape) for (key, x), part in zip(joined.items(), parts, strict=True)}
