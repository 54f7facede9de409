"""Classifying images: the training set lies on the device in bytes, and every step augments its batch there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth_papers import compiling
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.common import WATCHED, ShuffledFeed
from oversmooth_papers.tasks.images import data, mixing
from oversmooth_papers.tasks.images.augment import AugmentDraws
from oversmooth_papers.tasks.images.build import augment_of, model_of, plain_model_of
from oversmooth_papers.tasks.images.data import Images, Splits
from oversmooth_papers.tasks.images.evaluate import Evaluator
from oversmooth_papers.tasks.images.recipe import Recipe


class ImagesTask(Task):
    """``loss`` is the cross-entropy with soft targets, the score the accuracy on the test images."""

    recipe: Recipe
    dataset: Splits
    plain_model_of, model_of = staticmethod(plain_model_of), staticmethod(model_of)

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        super().__init__(recipe, splits)
        recipe.check_fits(splits.test)
        self.train = data.share(splits.train, recipe.share, recipe.share_seed)
        self.test = splits.test

    @property
    def examples(self) -> int:
        return len(self.train)

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> ImagesFeed:
        return ImagesFeed(self.recipe, self.train, device, ranks, compiled=compiled)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        x, targets = batch
        return F.cross_entropy(forward(x), targets)

    def blank(self, batch: int, device: torch.device) -> Batch:
        shape = self.recipe.shape
        x = torch.zeros(batch, shape.channels, shape.image, shape.image, device=device)
        return x, torch.zeros(batch, dtype=torch.int64, device=device)

    def evaluation(self, model: nn.Module, device: torch.device) -> Evaluator:
        return Evaluator(self.recipe, model, device, test=self.test.to(device))

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        images = self.test.images[:WATCHED].to(device).float()
        return Probe((augment_of(self.recipe).to(device).normalise(images),), list(model.blocks))  # type: ignore[arg-type]

    def data(self) -> Iterable[Tensor | str]:
        return self.train.images, self.train.labels, self.test.images, self.test.labels

    def facts(self) -> dict[str, Any]:
        return {"test_images": len(self.test)}


class ImagesFeed(ShuffledFeed):
    """Bytes on the device, in an order of the epoch's, augmented with random numbers of the step's."""

    def __init__(
        self, recipe: Recipe, images: Images, device: torch.device, ranks: Ranks, *, compiled: bool = False
    ) -> None:
        super().__init__(recipe, len(images), device, ranks)
        self.data = images.to(device)
        self.augment = augment_of(recipe).to(device)
        self.draws = self.augment.draw(recipe.batch, torch.Generator(device).manual_seed(0))
        self.remark: str | None = None  # what a user should know of it
        self.transform = self.transformed
        if compiled:
            self.reorder(torch.Generator(device).manual_seed(0))
            first = self._transform_inputs(torch.zeros(1, dtype=torch.int64, device=device))
            self.transform, self.remark = compiling.checked_augmentation(self.transformed, *first)

    def draw(self, generator: torch.Generator) -> None:
        self.draws.refill(generator)

    def batch(self, step: Tensor) -> Batch:
        """Images ``(b, c, h, w)`` and soft targets ``(b, classes)``."""
        return self.transform(*self._transform_inputs(step))

    def _transform_inputs(self, step: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = self.rows(step)
        uniform, normal = self.draws.uniform, self.draws.normal
        if self.ranks.world > 1:
            own = uniform[: -mixing.UNIFORMS].view(self.recipe.batch, -1)[self.places]
            uniform, normal = torch.cat([own.flatten(), uniform[-mixing.UNIFORMS :]]), normal[self.places]
        return self.data.images.index_select(0, rows), self.data.labels.index_select(0, rows), uniform, normal

    def transformed(self, images: Tensor, labels: Tensor, uniform: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        return self.augment.transform(images, labels, AugmentDraws(uniform, normal))
