"""Small data and a small recipe for the tests of training: what a thread trains in a second."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from support.runs import train_task

from oversmooth.steering import NeuTRENO, ramp, steer
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.images.build import augment_of, model_of
from oversmooth_papers.tasks.images.data import Images, Splits
from oversmooth_papers.tasks.images.recipe import RandAugment, Recipe, Shape
from oversmooth_papers.tasks.images.task import ImagesTask

SHAPE = Shape(image=8, patch=4, classes=4, width=16, depth=2, heads=2)
RECIPE = Recipe(data="blobs", shape=SHAPE, epochs=3, warmup=1, lr=3e-3, batch=8, padding=1, rand_augment=RandAugment())


def blobs(count: int, seed: int) -> Images:
    """Noisy images whose class is the brightest quarter."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randint(90, (count, 3, 8, 8), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[:, top : top + 4, left : left + 4] += 120
    return Images(images.to(torch.uint8), labels, list("abcd"), "blobs")


def splits(count: int = 40) -> Splits:
    return Splits(blobs(count, 0), blobs(24, 1))


def train(recipe, data, **settings):
    return train_task(ImagesTask(recipe, data), **settings)


def step_of(recipe, model, images, device, ranks=None, **settings):
    """The engine's step on these images."""
    return Step(ImagesTask(recipe, Splits(images, images)), model, device, ranks, **settings)


def plain(**changes: object) -> Recipe:
    """Without augmentation, which needs care to be repeated by hand."""
    quiet = dict(rand_augment=None, mixup=0.0, cutmix=0.0, flip=0.0, padding=0, smoothing=0.1)
    return replace(RECIPE, **{**quiet, **changes})  # type: ignore[arg-type]


def by_hand(recipe, images, steps, over=0):
    """Plain torch, where the images are: the model after so many steps of the first epoch, and their losses.

    over: steps of a ramp of `steering.ramp` that raises NeuTRENO's strength to 0.6.
    """
    device = images.images.device
    model = model_of(replace(recipe, variant="plain", ramp=0.0) if over else recipe).to(device)
    rising = ramp(steer(model, NeuTRENO(0.0)), to=0.6, steps=over) if over else None
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=recipe.weight_decay)
    orders, draws = (torch.Generator(device).manual_seed(2 * recipe.seed + which) for which in (0, 1))
    order, augment = torch.randperm(len(images), generator=orders, device=device), augment_of(recipe).to(device)
    losses = []
    for step in range(steps):
        rows = order[step * recipe.batch : (step + 1) * recipe.batch]
        x, targets = augment(images.images[rows], images.labels[rows], draws)
        loss = F.cross_entropy(model(x), targets)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.param_groups[0]["lr"] = float(recipe.learning_rates(len(images) // recipe.batch)[step])
        optimiser.step()
        losses.append(float(loss.detach()))
        if rising is not None:
            rising.step()
    return model, losses
