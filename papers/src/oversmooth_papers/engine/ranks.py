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

from oversmooth.safety.errors import InputError, reason


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


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The processes that torchrun started, joined for as long as the block lasts; or this one alone."""
    if dist.is_available() and dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    if (world := number("WORLD_SIZE", 1)) < 2:
        yield Ranks()
        return
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    except (ValueError, RuntimeError) as error:  # torch's own errors are one or the other
        what = f"the {world} processes of WORLD_SIZE cannot be joined ({reason(error)})"
        raise InputError(f"{what}; start them with torchrun") from error
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def number(name: str, default: int) -> int:
    """A whole number, 0 or more, that torchrun puts into the environment."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(f"{name} is {text!r} in the environment; start processes with torchrun, or unset {name}")
    return int(text)
