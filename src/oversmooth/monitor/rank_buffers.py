"""The first inputs of a training batch at every depth, kept for their ranks in arrays that CUDA graphs can write to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oversmooth.trace import DepthMetrics


@dataclass(eq=False)
class RankBuffer:
    """Those of one depth, in arrays of their own: what the training has is never written to."""

    number: int
    tokens: Tensor  # (inputs, n, d), float32
    mask: Tensor | None
    captured: bool = False  # whether a CUDA graph writes here: then it stays


@dataclass
class RankBuffers:
    """Those of all depths. Which one of a depth the last batch wrote to, only the device knows where CUDA graphs are
    replayed: so they have numbers, which go with the numbers of the batch.
    """

    inputs: int
    kept: dict[int, list[RankBuffer]] = field(default_factory=dict)  # by depth
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def keep(self, depth: int, x: Tensor, mask: Tensor | None, flag: Tensor | None) -> int:
        """The number of the buffer that tokens ``(batch, n, d)`` are written to; 0: none.

        mask: ``(batch, n)``: not 0 for valid ones; None: all. flag: while a CUDA graph is captured: whether to write,
        on the device.
        """
        if not self.inputs:
            return 0
        x, mask = x[: self.inputs], None if mask is None else mask[: self.inputs] != 0
        kept = self.kept.setdefault(depth, [])
        fits = (one for one in kept if one.tokens.shape == x.shape and (one.mask is None) == (mask is None))
        if (buffer := next(fits, None)) is None:
            if flag is not None:  # nothing can be allocated here that outlives the capture
                return 0
            buffer = _allocated(x, mask, next(self.numbers))
            kept[:] = [*(one for one in kept if one.captured), buffer]
        buffer.captured |= flag is not None
        buffer.tokens.copy_(x if flag is None else torch.where(flag, x.float(), buffer.tokens))
        if mask is not None and buffer.mask is not None:
            buffer.mask.copy_(mask if flag is None else torch.where(flag, mask, buffer.mask))
        return buffer.number

    def ranks(self, numbers: Sequence[float], names: Sequence[str]) -> dict[str, list[float]]:
        """Metrics of rank by depth, given the number of each one's buffer; empty where some depth has none."""
        by_number = {one.number: one for kept in self.kept.values() for one in kept}
        depths = DepthMetrics(ranks=self.inputs, absolute=False)
        for place, number in enumerate(numbers):
            if (buffer := by_number.get(int(number))) is None:
                return {}
            depths.numbers.update(place, buffer.tokens, buffer.mask)
        depths.finish()
        return depths.means(names)


def _allocated(x: Tensor, mask: Tensor | None, number: int) -> RankBuffer:
    """While the compiler warms up for CUDA graphs, what this thread allocates lies in a pool of theirs, in which
    nothing may stay; what another thread allocates does not.
    """

    def made() -> RankBuffer:
        with torch.inference_mode(False):  # or no other pass could write here
            valid = None if mask is None else torch.zeros(mask.shape, dtype=torch.bool, device=mask.device)
            return RankBuffer(number, torch.zeros(x.shape, dtype=torch.float32, device=x.device), valid)

    if not x.is_cuda:
        return made()
    with ThreadPoolExecutor(1) as elsewhere:
        buffer = elsewhere.submit(made).result()
    torch.cuda.synchronize(x.device)  # that thread's stream has filled it before this one's writes
    return buffer
