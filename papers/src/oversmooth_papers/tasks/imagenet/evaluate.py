"""Top-1 accuracy on the images to test on, of the weights and of their average, in one pass over the images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor, nn
from torch.func import functional_call

from oversmooth.safety.untouched import in_eval_mode
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.tasks.imagenet.data import Pictures
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.imagenet.transforms import testing_transform
from oversmooth_papers.tasks.imagenet.workers import ChunkLoader

_AT_ONCE = 64


class Accuracy:
    """``accuracy.scores(final=True)``: of all images, with the model as it is now."""

    def __init__(self, recipe: Recipe, model: nn.Module, pictures: Pictures, device: torch.device, workers: int):
        self.recipe, self.model, self.pictures, self.device, self.workers = recipe, model, pictures, device, workers

    @torch.no_grad()
    def scores(self, *, final: bool) -> Scores:  # noqa: ARG002 (one test set, tested alike at all times)
        average: dict[str, Tensor] | None = getattr(self.model, "average", None)
        right = torch.zeros(2, dtype=torch.int64, device=self.device)
        with in_eval_mode(self.model):
            for images, labels in self._chunks():
                right[0] += (self._logits(images).argmax(1) == labels).sum()
                if average is not None:
                    right[1] += (self._logits(images, average).argmax(1) == labels).sum()
        plain, averaged = (right.double() / len(self.pictures)).tolist()
        return {"accuracy": plain} if average is None else {"accuracy": plain, "accuracy_ema": averaged}

    def _logits(self, images: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type)):
            return self.model(images) if weights is None else functional_call(self.model, weights, (images,))

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        on_gpu = self.device.type == "cuda"
        loader = ChunkLoader(self.pictures, testing_transform(self.recipe), self.workers, pinned=on_gpu)
        every = [(0, index, index) for index in range(len(self.pictures))]
        chunks = [tuple(every[first : first + _AT_ONCE]) for first in range(0, len(every), _AT_ONCE)]
        with closing(loader):
            loader.begin(chunks)
            for _ in chunks:
                images, labels = loader.next()
                yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
