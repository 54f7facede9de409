"""One process or many: which part of each batch this one has, and what all must agree on.

Under torchrun every process draws the same order and the same random numbers and takes its part of each batch, so many
processes make the gradients that one would.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from oversmooth.errors import InputError


@dataclass(frozen=True)
class Ranks:
    """This process's place among all."""

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
        if batch < 2 * self.world:
            raise InputError(
                f"{self.world} processes are more than the pairs in a batch of {batch}; "
                f"start at most {max(1, batch // 2)}, or give a larger batch"
            )
        if batch % (2 * self.world):
            raise InputError(
                f"a batch of {batch} does not split into {self.world} even parts; "
                f"give a batch that {2 * self.world} divides, such as {batch - batch % (2 * self.world)}"
            )
        half = batch // (2 * self.world)
        front = torch.arange(self.rank * half, (self.rank + 1) * half)
        return torch.cat([front, (batch - 1 - front).flip(0)])

    def agree(self, stop: bool) -> bool:
        """Whether any process wants to stop; all ask at the same place."""
        if self.world == 1:
            return stop
        said = torch.tensor([float(stop)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(said)
        return bool(said > 0)

    def mean(self, values: Tensor) -> Tensor:
        """Over all processes."""
        if self.world > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values / self.world

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The processes that torchrun started, joined for as long as the block lasts; or this one alone."""
    if dist.is_available() and dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2:
        yield Ranks()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
