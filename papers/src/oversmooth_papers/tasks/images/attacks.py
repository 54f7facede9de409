"""Untargeted adversarial images in the L∞ ball: FGSM (Goodfellow et al. 2015) and PGD (Madry et al. 2018).

Pixels lie in [0, 1] and ε is in their units, such as 4/255; normalisation is part of the attacked function. Gradients
are exact: no autocast, no TF32, the model in eval mode. Model, gradients and random state are restored afterwards.

A failed attack certifies nothing: both fail where gradients vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode
from oversmooth.safety.precision import float32_products
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws

ATTACKS = ("fgsm", "pgd")
STEPS = 20
_STEP_SHARE = 2.5  # of ε / steps: far enough to cross the ball, as PGD's authors chose
_AT_ONCE = {"cuda": 250}  # images, elsewhere 50; a ViT-Ti of 257 tokens keeps about 40 MB per image for its gradient
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AttackSettings:
    """Settings of PGD, as `pgd` has them. FGSM is one step of size ε from the image itself."""

    steps: int = STEPS
    step_size: float | None = None
    restarts: int = 1
    random_start: bool = True
    seed: int = 0  # of the random starts

    def __post_init__(self) -> None:
        arguments.whole(self.steps, "steps", least=1)
        arguments.whole(self.restarts, "restarts", least=1)


def fgsm(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, normalise: Function | None = None
) -> Tensor:
    """``(n, c, h, w), (n,) -> (n, c, h, w)``: clip(x + ε sign ∇ₓL, 0, 1), with L the cross-entropy of the label.

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
    """``(n, c, h, w), (n,) -> (n, c, h, w)``: xₜ₊₁ = clip(x₀ + clip(xₜ + α sign ∇ₓL − x₀, −ε, ε), 0, 1).

    Each image keeps its worst restart: a misclassified one, else the one of highest loss L. So with the same generator,
    more restarts never leave more images right.

    Args:
        model: from normalised images to ``(n, classes)`` logits
        images: bytes, or floats in [0, 1]
        labels: the right classes
        epsilon: radius of the ball, in units of pixels in [0, 1]
        steps, restarts: how many, 1 or more
        step_size: α; by default 2.5 · epsilon / steps
        random_start: start at a uniformly random point of the ball, not at the image
        generator: of the random starts; by default a new one with seed 0
        normalise: from pixels in [0, 1] to the model's input; without it the model receives pixels
    """
    draws, how = generator or torch.Generator().manual_seed(0), AttackSettings(steps, step_size, restarts, random_start)
    with _attacked(model, normalise, images, labels) as attack:
        worst, right = attack.pixels, torch.ones_like(attack.labels, dtype=torch.bool)
        highest = worst.new_full(right.shape, -torch.inf)
        for _ in range(how.restarts):
            # On the generator's own device: the same generator gives the same numbers wherever the model is.
            start = torch.rand(worst.shape, generator=draws, device=draws.device) if random_start else None
            x, loss, still = attack.climbed(slice(None), start, _radius(epsilon), how)
            worse = (right & ~still) | ((right == still) & (loss > highest))
            worst = torch.where(worse[:, None, None, None], x, worst)
            right, highest = right & still, torch.where(worse, loss, highest)
        return worst


def under_attack(
    model: nn.Module,
    normalise: Function | None,
    images: Tensor,
    labels: Tensor,
    epsilons: Iterable[float],
    attack: str = "pgd",
    settings: AttackSettings | None = None,
    *,
    batch: int | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> dict[float, float]:
    """Accuracy by ε: the share of images classified correctly as they are and after every restart of the attack.

    Random starts depend on the seed and on an image's number: batches, devices and more restarts do not change them.

    epsilons: radii, in units of pixels in [0, 1]; 0 is the clean accuracy. settings: of pgd. batch: images at once.
    progress: called after every batch with how many images are done, of how many, and at which ε.
    """
    how, is_fgsm = settings or AttackSettings(), arguments.choice(attack, "attack", ATTACKS) == "fgsm"
    if not len(images):
        raise InputError("there are no images to attack; give at least one")
    right = dict.fromkeys(map(_radius, epsilons), 0)
    at_once = batch or _AT_ONCE.get(next(model.parameters(), images).device.type, 50)
    for number, radius in enumerate(right):
        how = AttackSettings(1, radius, random_start=False) if is_fgsm else how
        for first in range(0, len(images), at_once):
            part = slice(first, first + at_once)
            with _attacked(model, normalise, images[part], labels[part]) as one:
                with torch.no_grad():
                    robust = one.scores(one.pixels, one.labels)[1].nonzero()[:, 0]  # that no restart has fooled yet
                for restart in range(how.restarts if radius else 0):
                    if not len(robust):
                        break
                    draw = CorruptionDraws(f"{how.seed}/{attack}/{restart}", first, len(one.pixels), one.pixels.device)
                    start = draw.uniform(*one.pixels.shape[1:])[robust] if how.random_start else None
                    robust = robust[one.climbed(robust, start, radius, how)[2]]
                right[radius] += len(robust)
            done = number * len(images) + min(first + at_once, len(images))
            progress(done, len(right) * len(images), f"ε {shown_radius(radius)}")
    return {radius: count / len(images) for radius, count in right.items()}


def _radius(epsilon: float) -> float:
    return float(arguments.number(epsilon, "epsilon", "give a radius from 0 to 1, such as 4 / 255", least=0, most=1))


def shown_radius(epsilon: float) -> str:
    """As papers write it.

    >>> shown_radius(4 / 255), shown_radius(0.5 / 255)
    ('4/255', '0.5/255')
    """
    return f"{255 * epsilon:.4g}/255"


@dataclass
class _Attack:
    """A model under attack: the pixels and the labels on its device."""

    model: nn.Module
    normalise: Function | None
    pixels: Tensor
    labels: Tensor

    def scores(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of pixels, and whether they are classified right."""
        out = self.model(x if self.normalise is None else self.normalise(x))
        if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[1] <= int(labels.max()):
            given = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else arguments.kind(out)
            wanted = f"logits (n, classes) for labels to {labels.max()}"
            raise InputError(f"the model returns {given}; give one with {wanted}")
        if not bool(out.isfinite().all()):
            raise InputError("the model's logits are not finite; check its weights for NaN and overflow")
        return F.cross_entropy(out, labels, reduction="none"), out.argmax(1) == labels

    def climbed(
        self, rows: slice | Tensor, start: Tensor | None, radius: float, how: AttackSettings
    ) -> tuple[Tensor, Tensor, Tensor]:
        """PGD on some images, and its `scores`; from the point of the ball that numbers in [0, 1] stand for."""
        step = _STEP_SHARE * radius / how.steps if how.step_size is None else how.step_size
        x = pixels = self.pixels[rows]
        if start is not None:
            x = (pixels + (2 * start.to(pixels.device) - 1).to(pixels.dtype) * radius).clamp(0, 1)
        for _ in range(how.steps):
            x = x.detach().requires_grad_()
            # Summed, not averaged: an image's gradient is then independent of the batch and does not underflow with it
            (gradient,) = torch.autograd.grad(self.scores(x, self.labels[rows])[0].sum(), x)
            x = x.detach() + step * gradient.sign()
            x = (pixels + (x - pixels).clamp(-radius, radius)).clamp(0, 1)
        with torch.no_grad():
            return x, *self.scores(x, self.labels[rows])


@contextmanager
def _attacked(model: nn.Module, normalise: Function | None, images: Tensor, labels: Tensor) -> Iterator[_Attack]:
    device, tf32 = next(model.parameters(), images).device, torch.backends.cudnn.allow_tf32
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        float32_products("highest"),
        in_eval_mode(model),
    ):
        x = images.detach().to(device).clone()  # a copy, as tensors of inference mode have no gradients
        x = x.float() / 255 if x.dtype == torch.uint8 else x if x.dtype == torch.float64 else x.float()
        if x.ndim != 4 or not bool(((x >= 0) & (x <= 1)).all()):
            has = f"shape {tuple(x.shape)} and values from {x.min():.4g} to {x.max():.4g}"
            remedy = "give (n, channels, height, width), bytes or pixels from 0 to 1, and normalise= for what the model"
            raise InputError(f"images has {has}; {remedy} does to them")
        if labels.is_floating_point() or labels.shape != x.shape[:1] or int(labels.min()) < 0:
            has = f"shape {tuple(labels.shape)} and dtype {labels.dtype} for {len(x)} images"
            raise InputError(f"labels has {has}; give one class, a whole number from 0, for each")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield _Attack(model, normalise, x, labels.to(device, torch.int64).clone())
        finally:
            torch.backends.cudnn.allow_tf32 = tf32
