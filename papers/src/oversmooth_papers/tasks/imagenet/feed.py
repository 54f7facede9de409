"""Batches: decoded and transformed by timm in worker processes, and mixed on the device."""

from __future__ import annotations

import atexit
import hashlib
import io
import math
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library
from oversmooth.safety.untouched import random_states
from oversmooth_papers.engine.ranks import Ranks, number
from oversmooth_papers.engine.task import Batch
from oversmooth_papers.tasks.imagenet.data import EXTRA, Sample, timm_data
from oversmooth_papers.tasks.imagenet.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

Transform = Callable[[Any], Tensor]
"""From one of Pillow's images to ``(3, side, side)``."""
CHUNK = 64
"""Images that a worker sends at once: of 224 pixels 39 MB, in shared memory."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")  # one of ImageNet's is a PNG that is called JPEG


def training_transform(recipe: Recipe) -> Transform:
    """Crop, mirror, RandAugment, normalise, erase: each image by itself."""
    data = timm_data()
    transform = data.create_transform(
        recipe.shape.image,
        is_training=True,
        color_jitter=None,  # which timm leaves out with RandAugment, and so do we without it
        auto_augment=recipe.rand_augment or None,
        interpolation=recipe.interpolation,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        re_prob=recipe.erasing,
        re_mode="pixel",
        re_count=1,
    )
    for part in transform.transforms:
        for operation in getattr(part, "ops", ()):  # RandAugment's
            if operation.aug_fn is data.auto_augment.posterize:
                operation.aug_fn = posterized
    return transform


def posterized(image: Any, bits: int, **_settings: Any) -> Any:
    """timm's operation, which asks for 0 bits at the highest magnitude: black, and since Pillow 13 an error."""
    if bits < 1:
        return image.point([0] * 256 * len(image.getbands()))
    return timm_data().auto_augment.posterize(image, bits)


def testing_transform(recipe: Recipe) -> Transform:
    """Resize and crop the middle: 256 and 224."""
    return timm_data().create_transform(
        recipe.shape.image,
        is_training=False,
        interpolation=recipe.interpolation,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop_pct=recipe.crop_ratio,
    )


Key = tuple[int, int]
"""A seed, and which image."""


class Transformed(Dataset[tuple[Tensor, int] | InputError]):
    """``transformed[seed, index]``: an image and its class; all that is drawn for it follows from the seed alone.

    So neither the number of workers nor where a run goes on changes an image.
    """

    def __init__(self, samples: Sequence[Sample], transform: Transform) -> None:
        self.samples, self.transform = samples, transform

    def __getitem__(self, key: Key) -> tuple[Tensor, int] | InputError:
        """An image that does not decode gives its error: raised by a worker, that would come inside a traceback."""
        seed, index = key
        source, label = self.samples[index]
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (timm draws from numpy's global state)
        torch.default_generator.manual_seed(seed >> 1)
        pil = import_library("PIL.Image", "decoding images", EXTRA)
        try:
            with pil.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as opened:
                image = opened.convert("RGB")
        except Exception as error:  # decoders raise whatever they like on broken files
            # Not what Pillow says of a file that it cannot name: the address of a buffer.
            why = "no known image format" if isinstance(error, pil.UnidentifiedImageError) else reason(error)
            return InputError(f"{source if isinstance(source, str) else index} does not decode ({why}); fetch it again")
        return self.transform(image), label


def batches(
    transformed: Transformed, keys: Sequence[Key], size: int, workers: int, *, pinned: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images ``(size, 3, side, side)`` and classes ``(size,)``. Closed early, it ends its workers."""
    loader: Any = DataLoader(
        transformed,
        batch_size=size,
        sampler=keys,
        num_workers=workers,
        collate_fn=_joined,
        pin_memory=pinned,
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # what a loader draws for itself is not the caller's
    )
    for batch in loader:
        if isinstance(batch, InputError):
            raise batch
        yield batch


def _joined(samples: list[Any]) -> Any:
    return next((sample for sample in samples if isinstance(sample, InputError)), None) or default_collate(samples)


def _ignore_signals(_worker: int) -> None:
    """Signals to stop go to all processes of a terminal or a job: the run saves first, and then ends its workers."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def worker_count(world: int) -> int:
    """OVERSMOOTH_WORKERS for each process, or the cores shared between those of this machine."""
    if text := os.environ.get("OVERSMOOTH_WORKERS"):
        if not text.isdecimal() or int(text) > 1024:
            raise InputError(f"OVERSMOOTH_WORKERS is {text!r} in the environment; give a whole number, 0 to 1,024")
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // number("LOCAL_WORLD_SIZE", world))


class ImagenetFeed:
    """`draw` fetches a batch from the workers and mixes it, into tensors that stay where they are."""

    def __init__(
        self, recipe: Recipe, samples: Sequence[Sample], examples: int, device: torch.device, ranks: Ranks, workers: int
    ) -> None:
        self.recipe, self.examples, self.device, self.ranks, self.workers = recipe, examples, device, ranks, workers
        self.transformed = Transformed(samples, training_transform(recipe))
        self.units_per_step = recipe.batch
        self.places = ranks.places(recipe.batch)
        self.seed, self.step, self.rows = 0, 0, torch.zeros(0, dtype=torch.int64)
        shape, own = recipe.shape, len(self.places)
        self.chunk = math.gcd(own, CHUNK)
        self.images = torch.zeros(own, shape.channels, shape.image, shape.image, device=device)
        self.targets = torch.zeros(own, shape.classes, device=device)
        self._chunks: Any = None
        atexit.register(self.close)

    def reorder(self, generator: torch.Generator) -> None:
        """Every image ``repeats`` times in a row, up to the epoch's end, as timm's RepeatAugSampler has it."""
        self.seed, repeats = _drawn_seed(generator), self.recipe.repeats
        order = torch.randperm(len(self.transformed.samples), generator=torch.Generator().manual_seed(self.seed))
        self.rows = order[: -(-self.examples // repeats)].repeat_interleave(repeats)[: self.examples]
        self.seek(0)

    def seek(self, step: int) -> None:
        """What lies before this step is not decoded."""
        self.step = step
        self.close()

    def close(self) -> None:
        """Workers end; the next `draw` starts others."""
        if self._chunks is not None:
            self._chunks.close()
        self._chunks = None

    def draw(self, generator: torch.Generator) -> None:
        seed = _drawn_seed(generator)
        with random_states():  # without workers images are augmented here, and Mixup draws from numpy's one state
            if self._chunks is None:
                pinned = self.device.type == "cuda"
                self._chunks = batches(self.transformed, self._keys(), self.chunk, self.workers, pinned=pinned)
            labels = []
            for images in self.images.split(self.chunk):
                fetched, classes = next(self._chunks)
                images.copy_(fetched, non_blocking=True)
                labels.append(classes.to(self.device, non_blocking=True))
            self._mix(torch.cat(labels), seed)
        self.step += 1

    def batch(self, step: Tensor) -> Batch:  # noqa: ARG002 (the batch that was drawn is the step's)
        """Images ``(b, 3, side, side)`` and soft targets ``(b, classes)``."""
        return self.images, self.targets

    def _keys(self) -> list[tuple[int, int]]:
        """Of this process's images from this step to the epoch's end, each with a seed of its own."""
        steps = torch.arange(self.step, self.examples // self.recipe.batch)
        places = (steps[:, None] * self.recipe.batch + self.places).flatten()
        seeds = (hashlib.blake2b(f"{self.seed} {place}".encode(), digest_size=8) for place in places.tolist())
        numbers = (int.from_bytes(seed.digest(), "little") for seed in seeds)
        return list(zip(numbers, self.rows[places].tolist(), strict=True))

    def _mix(self, labels: Tensor, seed: int) -> None:
        """Images are mixed in place, and targets are written.

        A batch has ``mix_parts`` parts, each with a draw of its own. With several processes each has its share of
        them, and they are the same parts: `Ranks.places` of a part of a part is that of a smaller one.
        """
        recipe, ranks, timm = self.recipe, self.ranks, timm_data()
        if not recipe.mixes:
            self.targets.copy_(timm.mixup.mixup_target(labels, recipe.shape.classes, 1.0, recipe.smoothing))
            return
        mixup = timm.Mixup(
            mixup_alpha=recipe.mixup,
            cutmix_alpha=recipe.cutmix,
            label_smoothing=recipe.smoothing,
            num_classes=recipe.shape.classes,
        )
        first, parts = ranks.rank * recipe.mix_parts // ranks.world, max(1, recipe.mix_parts // ranks.world)
        for part in range(parts):
            rows = Ranks(part, parts).places(len(labels)).to(self.device)
            np.random.seed([seed & 0xFFFFFFFF, seed >> 32, first + part, 0])  # noqa: NPY002
            mixed, targets = mixup(self.images.index_select(0, rows), labels.index_select(0, rows))
            self.images.index_copy_(0, rows, mixed)
            self.targets.index_copy_(0, rows, targets)


def _drawn_seed(generator: torch.Generator) -> int:
    """A whole number below 2^63 that moves the generator on."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
