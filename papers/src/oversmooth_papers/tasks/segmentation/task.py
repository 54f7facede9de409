"""Naming pixels: the training set lies on the device in bytes, and every step crops its batch there."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.task import Batch, Forward, Probe
from oversmooth_papers.tasks.common import DataTask, ShuffledFeed
from oversmooth_papers.tasks.segmentation.augment import COLOUR_UNIFORMS, CROP_UNIFORMS, Normalise, crops, distorted
from oversmooth_papers.tasks.segmentation.data import IGNORE, Labelled, Splits
from oversmooth_papers.tasks.segmentation.evaluate import Evaluator
from oversmooth_papers.tasks.segmentation.model import Segmenter, model_of, plain_model_of
from oversmooth_papers.tasks.segmentation.recipe import Recipe

WATCHED = 8
"""Images on which smoothing is watched."""


class SegmentationTask(DataTask[Recipe, Splits]):
    """``loss`` is the cross-entropy of every pixel that counts, the score the mean intersection over union.

    Smoothing is watched in the encoder, whose tokens stay as many from block to block.
    """

    examples_are: ClassVar[str] = "images"
    copies = 3  # SGD has one moment

    @property
    def examples(self) -> int:
        return len(self.given.train)

    def plain_model(self) -> Segmenter:
        return plain_model_of(self.recipe)

    def model(self) -> Segmenter:
        return model_of(self.recipe)

    def activations(self) -> int:
        shape, layers = self.recipe.shape, self.recipe.shape.depth + self.recipe.decoder_layers
        tokens = 8 * shape.tokens * shape.width * layers
        return min(self.recipe.batch, self.examples) * (tokens + 3 * shape.classes * shape.image**2)

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> SegmentationFeed:  # noqa: ARG002
        return SegmentationFeed(self.recipe, self.given.train, device, ranks)

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

    def evaluation(self, model: nn.Module, device: torch.device) -> Evaluator:
        return Evaluator(self.recipe, model, device, self.given)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """The middles of the first images to watch training by."""
        assert isinstance(model, Segmenter)
        side, middles, evaluator = self.recipe.crop, [], Evaluator(self.recipe, model, device, self.given)
        for image in self.given.val.images[:WATCHED]:
            whole = evaluator.ready(image[None])
            top, left = ((length - side) // 2 for length in whole.shape[2:])
            middles.append(whole[:, :, top : top + side, left : left + side])
        return Probe((torch.cat(middles),), list(model.encoder.blocks), model.encoder)

    def facts(self) -> dict[str, Any]:
        splits = self.given
        counts = {"test_images": len(splits.test), "val_images": len(splits.val), "train_images": len(splits.train)}
        return {**counts, "train_size": list(splits.train.images[0].shape[1:])}


class SegmentationFeed(ShuffledFeed):
    """Bytes on the device, cropped with random numbers of the step's."""

    def __init__(self, recipe: Recipe, labelled: Labelled, device: torch.device, ranks: Ranks) -> None:
        super().__init__(recipe, len(labelled), device, ranks)
        assert isinstance(labelled.images, Tensor), "splits train on images of one size"
        assert isinstance(labelled.masks, Tensor)
        self.images, self.masks = labelled.images.to(device), labelled.masks.to(device)
        self.everyone = torch.arange(recipe.batch, device=device)
        self.normalise = Normalise(recipe.mean, recipe.std, device)
        numbers = CROP_UNIFORMS + (COLOUR_UNIFORMS if recipe.colours else 0)
        self.uniform = torch.zeros(recipe.batch, numbers, device=device)

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
        recipe, rows, uniform = self.recipe, self.rows(step, places), self.uniform.index_select(0, places)
        images, masks = self.images.index_select(0, rows), self.masks.index_select(0, rows)
        sizes = dict(side=recipe.crop, scales=recipe.scales, flip=recipe.flip)
        pixels, labels, inside = crops(images, masks, uniform[:, :CROP_UNIFORMS], **sizes)
        if recipe.colours:
            pixels = distorted(pixels, uniform[:, CROP_UNIFORMS:])
        return self.normalise(pixels) * inside[:, None], labels
