"""Naming pixels: the training set lies on the device in bytes, and every step crops its batch there."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oversmooth.safety.machine import check_fits
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.segmentation.augment import (
    COLOUR_UNIFORMS,
    CROP_UNIFORMS,
    Normalise,
    crops,
    distorted,
)
from oversmooth_papers.tasks.segmentation.data import IGNORE, Labelled, Splits
from oversmooth_papers.tasks.segmentation.evaluate import Evaluator, MeanIoU
from oversmooth_papers.tasks.segmentation.model import Segmenter, model_of, plain_model_of
from oversmooth_papers.tasks.segmentation.recipe import Recipe

WATCHED = 8
"""Images on which smoothing is watched."""


class SegmentationTask(Task):
    """``loss`` is the cross-entropy of every pixel that counts, the score the mean intersection over union.

    Smoothing is watched in the encoder, whose tokens stay as many from block to block.
    """

    examples_are: ClassVar[str] = "images"

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        recipe.check_fits(splits)
        self.recipe: Recipe = recipe
        self.splits = splits

    @property
    def examples(self) -> int:
        return len(self.splits.train)

    def plain_model(self) -> Segmenter:
        return plain_model_of(self.recipe)

    def model(self) -> Segmenter:
        return model_of(self.recipe)

    def check_memory(self, device: torch.device) -> None:
        # Weights, gradients and momentum; on a CPU what a step leaves for its way back too, by a low estimate.
        shape, layers = self.recipe.shape, self.recipe.shape.depth + self.recipe.decoder_layers
        batch = min(self.recipe.batch, len(self.splits.train))
        activations = 4 * batch * (8 * shape.tokens * shape.width * layers + 3 * shape.classes * shape.image**2)
        check_fits(
            3 * 4 * self.recipe.parameters + (activations if device.type == "cpu" else 0),
            f"a Segmenter of {self.recipe.parameters:,} weights, in batches of {batch}, has and",
            "give a smaller one, or a smaller batch",
        )

    def has_data_of(self, other: Task) -> bool:
        return isinstance(other, SegmentationTask) and other.splits is self.splits

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> SegmentationFeed:  # noqa: ARG002
        return SegmentationFeed(self.recipe, self.splits.train, device, ranks)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        """The sum over this process's pixels, over the number that the whole batch has for each process.

        So the mean over processes is the mean over the batch's pixels, however many are ignored in which part.
        """
        images, labels, pixels = batch
        counts = labels != IGNORE
        # Not torch's cross_entropy: over images it adds up in any order on a GPU.
        logarithms = forward(images).float().log_softmax(1)
        own = logarithms.gather(1, labels.where(counts, 0)[:, None])[:, 0]
        return -own.where(counts, 0).sum() / pixels

    def blank(self, batch: int, device: torch.device) -> Batch:
        side = self.recipe.crop
        labels = torch.zeros(batch, side, side, dtype=torch.int64, device=device)
        pixels = torch.tensor(float(labels.numel()), device=device)
        return torch.zeros(batch, 3, side, side, device=device), labels, pixels

    def evaluation(self, model: nn.Module, device: torch.device) -> MeanIoU:
        return MeanIoU(Evaluator(self.recipe, model, device), self.splits)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """The middles of the first images to watch training by."""
        assert isinstance(model, Segmenter)
        side, middles, evaluator = self.recipe.crop, [], Evaluator(self.recipe, model, device)
        for image in self.splits.val.images[:WATCHED]:
            whole = evaluator.ready(image[None])
            top, left = ((length - side) // 2 for length in whole.shape[2:])
            middles.append(whole[:, :, top : top + side, left : left + side])
        return Probe((torch.cat(middles),), list(model.encoder.blocks), model.encoder)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"test_images": len(self.splits.test), "val_images": len(self.splits.val)}
        train = self.splits.train.images[0].shape
        return {**facts, "train_images": len(self.splits.train), "train_size": [train[1], train[2]]}


class SegmentationFeed:
    """Bytes on the device, in an order of the epoch's, cropped with random numbers of the step's."""

    def __init__(self, recipe: Recipe, labelled: Labelled, device: torch.device, ranks: Ranks) -> None:
        assert isinstance(labelled.images, Tensor), "splits train on images of one size"
        assert isinstance(labelled.masks, Tensor)
        self.recipe, self.ranks, self.device = recipe, ranks, device
        self.images, self.masks = labelled.images.to(device), labelled.masks.to(device)
        self.units_per_step = recipe.batch
        self.places = ranks.places(recipe.batch).to(device)
        self.everyone = torch.arange(recipe.batch, device=device)
        self.normalise = Normalise(recipe.mean, recipe.std, device)
        numbers = CROP_UNIFORMS + (COLOUR_UNIFORMS if recipe.colours else 0)
        self.uniform = torch.zeros(recipe.batch, numbers, device=device)
        self.order = torch.zeros(len(labelled), dtype=torch.int64, device=device)

    def reorder(self, generator: torch.Generator) -> None:
        self.order.copy_(torch.randperm(len(self.order), generator=generator, device=self.device))

    def draw(self, generator: torch.Generator) -> None:
        self.uniform.uniform_(generator=generator)

    @torch.no_grad()
    def batch(self, step: Tensor) -> Batch:
        """Images ``(b, 3, crop, crop)``, labels ``(b, crop, crop)``, and how many pixels count in the whole batch, as
        many as each process has on average.
        """
        images, labels = self._part(step, self.places)
        counted = labels if self.ranks.world == 1 else self._part(step, self.everyone)[1]
        pixels = (counted != IGNORE).sum().clamp(min=1) / self.ranks.world
        return images, labels, pixels

    def _part(self, step: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        recipe = self.recipe
        rows = self.order.index_select(0, step * recipe.batch + places)
        uniform = self.uniform.index_select(0, places)
        pixels, labels, inside = crops(
            self.images.index_select(0, rows),
            self.masks.index_select(0, rows),
            uniform[:, :CROP_UNIFORMS],
            side=recipe.crop,
            scales=recipe.scales,
            flip=recipe.flip,
        )
        if recipe.colours:
            pixels = distorted(pixels, uniform[:, CROP_UNIFORMS:])
        return self.normalise(pixels) * inside[:, None], labels
