"""Batches from workers into tensors that stay where they are, and mixed there."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.task import Batch
from oversmooth_papers.tasks.imagenet.data import Pictures
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.imagenet.transforms import Mixing, Order, training_transform
from oversmooth_papers.tasks.imagenet.workers import ChunkLoader, Key, chunk_size


class ImagenetFeed:
    """`draw` fetches a batch; on a GPU it is copied there beside the step before it."""

    def __init__(self, recipe: Recipe, pictures: Pictures, device: torch.device, ranks: Ranks, workers: int) -> None:
        self.recipe, self.device = recipe, device
        self.order = Order(len(pictures), recipe.repeats)
        self.units_per_step = recipe.batch
        self.places = ranks.places(recipe.batch)
        self.chunk = chunk_size(len(self.places))
        self.mixing = Mixing(recipe, ranks)
        self.seed, self.step = 0, 0
        self.rows = torch.zeros(0, dtype=torch.int64)
        self._begun = False
        on_gpu = device.type == "cuda"
        self.loader = ChunkLoader(pictures, training_transform(recipe), workers, pinned=on_gpu)
        shape, own = recipe.shape, len(self.places)
        self.images = torch.zeros(own, shape.channels, shape.image, shape.image, device=device)
        self.targets = torch.zeros(own, shape.classes, device=device)
        self._arriving = torch.zeros_like(self.images)
        self._labels = torch.zeros(own, dtype=torch.int64, device=device)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._free = torch.cuda.Event() if on_gpu else None
        """When what arrived has been taken over, and the next may come."""

    def reorder(self, generator: torch.Generator) -> None:
        self.seed = drawn_seed(generator)
        self.rows = self.order(self.seed)
        self.seek(0)

    def seek(self, step: int) -> None:
        """What lies before this step is not decoded."""
        self.step, self._begun = step, False

    def draw(self, generator: torch.Generator) -> None:
        seed = drawn_seed(generator)
        if not self._begun:
            self.loader.begin(self._keys())
            self._begun = True
        self._fetch()
        self.step += 1
        targets = self.mixing(self._arriving, self._labels, seed)
        self.images.copy_(self._arriving)
        self.targets.copy_(targets)
        if self._free is not None:
            self._free.record(torch.cuda.current_stream(self.device))

    def batch(self, step: Tensor) -> Batch:  # noqa: ARG002 (the batch that was drawn is the step's)
        """Images ``(b, 3, side, side)`` and soft targets ``(b, classes)``."""
        return self.images, self.targets

    def _keys(self) -> list[tuple[Key, ...]]:
        """Of the chunks from this step to the epoch's end."""
        steps = self.order.examples // self.recipe.batch
        chunks = []
        for step in range(self.step, steps):
            for places in (step * self.recipe.batch + self.places).split(self.chunk):
                indices = self.rows[places].tolist()
                chunks.append(tuple((self.seed, *key) for key in zip(places.tolist(), indices, strict=True)))
        return chunks

    def _fetch(self) -> None:
        if self._stream is None:
            self._take()
            return
        # The step before may still run: it reads `images`, while the next batch comes into `_arriving`.
        assert self._free is not None
        self._stream.wait_event(self._free)
        with torch.cuda.stream(self._stream):
            self._take()
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _take(self) -> None:
        for first in range(0, len(self.places), self.chunk):
            images, labels = self.loader.next()
            self._arriving[first : first + self.chunk].copy_(images, non_blocking=True)
            self._labels[first : first + self.chunk].copy_(labels, non_blocking=True)


def drawn_seed(generator: torch.Generator) -> int:
    """A whole number below 2^63 that moves the generator on.

    Of a GPU's generator it is a hash of its state, which lies here: to read a number from there would wait for the step
    that runs.
    """
    if generator.device.type == "cpu":
        return int(torch.randint(2**63 - 1, (), generator=generator))
    state = generator.get_state().numpy().tobytes()
    torch.rand(1, generator=generator, device=generator.device)
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little") >> 1
