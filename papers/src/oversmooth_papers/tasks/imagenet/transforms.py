"""What timm does to images: its transforms to train with and to test with, its order of an epoch, its Mixup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.imagenet.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

Transform = Callable[[Any], Tensor]
"""From one of Pillow's images to ``(3, side, side)``."""
_ROUND = 256  # of the images of an epoch, in timm's sampler


def timm_data() -> Any:
    """The part of timm that makes batches."""
    return import_library("timm.data", "training at ImageNet's size", "oversmooth[imagenet]")


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


class Order:
    """``order(seed)``: which images an epoch has and in which order, ``(examples,)``, as timm's sampler repeats them.

    With 3 repeats an epoch sees a third of all images, each 3 times in a row, and has as many steps as ever.
    """

    def __init__(self, count: int, repeats: int) -> None:
        self.sampler = timm_data().distributed_sampler.RepeatAugSampler(
            range(count),
            num_replicas=1,
            rank=0,
            num_repeats=repeats,
            selected_round=_ROUND if repeats > 1 and count >= _ROUND else 0,
        )
        self.examples = len(self.sampler)

    def __call__(self, seed: int) -> Tensor:
        self.sampler.set_epoch(seed)
        return torch.tensor(list(self.sampler))


class Mixing:
    """``mixing(images, labels, seed)``: soft targets ``(b, classes)``; images are mixed in place.

    A batch has ``recipe.mix_parts`` parts, each with a draw of its own. With several processes each has its share of
    them, and they are the same parts: `Ranks.places` of a part of a part is that of a smaller one.
    """

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        self.recipe = recipe
        self.parts = list(range(ranks.rank * recipe.mix_parts // ranks.world, self._last(ranks)))
        self._kept: dict[tuple[int, int], Tensor] = {}
        self.mixup = None
        if recipe.mixes:
            self.mixup = timm_data().Mixup(
                mixup_alpha=recipe.mixup,
                cutmix_alpha=recipe.cutmix,
                prob=1.0,
                switch_prob=0.5,
                mode="batch",
                label_smoothing=recipe.smoothing,
                num_classes=recipe.shape.classes,
            )

    def _last(self, ranks: Ranks) -> int:
        parts, world = self.recipe.mix_parts, ranks.world
        if self.recipe.mixes and parts % world and world % parts:
            raise InputError(
                f"{world} processes do not share the {parts} parts of a batch that are mixed; start {parts} of them, "
                "or give another mix_parts in the recipe"
            )
        return ranks.rank * parts // world + max(1, parts // world)

    def _rows(self, number: int, labels: Tensor) -> Tensor:
        """Of a part, on the device once and for all: to send them would wait for the step that runs."""
        key = number, len(labels)
        if key not in self._kept:
            self._kept[key] = Ranks(number, len(self.parts)).places(len(labels)).to(labels.device)
        return self._kept[key]

    def __call__(self, images: Tensor, labels: Tensor, seed: int) -> Tensor:
        recipe = self.recipe
        if self.mixup is None:
            return timm_data().mixup.mixup_target(labels, recipe.shape.classes, 1.0, recipe.smoothing)
        targets = torch.empty(len(labels), recipe.shape.classes, device=labels.device)
        for number, part in enumerate(self.parts):
            rows = self._rows(number, labels)
            with numpy_seeded(seed, part):
                mixed, soft = self.mixup(images.index_select(0, rows), labels.index_select(0, rows))
            images.index_copy_(0, rows, mixed)
            targets.index_copy_(0, rows, soft)
        return targets


@contextmanager
def numpy_seeded(*seed: int) -> Iterator[None]:
    """timm's Mixup draws from numpy's one global state, which is put back after it."""
    before = np.random.get_state()  # noqa: NPY002 (there is no other way to tell timm what to draw)
    np.random.seed([word for number in seed for word in (number & 0xFFFFFFFF, number >> 32)])  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
