"""Classifying images at ImageNet's size: workers decode and augment, the device mixes and trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.imagenet.data import Splits
from oversmooth_papers.tasks.imagenet.evaluate import Accuracy
from oversmooth_papers.tasks.imagenet.feed import ImagenetFeed
from oversmooth_papers.tasks.imagenet.model import (
    DroppingViT,
    averaged,
    model_of,
    move_average,
    plain_model_of,
    start_average,
)
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.imagenet.transforms import Order, testing_transform
from oversmooth_papers.tasks.imagenet.workers import worker_count

WATCHED = 8
"""Test images on which smoothing is watched."""
AVERAGED = "model-ema.safetensors"
"""The averaged weights of a finished run, in the form of its model."""


class ImagenetTask(Task):
    """``loss`` is the cross-entropy with soft targets, the score the accuracy on the test images.

    The model that is saved has the plain weights, whose accuracy is what DeiT's authors report; their average has an
    accuracy and a file of its own.
    """

    examples_are: ClassVar[str] = "images"

    def __init__(self, recipe: Recipe, splits: Splits, workers: int | None = None) -> None:
        """workers: processes that decode, for each that trains; by default OVERSMOOTH_WORKERS, or the cores."""
        recipe.check_fits(splits)
        self.recipe: Recipe = recipe
        self.splits, self.workers = splits, workers

    def _workers(self, world: int) -> int:
        return worker_count(world) if self.workers is None else self.workers

    @property
    def examples(self) -> int:
        return Order(len(self.splits.train), self.recipe.repeats).examples

    def plain_model(self) -> DroppingViT:
        return plain_model_of(self.recipe)

    def model(self) -> DroppingViT:
        return model_of(self.recipe)

    def check_memory(self, device: torch.device) -> None:
        # Weights, gradients, two moments and the average; on a CPU what a step leaves for its way back too.
        shape, batch = self.recipe.shape, min(self.recipe.batch, len(self.splits.train))
        activations = 8 * 4 * batch * shape.tokens * shape.width * shape.depth
        shape.check_fits(5, activations if device.type == "cpu" else 0)

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> ImagenetFeed:  # noqa: ARG002
        return ImagenetFeed(self.recipe, self.splits.train, device, ranks, self._workers(ranks.world))

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        images, targets = batch
        return F.cross_entropy(forward(images), targets)

    def blank(self, batch: int, device: torch.device) -> Batch:
        shape = self.recipe.shape
        images = torch.zeros(batch, shape.channels, shape.image, shape.image, device=device)
        return images, torch.full((batch, shape.classes), 1 / shape.classes, device=device)

    def beside(self, model: nn.Module) -> dict[str, Tensor]:
        return start_average(model) if self.recipe.ema else {}

    def after_update(self, model: nn.Module) -> None:
        if self.recipe.ema:
            move_average(model, self.recipe.ema)

    def save_beside(self, model: nn.Module, folder: Path) -> None:
        if self.recipe.ema:
            with averaged(model):
                save_model(model, self.recipe, folder / AVERAGED)

    def evaluation(self, model: nn.Module, device: torch.device) -> Accuracy:
        return Accuracy(self.recipe, model, self.splits.test, device, self._workers(1))

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """Test images at even distances, which are of many classes."""
        test, transform = self.splits.test, testing_transform(self.recipe)
        count = min(WATCHED, len(test))
        images = torch.stack([transform(test.image(number * len(test) // count)) for number in range(count)])
        return Probe((images.to(device),), list(model.blocks))  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        return {"test_images": len(self.splits.test), "train_images": len(self.splits.train)}
