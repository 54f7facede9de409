"""Classifying images at ImageNet's size: workers decode and augment, the device mixes and trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from oversmooth.safety.randomness import seeded
from oversmooth.safety.untouched import in_eval_mode, random_states
from oversmooth.steering import steer
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.imagenet.data import Sample, Splits
from oversmooth_papers.tasks.imagenet.feed import (
    CHUNK,
    ImagenetFeed,
    Transformed,
    batches,
    testing_transform,
    worker_count,
)
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import Block, Keep, ViT

WATCHED = 8
"""Test images on which smoothing is watched."""
AVERAGED = "model-ema.safetensors"
"""The averaged weights of a finished run, in the form of its model."""
_ROUND = 256  # of the images of an epoch, in timm's RepeatAugSampler


class DroppingBlock(Block):
    """What attention or the MLP adds is left out with probability ``drop``, and is else larger by 1 / (1 − drop)."""

    def __init__(self, shape: Shape, drop: float) -> None:
        super().__init__(shape.width, shape.heads, shape.hidden, shape.qkv_bias, shape.eps)
        self.drop = drop

    def forward(self, x: Tensor, *, keep: Keep | None = None) -> Tensor:
        if not self.training or not self.drop:
            return super().forward(x, keep=keep)
        keep = keep or (lambda _name, value: value)
        x = keep("middle", x + keep("attn", self._thinned(self.attn(keep("norm1", self.norm1(x))))))
        return x + keep("mlp", self._thinned(self.mlp(keep("norm2", self.norm2(x)))))

    def _thinned(self, added: Tensor) -> Tensor:
        """``(b, n, d)``: one draw for each image."""
        stays = added.new_empty(len(added), 1, 1).bernoulli_(1 - self.drop)
        return added * stays.div_(1 - self.drop)


class DroppingViT(ViT):
    """A ViT with stochastic depth. Weights, their names and what is computed in evaluation are those of `ViT`."""

    average: dict[str, Tensor] | None = None
    """Of the weights, while it is trained; no part of its state dict."""

    def __init__(self, shape: Shape, drop_path: float) -> None:
        super().__init__(shape)
        for number, plain in enumerate(self.blocks):
            block = DroppingBlock(shape, drop_path * number / max(1, shape.depth - 1))
            block.load_state_dict(plain.state_dict())
            self.blocks[number] = block


def plain_model_of(recipe: Recipe) -> DroppingViT:
    """Unsteered, on the CPU, with random weights."""
    return DroppingViT(recipe.shape, recipe.drop_path)


def model_of(recipe: Recipe) -> DroppingViT:
    """On the CPU, with the weights that the seed gives on any machine; the caller's random state is left alone."""
    with seeded(recipe.seed):
        model = plain_model_of(recipe)
        if methods := recipe.methods():
            steer(model, methods)
    return model


@contextmanager
def averaged(model: DroppingViT) -> Iterator[None]:
    """The model with the average in place of its weights, which it has again afterwards."""
    own, average = dict(model.named_parameters()), model.average or {}
    before = {name: own[name].detach().clone() for name in average}
    try:
        model.load_state_dict(average, strict=False)
        yield
    finally:
        model.load_state_dict(before, strict=False)


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
        """With repeats a whole number of 256, as in timm, and as many steps as without."""
        count = len(self.splits.train)
        return count // _ROUND * _ROUND if self.recipe.repeats > 1 and count >= _ROUND else count

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
        samples = self.splits.train
        return ImagenetFeed(self.recipe, samples, self.examples, device, ranks, self._workers(ranks.world))

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        images, targets = batch
        return F.cross_entropy(forward(images), targets)

    def blank(self, batch: int, device: torch.device) -> Batch:
        shape = self.recipe.shape
        images = torch.zeros(batch, shape.channels, shape.image, shape.image, device=device)
        return images, torch.full((batch, shape.classes), 1 / shape.classes, device=device)

    def beside(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, DroppingViT)
        if self.recipe.ema:
            model.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        return model.average or {}

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        """``average = decay · average + (1 − decay) · weights``, in place."""
        if self.recipe.ema:
            assert isinstance(model, DroppingViT)
            assert model.average is not None
            weights = dict(model.named_parameters())
            own: list[Tensor] = [weights[name] for name in model.average]
            torch._foreach_lerp_(list(model.average.values()), own, 1 - self.recipe.ema)

    def save_beside(self, model: nn.Module, folder: Path) -> None:
        if self.recipe.ema:
            assert isinstance(model, DroppingViT)
            with averaged(model):
                save_model(model, self.recipe, folder / AVERAGED)

    def evaluation(self, model: nn.Module, device: torch.device) -> Accuracy:
        return Accuracy(self.recipe, model, self.splits.test, device, self._workers(1))

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """Test images at even distances, which are of many classes."""
        test = self.splits.test
        count = min(WATCHED, len(test))
        keys = [(0, number * len(test) // count) for number in range(count)]
        with random_states():
            images, _ = next(batches(Transformed(test, testing_transform(self.recipe)), keys, count, 0))
        return Probe((images.to(device),), list(model.blocks))  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        return {"test_images": len(self.splits.test), "train_images": len(self.splits.train)}


class Accuracy:
    """``accuracy.scores(final=True)``: top-1, of the weights and of their average, in one pass over all images."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, samples: Sequence[Sample], device: torch.device, workers: int
    ) -> None:
        self.recipe, self.model, self.samples, self.device, self.workers = recipe, model, samples, device, workers

    @torch.no_grad()
    def scores(self, *, final: bool) -> Scores:  # noqa: ARG002 (one test set, tested alike at all times)
        average: dict[str, Tensor] | None = getattr(self.model, "average", None)
        weights = {"accuracy": {}} if average is None else {"accuracy": {}, "accuracy_ema": average}
        right = dict.fromkeys(weights, 0)
        transformed = Transformed(self.samples, testing_transform(self.recipe))
        keys = [(0, index) for index in range(len(self.samples))]
        pinned = self.device.type == "cuda"
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.autocasts(self.device.type))
        with in_eval_mode(self.model), random_states(), autocast:
            for batch in batches(transformed, keys, CHUNK, self.workers, pinned=pinned):
                images, labels = (part.to(self.device, non_blocking=True) for part in batch)
                for name, own in weights.items():
                    right[name] += (functional_call(self.model, own, (images,)).argmax(1) == labels).sum()
        return {name: float(count) / len(self.samples) for name, count in right.items()}
