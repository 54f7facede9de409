"""Naming pixels: the training set lies on the device in bytes, and every step crops its batch there.

A model is tested in windows that slide over the image, at one scale or at several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.common import WATCHED, ShuffledFeed, tested
from oversmooth_papers.tasks.segmentation.augment import COLOUR_UNIFORMS, CROP_UNIFORMS, Normalise, crops, distorted
from oversmooth_papers.tasks.segmentation.data import IGNORE, Labelled, Splits
from oversmooth_papers.tasks.segmentation.model import Segmenter, model_of, plain_model_of
from oversmooth_papers.tasks.segmentation.recipe import Recipe

_AT_ONCE = {"cuda": 32, "cpu": 8}  # windows in one pass
_IMAGES = 4  # of one size, taken together


class SegmentationTask(Task):
    """``loss`` is the cross-entropy of every pixel that counts, the score the mean intersection over union.

    Smoothing is watched in the encoder, whose tokens stay as many from block to block.
    """

    recipe: Recipe
    dataset: Splits
    plain_model_of, model_of = staticmethod(plain_model_of), staticmethod(model_of)
    copies = 3  # SGD has one moment

    def activations(self) -> int:
        shape, layers = self.recipe.shape, self.recipe.shape.depth + self.recipe.decoder_layers
        tokens = 8 * shape.tokens * shape.width * layers
        return min(self.recipe.batch, self.examples) * (tokens + 3 * shape.classes * shape.image**2)

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> SegmentationFeed:  # noqa: ARG002
        return SegmentationFeed(self.recipe, self.dataset.train, device, ranks)

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
        return Evaluator(self.recipe, model, device, self.dataset)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """The middles of the first images to watch training by."""
        assert isinstance(model, Segmenter)
        side, middles, evaluator = self.recipe.crop, [], Evaluator(self.recipe, model, device, self.dataset)
        for image in self.dataset.val.images[:WATCHED]:
            whole = evaluator.ready(image[None])
            top, left = ((length - side) // 2 for length in whole.shape[2:])
            middles.append(whole[:, :, top : top + side, left : left + side])
        return Probe((torch.cat(middles),), list(model.encoder.blocks), model.encoder)

    def facts(self) -> dict[str, Any]:
        splits = self.dataset
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


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """``(classes, classes)`` int64: pixels by their class and by what was found. truth, predicted: of one shape."""
    counts = truth != IGNORE
    pairs = truth[counts].long() * classes + predicted[counts].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def mean_iou(matrix: Tensor) -> float:
    """Mean over classes of what is both in truth and found, over what is either; a class in neither is left out.

    >>> mean_iou(torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]]))  # (3/4 + 2/3) / 2
    0.7083333333333333
    """
    both = matrix.diagonal().double()
    either = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
    there = either > 0
    return float((both[there] / either[there]).mean())


def places(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin along one side: a stride apart, the last as far as it can be.

    >>> places(480, 352, 234), places(352, 352, 234)
    ([0, 128], [0])
    """
    return [*range(0, length - window, stride), length - window]


class Evaluator:
    """``evaluator.scores(final=True)``: of the model as it is now."""

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device, splits: Splits) -> None:
        self.recipe, self.model, self.device, self.splits = recipe, model, device, splits
        self.normalise = Normalise(recipe.mean, recipe.std, device)

    def scores(self, *, final: bool) -> Scores:
        """Of the images to watch by; at the end of those to test on as well, at one scale and at several."""
        splits = self.splits
        same = splits.val is splits.test
        scores = {} if same and final else scores_of(self.confusion(splits.val), "" if same else "_val")
        if not final:
            return scores
        several = self.confusion(splits.test, self.recipe.test_scales, mirrored=True)
        return {**scores_of(self.confusion(splits.test), ""), "miou_multiscale": mean_iou(several), **scores}

    def confusion(self, labelled: Labelled, scales: Sequence[float] = (1.0,), *, mirrored: bool = False) -> Tensor:
        """``(classes, classes)`` over all images; mirrored: with every image's mirror image too."""
        classes = self.recipe.shape.classes
        matrix = torch.zeros(classes, classes, dtype=torch.int64, device=self.device)
        together = _IMAGES if isinstance(labelled.images, Tensor) else 1
        with tested(self.model, self.recipe, self.device):
            for first in range(0, len(labelled), together):
                images, masks = (list(x[first : first + together]) for x in (labelled.images, labelled.masks))
                found = self.probabilities(torch.stack(images), scales, mirrored=mirrored).argmax(1)
                matrix += confusion(torch.stack(masks).to(self.device), found, classes)
        return matrix

    @torch.no_grad()
    def probabilities(self, images: Tensor, scales: Sequence[float] = (1.0,), *, mirrored: bool = False) -> Tensor:
        """``(b, 3, h, w) uint8 -> (b, classes, h, w)``, summed over scales and mirror images.

        At each scale logits are averaged where windows overlap, brought to the image's size, and made probabilities.
        """
        height, width = images.shape[2:]
        total = torch.zeros(len(images), self.recipe.shape.classes, height, width, device=self.device)
        for scale in scales:
            scaled = self.ready(images, scale)
            for flipped in (False, True) if mirrored else (False,):
                logits = self.logits(scaled.flip(-1) if flipped else scaled)
                total += _resized(logits.flip(-1) if flipped else logits, (height, width)).softmax(1)
        return total

    def ready(self, images: Tensor, scale: float = 1.0) -> Tensor:
        """Normalised and scaled, no side shorter than a window: an image that would be is enlarged until it is not."""
        x = self.normalise(images.to(self.device).float())
        height, width = x.shape[2:]
        shorter, window = min(height, width), self.recipe.crop
        factor = scale * (self.recipe.shorter / shorter if self.recipe.shorter else 1.0)
        factor = max(factor, window / shorter)
        return _resized(x, (max(window, round(factor * height)), max(window, round(factor * width))))

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """``(b, 3, h, w) -> (b, classes, h, w)``: the mean of all windows that a pixel lies in."""
        window, stride = self.recipe.crop, self.recipe.stride
        tops, lefts = (places(length, window, stride) for length in x.shape[2:])
        corners = [(top, left) for top in tops for left in lefts]
        total = x.new_zeros(len(x), self.recipe.shape.classes, *x.shape[2:])
        count = x.new_zeros(x.shape[2:])
        at_once = max(1, _AT_ONCE[self.device.type] // len(x))
        for first in range(0, len(corners), at_once):
            some = corners[first : first + at_once]
            parts = torch.cat([x[:, :, top : top + window, left : left + window] for top, left in some])
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
                out = self.model(parts).float()
            for (top, left), part in zip(some, out.split(len(x)), strict=True):
                total[:, :, top : top + window, left : left + window] += part
                count[top : top + window, left : left + window] += 1
        return total / count


def scores_of(matrix: Tensor, suffix: str) -> dict[str, float]:
    right = float(matrix.diagonal().sum() / matrix.sum())
    return {f"miou{suffix}": mean_iou(matrix), f"pixel_accuracy{suffix}": right}


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    return x if x.shape[2:] == size else F.interpolate(x, size, mode="bilinear")
