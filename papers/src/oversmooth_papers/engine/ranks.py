"""One process or many: which part of each batch this one has, and what all must agree on.

Under torchrun every process draws the same order and the same random numbers and takes its part of each batch, so many
processes make the gradients that one would.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from oversmooth.safety.errors import InputError


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes: logs, checkpoints, the model."""
        return self.rank == 0

    def places(self, batch: int) -> Tensor:
        """Which images of each batch are this process's, ``(batch / world,)``.

        Some from the front and their partners from the back: Mixup and CutMix pair image i with image batch − 1 − i,
        and so the pairs of a part are those of the whole.
        """
        if self.world == 1:
            return torch.arange(batch)
        half, left = divmod(batch, 2 * self.world)
        if left or not half:
            remedy = f"give a batch that {2 * self.world} divides, such as {2 * self.world * max(1, half)}"
            what = f"a batch of {batch} does not split into {self.world} even parts"
            raise InputError(f"{what}; {remedy}, or start fewer processes")
        front = torch.arange(self.rank * half, (self.rank + 1) * half)
        return torch.cat([front, (batch - 1 - front).flip(0)])

    def highest(self, *values: float) -> list[float]:
        """Of all processes, which all ask at the same place."""
        if self.world == 1:
            return list(values)
        highest = torch.tensor(values, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return [float(value) for value in highest.tolist()]

    def mean(self, values: Tensor) -> Tensor:
        if self.world > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values / self.world

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()
