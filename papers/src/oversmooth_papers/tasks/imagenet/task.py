"""Classifying images at ImageNet's size: workers decode and augment, the device mixes and trains."""

from __future__ import annotations

import atexit
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from oversmooth.safety.model_state import random_states
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.common import WATCHED, begun, tested
from oversmooth_papers.tasks.imagenet.data import Splits, Transformed, batches, library, transform_of, worker_count
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import Block, Keep, ViT

CHUNK = 64  # images that a worker sends at once: of 224 pixels 39 MB, in shared memory
AVERAGED = "model-ema.safetensors"  # the averaged weights of a finished run, in the form of its model


class DroppingBlock(Block):
    """What attention or the MLP adds is left out with probability ``drop``, and is else larger by 1 / (1 − drop)."""

    def __init__(self, shape: Shape, drop: float) -> None:
        super().__init__(shape.width, shape.heads, shape.hidden, shape.qkv_bias, shape.eps)
        self.drop = drop

    def forward(self, x: Tensor, *, keep: Keep | None = None) -> Tensor:
        keep = keep or (lambda _name, value: value)
        x = keep("middle", x + keep("attn", self.thinned(self.attn(keep("norm1", self.norm1(x))))))
        return x + keep("mlp", self.thinned(self.mlp(keep("norm2", self.norm2(x)))))

    def thinned(self, added: Tensor) -> Tensor:
        """``(b, n, d)``: one draw for each image, in training."""
        if not self.training or not self.drop:
            return added
        stays = added.new_empty(len(added), 1, 1).bernoulli_(1 - self.drop)
        return added * stays.div_(1 - self.drop)


def plain_model_of(recipe: Recipe) -> ViT:
    """Unsteered, on the CPU, with random weights: a ViT with stochastic depth, which grows evenly from block to block.

    Weights, their names and what is computed in evaluation are those of `ViT`.
    """
    model, shape = ViT(recipe.shape), recipe.shape
    for number, plain in enumerate(model.blocks):
        block = DroppingBlock(shape, recipe.drop_path * number / max(1, shape.depth - 1))
        block.load_state_dict(plain.state_dict())
        model.blocks[number] = block
    return model


def model_of(recipe: Recipe) -> ViT:
    return begun(recipe, lambda: plain_model_of(recipe))


class ImagenetTask(Task):
    """``loss`` is the cross-entropy with soft targets, the score the accuracy on the test images.

    The model that is saved has the plain weights, whose accuracy is what DeiT's authors report; their average has an
    accuracy and a file of its own.
    """

    recipe: Recipe
    dataset: Splits
    plain_model_of, model_of = staticmethod(plain_model_of), staticmethod(model_of)
    copies = 5  # the average too

    def __init__(self, recipe: Recipe, splits: Splits, workers: int | None = None) -> None:
        """workers: processes that decode, for each that trains; by default OVERSMOOTH_WORKERS, or the cores."""
        super().__init__(recipe, splits)
        self.workers = worker_count() if workers is None else workers
        self.average: dict[str, Tensor] = {}  # of the weights, by name, while a model is trained

    def has_data_of(self, other: Task) -> bool:  # noqa: ARG002 (its feed has workers of its own)
        return False

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> ImagenetFeed:  # noqa: ARG002
        return ImagenetFeed(self, device, ranks)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        images, targets = batch
        return F.cross_entropy(forward(images), targets)

    def blank(self, batch: int, device: torch.device) -> Batch:
        shape = self.recipe.shape
        images = torch.zeros(batch, shape.channels, shape.image, shape.image, device=device)
        return images, torch.full((batch, shape.classes), 1 / shape.classes, device=device)

    def beside(self, model: nn.Module) -> dict[str, Tensor]:
        if self.recipe.ema:
            self.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        return self.average

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        """``average = decay · average + (1 − decay) · weights``, in place."""
        if self.average:
            own: list[Tensor] = [model.get_parameter(name) for name in self.average]
            torch._foreach_lerp_(list(self.average.values()), own, 1 - self.recipe.ema)

    def save_beside(self, model: nn.Module, folder: Path) -> None:
        if self.average:
            averaged = self.model()
            averaged.load_state_dict(model.state_dict() | self.average)
            save_model(averaged, self.recipe, folder / AVERAGED)

    def evaluation(self, model: nn.Module, device: torch.device) -> Accuracy:
        return Accuracy(self, model, device)

    def tested(self, places: Sequence[int], size: int, workers: int, device: torch.device) -> Iterator[Batch]:
        """Test images and their classes, on the device."""
        test = self.dataset.test
        transformed = Transformed(test, transform_of(self.recipe.preprocessing()), range(len(test)))
        with random_states():
            for images, labels in batches(transformed, places, size, workers, device):
                yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """Test images at even distances, which are of many classes."""
        total = len(self.dataset.test)
        count = min(WATCHED, total)
        images, _ = next(self.tested([place * total // count for place in range(count)], count, 0, device))
        return Probe((images,), list(model.blocks))  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        return {"test_images": len(self.dataset.test), "train_images": len(self.dataset.train)}


class Accuracy:
    """``accuracy.scores(final=True)``: top-1, of the weights and of their average, in one pass over all images."""

    def __init__(self, task: ImagenetTask, model: nn.Module, device: torch.device) -> None:
        self.task, self.model, self.device = task, model, device

    def scores(self, *, final: bool) -> Scores:  # noqa: ARG002 (one test set, tested alike at all times)
        task, total = self.task, len(self.task.dataset.test)
        weights = {"accuracy": {}, "accuracy_ema": task.average} if task.average else {"accuracy": {}}
        right = dict.fromkeys(weights, 0.0)
        with tested(self.model, task.recipe, self.device):
            for images, labels in task.tested(range(total), CHUNK, task.workers, self.device):
                for name, own in weights.items():
                    right[name] += (functional_call(self.model, own, (images,)).argmax(1) == labels).sum()
        return {name: float(count) / total for name, count in right.items()}


class ImagenetFeed:
    """`draw` fetches a batch from the workers and mixes it, into tensors that stay where they are."""

    def __init__(self, task: ImagenetTask, device: torch.device, ranks: Ranks) -> None:
        self.task, self.recipe, self.device, self.ranks = task, task.recipe, device, ranks
        self.transform, self.units_per_step = transform_of(self.recipe.augmentation()), self.recipe.batch
        self.places, self.seed, self.order = ranks.places(self.recipe.batch), 0, torch.zeros(0)
        images, targets = task.blank(len(self.places), device)
        self.images, self.targets = images, targets
        self.chunk = math.gcd(len(images), CHUNK)
        self._chunks: Iterator[tuple[Tensor, Tensor]] = iter(())
        atexit.register(self.seek, 0)  # ends the workers: Python would send them SIGTERM, which they ignore, and wait

    def reorder(self, generator: torch.Generator) -> None:
        """Every image ``repeats`` times in a row, up to the epoch's end, as timm's RepeatAugSampler has it."""
        self.seed, examples, repeats = _drawn_seed(generator), self.task.examples, self.recipe.repeats
        order = torch.randperm(examples, generator=torch.Generator().manual_seed(self.seed))
        self.order = order[: -(-examples // repeats)].repeat_interleave(repeats)[:examples]
        self.seek(0)

    def seek(self, step: int) -> None:
        """What lies before this step is not decoded."""
        steps = torch.arange(step, self.task.examples // self.recipe.batch)
        places = (steps[:, None] * self.recipe.batch + self.places).flatten().tolist()
        images = Transformed(self.task.dataset.train, self.transform, self.order, self.seed)
        self._chunks = batches(images, places, self.chunk, self.task.workers, self.device)

    def draw(self, generator: torch.Generator) -> None:
        seed, labels = _drawn_seed(generator), []
        with random_states():  # without workers images are augmented here, and Mixup draws from numpy's one state
            for images in self.images.split(self.chunk):
                fetched, classes = next(self._chunks)
                images.copy_(fetched, non_blocking=True)
                labels.append(classes.to(self.device, non_blocking=True))
            self.mix(torch.cat(labels), seed)

    def batch(self, step: Tensor) -> Batch:  # noqa: ARG002 (the batch that was drawn is the step's)
        """Images ``(b, 3, side, side)`` and soft targets ``(b, classes)``."""
        return self.images, self.targets

    def mix(self, labels: Tensor, seed: int) -> None:
        """Mix images in place, and write targets.

        A batch has ``mix_parts`` parts, each with a draw of its own. With several processes each has its share of
        them, and they are the same parts: `Ranks.places` of a part of a part is that of a smaller one.
        """
        recipe, ranks, timm = self.recipe, self.ranks, library("timm.data")
        if not recipe.mixes:
            self.targets.copy_(timm.mixup.mixup_target(labels, recipe.shape.classes, 1.0, recipe.smoothing))
            return
        smoothed = dict(label_smoothing=recipe.smoothing, num_classes=recipe.shape.classes)
        mixup = timm.Mixup(recipe.mixup, recipe.cutmix, **smoothed)
        first, parts = ranks.rank * recipe.mix_parts // ranks.world, max(1, recipe.mix_parts // ranks.world)
        for part in range(parts):
            rows = Ranks(part, parts).places(len(labels)).to(self.device)
            np.random.seed([seed & 0xFFFFFFFF, seed >> 32, first + part])  # noqa: NPY002
            self.images[rows], self.targets[rows] = mixup(self.images[rows], labels[rows])


def _drawn_seed(generator: torch.Generator) -> int:
    """A whole number below 2^63 that moves the generator on."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
