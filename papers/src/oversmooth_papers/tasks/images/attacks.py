"""Adversarial images in the L∞ ball: FGSM (Goodfellow et al. 2015) and PGD (Madry et al. 2018), untargeted.

Pixels lie in [0, 1] and ε is in their units, such as 1/255: whatever normalises them is part of the function that is
attacked. What is climbed is the cross-entropy of the label, with gradients in the precision of the pixels (float32, or
float64 where they are): no autocast, no TF32, the model as it evaluates. The model comes back as it was, flags and
gradients included, and so does the random state, after an error too.

Not a certificate: an attack that fails shows no robustness, and both fail where gradients vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.precision import float32_products
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws

ATTACKS = ("fgsm", "pgd")
STEPS = 20
_STEP_SHARE = 2.5  # of ε / steps: far enough to cross the ball, as PGD's authors chose
_AT_ONCE = {"cuda": 250}  # images; a ViT-Ti of 257 tokens keeps about 40 MB per image for its gradient
_AT_ONCE_ELSEWHERE = 50
Normalise = Callable[[Tensor], Tensor]
Told = Callable[[int, int, str], None]
"""Told how many images are done, of how many, and at which ε."""


def fgsm(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, normalise: Normalise | None = None
) -> Tensor:
    """``(n, c, h, w), (n,) -> (n, c, h, w)``: one step of ε along the gradient's sign, clipped to [0, 1].

    Args:
        model: from normalised images to ``(n, classes)`` logits
        images: ``(n, c, h, w)``: bytes, or floats in [0, 1]
        labels: ``(n,)``: the right classes
        epsilon: radius of the ball, in units of pixels in [0, 1]
        normalise: from pixels in [0, 1] to what the model takes; without it the model takes pixels

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    >>> adversarial = fgsm(model, torch.full((1, 3, 2, 2), 0.5), torch.tensor([0]), epsilon=0.1)
    >>> round(float((adversarial - 0.5).abs().max()), 4)
    0.1
    """
    radius = _radius(epsilon)
    with _Attacked(model, normalise, images, labels) as attacked:
        return attacked.climbed(attacked.pixels, radius, steps=1, step_size=radius)


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
    normalise: Normalise | None = None,
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
    radius = _radius(epsilon)
    settings = _checked_steps(radius, steps, step_size, restarts, random_start)
    with _Attacked(model, normalise, images, labels) as attacked:
        # On the generator's own device: numbers of the same generator are the same wherever the model is.
        draws = generator or torch.Generator().manual_seed(0)
        shape, device = attacked.pixels.shape, attacked.pixels.device
        drawn = (
            torch.rand(shape, generator=draws, device=draws.device).to(device) if random_start else None
            for _ in range(restarts)
        )
        return attacked.worst(drawn, radius, **settings)[0]


def under_attack(
    model: nn.Module,
    normalise: Normalise | None,
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

    The random starts of an image belong to it by its number, so that batches, devices and more restarts leave them
    what they are.

    Args:
        model: from normalised images to ``(n, classes)`` logits
        normalise: from pixels in [0, 1] to what the model takes; None where it takes pixels
        images: ``(n, c, h, w)``: bytes, or floats in [0, 1]
        labels: ``(n,)``: the right classes
        epsilons: radii, in units of pixels in [0, 1]; 0 is the clean accuracy
        attack: fgsm or pgd
        steps, step_size, restarts, random_start: of pgd, as there
        seed: of the random starts
        batch: images at once; by default 250 on a GPU and 50 elsewhere
        progress: told after every batch how many images are done, of how many, and at which ε
    """
    arguments.choice(attack, "attack", ATTACKS)
    arguments.seed(seed)
    if isinstance(epsilons, (str, bytes)) or not isinstance(epsilons, Iterable) or not (given := list(epsilons)):
        raise InputError(f"epsilons is {arguments.shown(epsilons)}; give a list of radii, such as [1 / 255, 4 / 255]")
    radii = list(dict.fromkeys(_radius(epsilon) for epsilon in given))
    plans = [_checked_steps(radius, steps, step_size, restarts, random_start) for radius in radii]
    if attack == "fgsm":
        plans, restarts, random_start = [dict(steps=1, step_size=radius) for radius in radii], 1, False
    pixels, classes = _checked(images, labels)
    device = _device_of(model, pixels)
    usual = _AT_ONCE.get(device.type, _AT_ONCE_ELSEWHERE)
    at_once = usual if batch is None else arguments.whole(batch, "batch", least=1)
    right = dict.fromkeys(radii, 0)
    for number, (radius, plan) in enumerate(zip(radii, plans, strict=True)):
        for first in range(0, len(pixels), at_once):
            part = slice(first, first + at_once)
            with _Attacked(model, normalise, pixels[part], classes[part]) as attacked:
                draws = [
                    CorruptionDraws(f"{seed}/{attack}/{restart}", first, len(attacked.pixels), device)
                    for restart in range(restarts)
                ]
                # A ball of radius 0 holds the image alone: there is nothing to climb.
                drawn = (draw.uniform(*pixels.shape[1:]) if random_start else None for draw in draws if radius)
                right[radius] += attacked.still_right(drawn, radius, **plan)
            if progress is not None:
                done = number * len(pixels) + min(first + at_once, len(pixels))
                progress(done, len(radii) * len(pixels), f"ε {shown_radius(radius)}")
    return {radius: count / len(pixels) for radius, count in right.items()}


def shown_radius(epsilon: float) -> str:
    """As papers write it.

    >>> shown_radius(4 / 255), shown_radius(0.5 / 255)
    ('4/255', '0.5/255')
    """
    return f"{255 * epsilon:.4g}/255"


class _Attacked:
    """Images, and the function that is attacked, while it is: a context, after which the model is as it was."""

    def __init__(self, model: nn.Module, normalise: Normalise | None, images: Tensor, labels: Tensor) -> None:
        pixels, classes = _checked(images, labels)
        device = _device_of(model, pixels)
        self.model, self.normalise = model, normalise
        self.pixels, self.labels = pixels.to(device), classes.to(device)
        self._borrowed = ExitStack()

    def __enter__(self) -> _Attacked:
        with ExitStack() as stack:  # what is begun ends, where the rest cannot begin
            stack.enter_context(_evaluating(self.model, self.pixels.device))
            self.pixels = self.pixels.clone()  # of inference mode, maybe, whose tensors have no gradients
            self.labels = self.labels.clone()
            self._borrowed = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._borrowed.close()

    def climbed(self, start: Tensor, radius: float, *, steps: int, step_size: float) -> Tensor:
        """``(n, c, h, w) -> (n, c, h, w)``."""
        x = start
        for _ in range(steps):
            x = x + step_size * self._gradient(x).sign()
            x = (self.pixels + (x - self.pixels).clamp(-radius, radius)).clamp(0, 1)
        return x

    def worst(
        self, drawn: Iterable[Tensor | None], radius: float, *, steps: int, step_size: float
    ) -> tuple[Tensor, Tensor]:
        """Of all restarts, each from uniform numbers or, for None, the images: the images, and whether they fool."""
        images, fooled, highest = self.pixels, torch.zeros_like(self.labels, dtype=torch.bool), None
        for uniform in drawn:
            x = self.climbed(self._start(uniform, radius), radius, steps=steps, step_size=step_size)
            with torch.no_grad():
                logits = self._logits(x)
                loss, fools = self._losses(logits), logits.argmax(1) != self.labels
            if highest is None:
                images, fooled, highest = x, fools, loss
                continue
            worse = (fools & ~fooled) | ((fools == fooled) & (loss > highest))
            images = torch.where(worse[:, None, None, None], x, images)
            fooled, highest = fooled | fools, torch.where(worse, loss, highest)
        return images, fooled

    def still_right(self, drawn: Iterable[Tensor | None], radius: float, *, steps: int, step_size: float) -> int:
        """How many images no restart makes wrong; only those that are right so far are attacked."""
        with torch.no_grad():
            kept = (self._logits(self.pixels).argmax(1) == self.labels).nonzero()[:, 0]
        all_pixels, all_labels = self.pixels, self.labels
        for uniform in drawn:
            if not len(kept):
                break
            self.pixels, self.labels = all_pixels[kept], all_labels[kept]
            one = (None if uniform is None else uniform[kept],)
            _, fooled = self.worst(one, radius, steps=steps, step_size=step_size)
            kept = kept[~fooled]
        self.pixels, self.labels = all_pixels, all_labels
        return len(kept)

    def _start(self, uniform: Tensor | None, radius: float) -> Tensor:
        if uniform is None:
            return self.pixels
        return (self.pixels + (2 * uniform - 1).to(self.pixels.dtype) * radius).clamp(0, 1)

    def _gradient(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        # Summed, not averaged: the gradient of an image then has nothing of the batch in it, nor underflows with it.
        (gradient,) = torch.autograd.grad(self._losses(self._logits(x)).sum(), x)
        if not bool(gradient.isfinite().all()):
            raise InputError("the gradient by the images is not finite; check the model's weights for NaN and overflow")
        return gradient

    def _losses(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.labels, reduction="none")

    def _logits(self, x: Tensor) -> Tensor:
        logits = self.model(x if self.normalise is None else self.normalise(x))
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            given = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else arguments.kind(logits)
            raise InputError(f"the model gives {given} for {len(x)} images; give one with logits (n, classes)")
        classes = logits.shape[1]
        if len(self.labels) and int(self.labels.max()) >= classes:
            raise InputError(
                f"labels go up to {int(self.labels.max())} and the model has {classes} classes; "
                f"give labels from 0 to {classes - 1}"
            )
        if not bool(logits.isfinite().all()):
            raise InputError("the model's logits are not finite; check its weights for NaN and overflow")
        return logits


@contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model as it evaluates, gradients exact; all of it as it was afterwards."""
    training = [(module, module.training) for module in model.modules()]
    cudnn = torch.backends.cudnn.allow_tf32
    gpus = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=gpus),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        float32_products("highest"),
    ):
        try:
            torch.backends.cudnn.allow_tf32 = False
            model.eval()
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = cudnn
            for module, flag in training:
                module.training = flag


def _radius(epsilon: Any) -> float:
    return float(arguments.number(epsilon, "epsilon", "give a radius from 0 to 1, such as 4 / 255", least=0, most=1))


def _checked_steps(radius: float, steps: Any, step_size: Any, restarts: Any, random_start: Any) -> dict[str, Any]:
    """What PGD does in each restart."""
    arguments.whole(steps, "steps", least=1)
    arguments.whole(restarts, "restarts", least=1)
    if not arguments.flag(random_start, "random_start") and restarts > 1:
        raise InputError(
            f"restarts is {restarts} and random_start is False, so that all would be the same; "
            "give random_start=True, or one restart"
        )
    if step_size is None:
        return dict(steps=steps, step_size=_STEP_SHARE * radius / steps)
    return dict(steps=steps, step_size=float(arguments.number(step_size, "step_size", "give 0 or more", least=0)))


def _checked(images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1], in float32 or float64, and labels in int64."""
    x = arguments.tensor(images, "images", "(n, channels, height, width)", least=4, floating=False)
    if x.ndim != 4 or not x.numel():
        raise InputError(f"images has shape {tuple(x.shape)}; give (n, channels, height, width), none of them 0")
    if x.dtype == torch.uint8:
        x = x.float() / 255
    elif not x.is_floating_point():
        raise InputError(f"images has dtype {x.dtype}; give bytes (uint8, 0 to 255) or floats from 0 to 1")
    x = x.detach() if x.dtype == torch.float64 else x.detach().float()
    low, high = float(x.amin()), float(x.amax())
    if not (low >= 0 and high <= 1):  # NaN is neither
        raise InputError(
            f"images has values from {low:.4g} to {high:.4g}; give pixels from 0 to 1, before they are normalised, "
            "and normalise= for what is done to them"
        )
    y = arguments.tensor(labels, "labels", "a whole number per image", least=0, floating=False)
    if y.is_floating_point() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        raise InputError(f"labels has shape {tuple(y.shape)} of {y.dtype}; give {len(x)} whole numbers, one per image")
    if int(y.min()) < 0:
        raise InputError(f"labels go down to {int(y.min())}; give classes from 0")
    return x, y.long()


def _device_of(model: Any, pixels: Tensor) -> torch.device:
    """Where the model is, once its weights are known to be of the pixels' precision."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is {arguments.kind(model)}; give a torch.nn.Module")
    device = pixels.device
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.dtype != pixels.dtype:
            asked = "double" if pixels.dtype == torch.float64 else "float"
            raise InputError(
                f"{name} is of {weight.dtype} and the attack computes in {pixels.dtype}; call model.{asked}() first"
            )
        device = weight.device
    return device
