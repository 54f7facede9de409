"""How well a Segmenter names pixels: in windows that slide over the image, at one scale or at several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety.untouched import in_eval_mode
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.tasks.segmentation.augment import Normalise
from oversmooth_papers.tasks.segmentation.data import IGNORE, Labelled, Splits
from oversmooth_papers.tasks.segmentation.recipe import Recipe

_AT_ONCE = {"cuda": 32, "cpu": 8}  # windows in one pass
_IMAGES = 4  # of one size, taken together


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """``(classes, classes)`` int64: pixels by their class and by what was found. truth, predicted: of one shape."""
    counts = truth != IGNORE
    pairs = truth[counts].long() * classes + predicted[counts].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def mean_iou(matrix: Tensor) -> float:
    """Mean over classes of what is both in truth and found, over what is either.

    A class that is in neither is left out.

    >>> mean_iou(torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]]))  # (3/4 + 2/3) / 2
    0.7083333333333333
    """
    both = matrix.diagonal().double()
    either = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
    there = either > 0
    return float((both[there] / either[there]).mean())


def pixel_accuracy(matrix: Tensor) -> float:
    """Share of pixels whose class was found."""
    return float(matrix.diagonal().sum() / matrix.sum())


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
        """Of the images to watch by, whose scores have names of their own unless there are no others.

        At the end of those to test on as well, at one scale and at several.
        """
        splits = self.splits
        same = splits.val is splits.test
        scores = {} if same and final else _scores(self.confusion(splits.val), "" if same else "_val")
        if not final:
            return scores
        several = self.confusion(splits.test, self.recipe.test_scales, mirrored=True)
        return {**_scores(self.confusion(splits.test), ""), "miou_multiscale": mean_iou(several), **scores}

    def confusion(self, labelled: Labelled, scales: Sequence[float] = (1.0,), *, mirrored: bool = False) -> Tensor:
        """``(classes, classes)`` over all images; mirrored: with every image's mirror image too."""
        classes = self.recipe.shape.classes
        matrix = torch.zeros(classes, classes, dtype=torch.int64, device=self.device)
        together = _IMAGES if isinstance(labelled.images, Tensor) else 1
        with in_eval_mode(self.model):
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


def _scores(matrix: Tensor, suffix: str) -> dict[str, float]:
    return {f"miou{suffix}": mean_iou(matrix), f"pixel_accuracy{suffix}": pixel_accuracy(matrix)}


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    return x if x.shape[2:] == size else F.interpolate(x, size, mode="bilinear")
