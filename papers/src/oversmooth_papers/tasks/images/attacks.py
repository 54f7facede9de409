"""Adversarial images in the L∞ ball: FGSM (Goodfellow et al. 2015) and PGD (Madry et al. 2018), untargeted.

Pixels lie in [0, 1] and ε is in their units, such as 1/255: whatever normalises them is part of the function that is
attacked. What is climbed is the cross-entropy of the label, with gradients in the precision of the pixels (float32, or
float64 where they are): no autocast, no TF32, the model as it evaluates. The model comes back as it was, flags and
gradients included, and so does the random state, after an error too.

Not a certificate: an attack that fails shows no robustness, and both fail where gradients vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.precision import float32_products
from oversmooth.safety.untouched import in_eval_mode
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws

ATTACKS = ("fgsm", "pgd")
STEPS = 20
_STEP_SHARE = 2.5  # of ε / steps: far enough to cross the ball, as PGD's authors chose
_AT_ONCE = {"cuda": 250, "cpu": 50}  # images; a ViT-Ti of 257 tokens keeps about 40 MB per image for its gradient
Function = Callable[[Tensor], Tensor]
Told = Callable[[int, int, str], None]
"""Told how many images are done, of how many, and at which ε."""


def fgsm(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, normalise: Function | None = None
) -> Tensor:
    """``(n, c, h, w), (n,) -> (n, c, h, w)``: one step of ε along the gradient's sign, clipped to [0, 1].

    Arguments are those of `pgd`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    >>> adversarial = fgsm(model, torch.full((1, 3, 2, 2), 0.5), torch.tensor([0]), epsilon=0.1)
    >>> round(float((adversarial - 0.5).abs().max()), 4)
    0.1
    """
    return pgd(model, images, labels, epsilon, 1, epsilon, random_start=False, normalise=normalise)


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    steps: int = STEPS,
    step_size: float | None = None,
    restarts: int = 1,
    random_start: bool = True,
    generator: torch.Generator | None = None,
    *,
    normalise: Function | None = None,
) -> Tensor:
    """``(n, c, h, w), (n,) -> (n, c, h, w)``: steps along the gradient's sign, each projected to the ball and [0, 1].

    Of several restarts each image keeps its worst: one that is misclassified, else that of the highest loss. So more
    restarts, drawn from the same generator, never leave more images right.

    Args:
        model: from normalised images to ``(n, classes)`` logits
        images: ``(n, c, h, w)``: bytes, or floats in [0, 1]
        labels: ``(n,)``: the right classes
        epsilon: radius of the ball, in units of pixels in [0, 1]
        steps: how many, 1 or more
        step_size: of each; by default 2.5 · epsilon / steps
        restarts: how often it is begun anew
        random_start: begin at a uniformly random point of the ball, not at the image
        generator: of the random starts; by default a new one with seed 0
        normalise: from pixels in [0, 1] to what the model takes; without it the model takes pixels
    """
    radius, step = _checked_steps(epsilon, steps, step_size, restarts, random_start)
    draws = generator or torch.Generator().manual_seed(0)
    with _attacked(model, normalise, *_checked(model, images, labels)) as (logits, pixels, classes):
        worst, fooled = pixels, torch.zeros_like(classes, dtype=torch.bool)
        highest = pixels.new_full(classes.shape, -torch.inf)
        for _ in range(restarts):
            # On the generator's own device: numbers of the same generator are the same wherever the model is.
            uniform = torch.rand(pixels.shape, generator=draws, device=draws.device) if random_start else None
            x = _climbed(logits, pixels, classes, uniform, radius, steps, step)
            with torch.no_grad():
                out = logits(x)
            loss, fools = F.cross_entropy(out, classes, reduction="none"), out.argmax(1) != classes
            worse = (fools & ~fooled) | ((fools == fooled) & (loss > highest))
            worst = torch.where(worse[:, None, None, None], x, worst)
            fooled, highest = fooled | fools, torch.where(worse, loss, highest)
        return worst


def under_attack(
    model: nn.Module,
    normalise: Function | None,
    images: Tensor,
    labels: Tensor,
    epsilons: Sequence[float],
    attack: str = "pgd",
    *,
    steps: int = STEPS,
    step_size: float | None = None,
    restarts: int = 1,
    random_start: bool = True,
    seed: int = 0,
    batch: int | None = None,
    progress: Told | None = None,
) -> dict[float, float]:
    """Share of images that stay right, by ε. An image that is misclassified as it is counts as wrong at every ε.

    The random starts of an image belong to it by its number: batches, devices and more restarts do not change them.

    Args:
        model, normalise, images, labels: as in `pgd`
        epsilons: radii, in units of pixels in [0, 1]; 0 is the clean accuracy
        attack: fgsm or pgd
        steps, step_size, restarts, random_start: of pgd, as there
        seed: of the random starts
        batch: images at once; by default 250 on a GPU and 50 elsewhere
        progress: called after every batch with how many images are done, of how many, and at which ε
    """
    arguments.choice(attack, "attack", ATTACKS)
    if attack == "fgsm":
        steps, restarts, random_start = 1, 1, False
    plans = dict(
        _checked_steps(radius, steps, radius if attack == "fgsm" else step_size, restarts, random_start)
        for radius in arguments.several(epsilons, "epsilons", "give a list of radii, such as [4 / 255]")
    )
    images, labels = _checked(model, images, labels)
    usual = _AT_ONCE.get(next(model.parameters(), images).device.type, 50)
    at_once = arguments.whole(usual if batch is None else batch, "batch", least=1)
    right = dict.fromkeys(plans, 0)
    for number, (radius, step) in enumerate(plans.items()):
        for first in range(0, len(images), at_once):
            part = slice(first, first + at_once)
            with _attacked(model, normalise, images[part], labels[part]) as (logits, pixels, classes):
                with torch.no_grad():
                    kept = (logits(pixels).argmax(1) == classes).nonzero()[:, 0]
                for restart in range(restarts if radius else 0):  # only images that are right so far are attacked
                    if not len(kept):
                        break
                    draw = CorruptionDraws(f"{seed}/{attack}/{restart}", first, len(pixels), pixels.device)
                    start = draw.uniform(*pixels.shape[1:])[kept] if random_start else None
                    x = _climbed(logits, pixels[kept], classes[kept], start, radius, steps, step)
                    with torch.no_grad():
                        kept = kept[logits(x).argmax(1) == classes[kept]]
                right[radius] += len(kept)
            if progress is not None:
                done = number * len(images) + min(first + at_once, len(images))
                progress(done, len(plans) * len(images), f"ε {shown_radius(radius)}")
    return {radius: count / len(images) for radius, count in right.items()}


def shown_radius(epsilon: float) -> str:
    """As papers write it.

    >>> shown_radius(4 / 255), shown_radius(0.5 / 255)
    ('4/255', '0.5/255')
    """
    return f"{255 * epsilon:.4g}/255"


def _climbed(
    logits: Function, pixels: Tensor, labels: Tensor, uniform: Tensor | None, radius: float, steps: int, step: float
) -> Tensor:
    """``(n, c, h, w)``: from the images, or from where uniform numbers say in the ball, ``steps`` up the loss."""
    x = pixels
    if uniform is not None:
        x = (pixels + (2 * uniform.to(pixels.device) - 1).to(pixels.dtype) * radius).clamp(0, 1)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        # Summed, not averaged: the gradient of an image then has nothing of the batch in it, nor underflows with it.
        loss = F.cross_entropy(logits(x), labels, reduction="none").sum()
        (gradient,) = torch.autograd.grad(loss, x)
        x = x.detach() + step * gradient.sign()
        x = (pixels + (x - pixels).clamp(-radius, radius)).clamp(0, 1)
    return x


@contextmanager
def _attacked(
    model: nn.Module, normalise: Function | None, pixels: Tensor, labels: Tensor
) -> Iterator[tuple[Function, Tensor, Tensor]]:
    """From pixels to logits, the pixels and the labels, on the model's device.

    Within, the model evaluates and gradients are exact; afterwards all of it is as it was.
    """
    device, most = next(model.parameters(), pixels).device, int(labels.max())

    def logits(x: Tensor) -> Tensor:
        out = model(x if normalise is None else normalise(x))
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(x) or out.shape[1] <= most:
            given = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else arguments.kind(out)
            raise InputError(
                f"the model gives {given}; give one with logits ({len(x)}, classes) for labels up to {most}"
            )
        if not bool(out.isfinite().all()):
            raise InputError("the model's logits are not finite; check its weights for NaN and overflow")
        return out

    tf32 = torch.backends.cudnn.allow_tf32
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        float32_products("highest"),
        in_eval_mode(model),
    ):
        torch.backends.cudnn.allow_tf32 = False
        try:
            # Copies: tensors of inference mode have no gradients.
            yield logits, pixels.to(device).clone(), labels.to(device).clone()
        finally:
            torch.backends.cudnn.allow_tf32 = tf32


def _checked_steps(epsilon: Any, steps: Any, step_size: Any, restarts: Any, random_start: bool) -> tuple[float, float]:
    """The radius and the size of a step."""
    remedy = "give a radius from 0 to 1, such as 4 / 255"
    radius = float(arguments.number(epsilon, "epsilon", remedy, least=0, most=1))
    arguments.whole(steps, "steps", least=1)
    if arguments.whole(restarts, "restarts", least=1) > 1 and not random_start:
        raise InputError(
            f"restarts is {restarts} and random_start is False, so that all are the same; give one of the two"
        )
    if step_size is None:
        return radius, _STEP_SHARE * radius / steps
    return radius, float(arguments.number(step_size, "step_size", "give 0 or more", least=0))


def _checked(model: nn.Module, images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1], in float32 or float64, and labels in int64."""
    x = arguments.tensor(images, "images", "(n, channels, height, width)", least=4, floating=False).detach()
    x = x.float() / 255 if x.dtype == torch.uint8 else x if x.dtype == torch.float64 else x.float()
    if x.ndim != 4 or not x.numel():
        raise InputError(f"images has shape {tuple(x.shape)}; give (n, channels, height, width), none of them 0")
    low, high = float(x.amin()), float(x.amax())
    if not (low >= 0 and high <= 1):  # NaN is neither
        raise InputError(
            f"images has values from {low:.4g} to {high:.4g}; give bytes, or pixels from 0 to 1 before they are "
            "normalised, and normalise= for what is done to them"
        )
    y = arguments.tensor(labels, "labels", "a whole number per image", least=0, floating=False)
    if y.is_floating_point() or y.dtype == torch.bool or y.shape != x.shape[:1] or int(y.min()) < 0:
        raise InputError(f"labels has shape {tuple(y.shape)} of {y.dtype}; give {len(x)} whole numbers from 0")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.dtype != x.dtype:
            raise InputError(
                f"{name} is of {weight.dtype} and the attack computes in {x.dtype}; call model.float() first"
            )
    return x, y.long()
