"""Images decoded and augmented by worker processes, in chunks, each image by a seed of its own.

What becomes of an image depends on the epoch's seed and on its place in the epoch alone: not on which worker takes it,
nor on how many there are. So a run that goes on repeats what it would have seen.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import random
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import number
from oversmooth_papers.tasks.imagenet.data import Pictures
from oversmooth_papers.tasks.imagenet.transforms import Transform

Key = tuple[int, int, int]
"""The epoch's seed, the place in the epoch, and which image stands there."""
VARIABLE = "OVERSMOOTH_WORKERS"
_CHUNK = 64  # images; of 224 pixels 39 MB, in shared memory
_AHEAD = 2  # chunks of each worker that wait
_MOST = 1024
_PARENT_DEATH_SIGNAL = 1  # Linux's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Unreadable:
    """What a worker has to say in place of images: an error that crosses over loses its words in a traceback."""

    sentence: str


class Chunks(Dataset[tuple[Tensor, Tensor] | Unreadable]):
    """``chunks[keys]``: images ``(k, 3, side, side)`` and labels ``(k,)``."""

    def __init__(self, pictures: Pictures, transform: Transform) -> None:
        self.pictures, self.transform = pictures, transform

    def __getitem__(self, keys: tuple[Key, ...]) -> tuple[Tensor, Tensor] | Unreadable:
        with contextlib.nullcontext() if get_worker_info() is not None else _state_kept():
            try:
                images = torch.stack([self._one(*key) for key in keys])
            except InputError as error:
                return Unreadable(str(error))
        return images, torch.from_numpy(self.pictures.labels[[index for _, _, index in keys]])

    def _one(self, seed: int, place: int, index: int) -> Tensor:
        _seed_all(seed, place)
        return self.transform(self.pictures.image(index))


class ChunkLoader:
    """``loader.begin(keys)``, then `next` for each chunk; workers live as long as the loader does, or until `close`."""

    def __init__(self, pictures: Pictures, transform: Transform, workers: int, *, pinned: bool) -> None:
        self._keys = _Keys()
        self._chunks: Iterator[Any] = iter(())
        self._running: list[Iterator[Any]] = []
        self._end = weakref.finalize(self, _end_workers, self._running, os.getpid())
        settings: dict[str, Any] = dict(persistent_workers=True, prefetch_factor=_AHEAD) if workers else {}
        self._loader: DataLoader[Any] = DataLoader(
            Chunks(pictures, transform),
            batch_size=None,  # a chunk is one item
            sampler=self._keys,
            num_workers=workers,
            pin_memory=pinned,
            worker_init_fn=_worker_begins,
            generator=torch.Generator(),  # what a loader draws for itself is not the caller's
            **settings,
        )

    def begin(self, keys: list[tuple[Key, ...]]) -> None:
        """Workers start on these chunks, and leave what they were at."""
        assert self._end.alive, "a loader that was closed has no workers"
        self._keys.chunks = keys
        self._chunks = iter(self._loader)
        if not self._running:
            # What is registered last runs first: torch, as it registers with the first iterator over pinned memory, may
            # wait 5 seconds for each worker that nobody told to end.
            atexit.register(self._end)
        self._running[:] = [self._chunks]

    def next(self) -> tuple[Tensor, Tensor]:
        """The next chunk's images and labels."""
        chunk = next(self._chunks)
        if isinstance(chunk, Unreadable):
            raise InputError(chunk.sentence)
        return chunk

    def close(self) -> None:
        """Workers end, wherever they are; there is no next chunk."""
        self._end()
        atexit.unregister(self._end)
        self._chunks = iter(())


def _end_workers(running: list[Iterator[Any]], process: int) -> None:
    """Not in a fork of the process, whose workers they are not."""
    while running and os.getpid() == process:
        getattr(running.pop(), "_shutdown_workers", lambda: None)()  # what torch does as the last reference goes


class _Keys:
    """What workers are asked for, whatever that is now."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Key, ...]] = []

    def __iter__(self) -> Iterator[tuple[Key, ...]]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)


def chunk_size(batch: int) -> int:
    """The largest part of a batch that a worker makes at once.

    >>> chunk_size(1024), chunk_size(96), chunk_size(7)
    (64, 48, 7)
    """
    return next(size for size in range(min(batch, _CHUNK), 0, -1) if batch % size == 0)


def worker_count(world: int) -> int:
    """OVERSMOOTH_WORKERS for each process, or the cores shared between those of this machine."""
    if text := os.environ.get(VARIABLE):
        if not text.isdecimal() or int(text) > _MOST:
            raise InputError(f"{VARIABLE} is {text!r} in the environment; give a whole number, 0 to {_MOST:,}")
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, number("LOCAL_WORLD_SIZE", world)))


def _seed_all(seed: int, place: int) -> None:
    """Everything that transforms draw from. torch's generator of the CPU alone: others are none of theirs."""
    mixed = int.from_bytes(hashlib.blake2b(f"{seed} {place}".encode(), digest_size=8).digest(), "little")
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)  # noqa: NPY002 (timm draws from numpy's global state)
    torch.default_generator.manual_seed(mixed >> 1)


@contextlib.contextmanager
def _state_kept() -> Iterator[None]:
    """Without workers the caller's own random numbers are left as they were."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def _worker_begins(_number: int) -> None:
    """Signals to stop go to all processes of a terminal or a job: the run saves first, and then ends its workers.

    Where it ends without a word, they are ended with it.
    """
    for name in ("SIGINT", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_the_run_says_so, args=(os.getppid(),), daemon=True).start()
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _end_when_the_run_says_so(run: int) -> None:
    """SIGTERM counts when it comes from the process that started this one, which then waits for it to end."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != run:
        pass
    os._exit(0)
