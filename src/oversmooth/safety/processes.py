"""One process or several: as torch.distributed joined them, or as torchrun says in the environment before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from oversmooth.safety.errors import InputError, reason


def are_joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """The number of this process, and how many there are, or will be."""
    if are_joined():
        return dist.get_rank(), dist.get_world_size()
    rank, world = number("RANK", 0), number("WORLD_SIZE", 1)
    if rank >= world:
        raise InputError(f"RANK is {rank} of {world} processes (WORLD_SIZE); start them with torchrun, or unset both")
    return rank, world


@contextmanager
def joined(backend: str = "gloo") -> Iterator[tuple[int, int]]:
    """Join the processes that torchrun started, as long as the block lasts; the same as `rank_and_world`."""
    rank, world = rank_and_world()
    if world < 2 or are_joined():
        yield rank, world
        return
    try:
        dist.init_process_group(backend)
    except (ValueError, RuntimeError) as error:  # torch's own errors are one or the other
        what = f"the {world} processes of WORLD_SIZE cannot be joined ({reason(error)})"
        raise InputError(f"{what}; start them with torchrun") from error
    try:
        yield rank, world
    finally:
        dist.destroy_process_group()


def number(name: str, default: int) -> int:
    """A whole number, 0 or more, that torchrun puts into the environment."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise InputError(f"{name} is {text!r} in the environment; start processes with torchrun, or unset {name}")
    return int(text)
