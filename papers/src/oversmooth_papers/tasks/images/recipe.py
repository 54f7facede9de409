"""ViT-Ti on CIFAR-100: the recovered recipe of tables 2 and 3 of Dovonon et al., and what it reaches.

    oversmooth train -o run                                          ViT-Ti on all of the data
    oversmooth train -o run --variant sharpen --share 0.1            ViT-Ti⁻ on 10 % of it
    oversmooth train -o run --quick                                  a small version for a CPU

Accuracy in % of the 10,000 test images after the last epoch:

    share   model     accuracy       seeds     minutes      published
    100 %   ViT-Ti    67.33          0         21.0         66.78 ± 0.1
    100 %   ViT-Ti⁺   65.35          0         26.0         64.34 ± 0.3
    100 %   ViT-Ti⁻   67.02          0         25.2         66.62 ± 0.3
    50 %    ViT-Ti    56.39          0         10.5         56.38 ± 0.5
    50 %    ViT-Ti⁺   55.63          0         11.8         55.21 ± 0.5
    50 %    ViT-Ti⁻   57.77          0         11.8         56.58 ± 0.3
    10 %    ViT-Ti    33.35 ± 0.37   0, 1, 2   2.1 to 5.4   32.47 ± 0.9
    10 %    ViT-Ti⁺   29.49 ± 0.51   0, 1, 2   2.3 to 6.0   28.67 ± 0.5
    10 %    ViT-Ti⁻   34.61 ± 0.61   0, 1, 2   2.3 to 6.0   33.99 ± 0.4

± is the standard deviation over seeds (n − 1); how many seeds are behind the published ± was not published. Minutes are
of one run on an NVIDIA H200 in bf16 (torch 2.11.0+cu130): the least alone, the most with other runs beside it, as
the 25.2 and 26.0 in part. The result files are in results/table2.

Plain data: help texts and files use it without torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth_papers.engine.options import option
from oversmooth_papers.engine.recipe import BaseRecipe, Scores, check_choices, check_layers, methods_of, ramp_option

if TYPE_CHECKING:
    from torch import Tensor

    from oversmooth.steering import Method
    from oversmooth_papers.tasks.images.data import Images

CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
HIGHEST_MAGNITUDE = 10.0
"""The magnitude at which each RandAugment operation is strongest, or weakest for some."""
_MOST_OPERATIONS = 100  # of RandAugment on one image
_BLOCK = 50_000  # bytes of a block's modules, whatever its width


@dataclass(frozen=True)
class Shape:
    """The defaults are ViT-Ti on 32 px images with patches of 2: 257 tokens."""

    image: int = 32
    patch: int = option(2, "Side of a patch.")
    channels: int = 3
    classes: int = 100
    width: int = option(192, "Features of a token.")
    depth: int = option(12, "Blocks.")
    heads: int = option(3, "Attention heads.")
    mlp_ratio: float = 4.0
    qkv_bias: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("image", "patch", "channels", "classes", "width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in ("mlp_ratio", "eps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; give a number above 0")
        if self.image % self.patch:
            raise InputError(f"patches of {self.patch} do not tile images of {self.image} pixels; give a divisor")
        if self.width % self.heads:
            raise InputError(f"{self.heads} heads do not share {self.width} features evenly; give a divisor")

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + 1

    @property
    def hidden(self) -> int:
        """Of the MLP."""
        return int(self.width * self.mlp_ratio)

    @property
    def parameters(self) -> int:
        """Of the plain model, counted before it is made."""
        width = self.width
        block = 4 * width**2 + width * (1 + 3 * self.qkv_bias) + 2 * width * self.hidden + self.hidden + width
        outside = self.channels * self.patch**2 * width + (3 + self.tokens) * width + (width + 1) * self.classes
        return self.depth * (block + 4 * width) + outside + width

    def check_fits(self, copies: int = 1, more: int = 0) -> None:
        """Raise InputError if memory is short. copies: of weights, gradients and moments too; more: other bytes."""
        check_fits(
            copies * 4 * self.parameters + _BLOCK * self.depth + more,
            f"a ViT of depth {self.depth:,} and width {self.width:,} has {self.parameters:,} weights and",
            "give a smaller one",
        )


@dataclass(frozen=True)
class RandAugment:
    """Settings: ``operations`` per image, with replacement, each applied with ``probability``.

    The magnitude is normal about ``magnitude`` with spread ``noise``, cut to 0..10. With ``increasing`` (timm's
    ``inc1``) a larger magnitude always means a stronger change. ``interpolation`` "random" is timm's default: bilinear
    or bicubic with equal chance.
    """

    magnitude: float = 9.0
    operations: int = 2
    noise: float = 1.0
    probability: float = 0.5
    increasing: bool = False
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"

    def __post_init__(self) -> None:
        for name, most in (("magnitude", HIGHEST_MAGNITUDE), ("noise", 1e6), ("probability", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"RandAugment's {name} is {getattr(self, name)}; it goes from 0 to {most:g}")
        if not 1 <= self.operations <= _MOST_OPERATIONS:
            raise InputError(f"RandAugment has {self.operations} operations; give 1 to {_MOST_OPERATIONS}")
        check_choices(self)


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """The defaults are the published recipe.

    ``epochs`` of cosine follow ``warmup`` epochs, both of ``len(data) // batch`` steps: the last incomplete batch is
    dropped, as in timm's loader for training. ``variant`` is plain, smooth, sharpen, or steering methods in words, such
    as ``neutreno:strength=0.6``, several joined by ``" + "``. Each `option` is an option of `oversmooth train`.
    """

    task_name: ClassVar[str] = "images"
    unit: ClassVar[str] = "images"
    of_data: ClassVar[tuple[str, ...]] = ("data", "mean", "std")
    shape_of_data: ClassVar[tuple[str, ...]] = ("image", "channels", "classes")

    data: str = "cifar100"
    share: float = option(1.0, "Share of the training images, above 0 and up to 1.")
    share_seed: int = option(0, "Which images the share takes.")
    """The same images for every variant and seed."""
    variant: str = option(
        "plain",
        "plain, smooth (ViT⁺) or sharpen (ViT⁻); or methods as oversmooth steer takes them, joined by ' + '.",
    )
    ramp: float = ramp_option()
    wiring: Literal["paper", "code"] = option(
        "paper", "Of smooth and sharpen: paper, or code (the authors' early code)."
    )
    start: Literal["cold", "warm"] = option(
        "cold", "Of smooth and sharpen: cold as the paper begins, or warm from the plain weights."
    )
    initialisation: Literal["truncated", "torch"] = option("truncated", "Of other weights: truncated or torch.")
    """Normal of 0.02, as ViTs usually begin, or torch's own; the paper does not say."""
    output_bias: bool = option(True, "Of smooth and sharpen: of attention's output; the authors' early code has none.")
    layers: str = option("all", "Which blocks the variant steers: all, first half, last half, or places such as 0-2.")
    """The rest are plain: Dovonon et al.'s ViT*."""
    freed: bool = option(False, "Steer the beginning alone: fold what the variant makes into weights, and train those.")
    """A control: the same initial weights without the constraint."""
    shape: Shape = field(default_factory=Shape)
    epochs: int = option(300, "Epochs of cosine.")
    warmup: int = option(5, "Epochs of warm-up before them.")
    lr: float = option(1.25e-4, "Highest learning rate.")
    weight_decay: float = option(0.05, "On all parameters.")
    batch: int = option(96, "Images per step.")
    clip: float | None = 5.0
    smoothing: float = 0.1
    mixup: float = 1.0
    cutmix: float = 0.8
    rand_augment: RandAugment | None = field(default_factory=RandAugment)
    padding: int = 4
    flip: float = 0.5
    mean: tuple[float, ...] = CIFAR100_MEAN
    std: tuple[float, ...] = CIFAR100_STD
    seed: int = option(0, "Of weights, order and augmentation.")
    precision: Literal["bf16", "float32"] = option("bf16", "On a GPU: bf16 or float32.")
    """Of products on a GPU, under autocast; on a CPU all is float32."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"share is {self.share:g}; give a fraction above 0 and at most 1")
        self.check_numbers(
            at_least_1=("epochs", "batch"),
            at_least_0=("warmup", "seed", "share_seed", "weight_decay", "mixup", "cutmix", "padding"),
            bounded=("lr", "weight_decay", "clip", "mixup", "cutmix"),
        )
        check_choices(self)
        for name in ("flip", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it goes from 0 to 1")
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        if not len(self.mean) == len(self.std) == self.shape.channels or not all(one > 0 for one in self.std):
            raise InputError(
                f"mean is {list(self.mean)} and std is {list(self.std)}; give one number for each of the "
                f"{self.shape.channels} channels, each std above 0"
            )
        check_layers(self.layers, self.shape.depth)
        if self.freed and (why := next((m.why_no_fold for m in self.methods() if m.why_no_fold), "")):
            raise InputError(f"freed needs what weights alone can do, and {self.variant} {why}; leave one out")
        self.check_variant()

    @property
    def total_epochs(self) -> int:
        return self.warmup + self.epochs

    def learning_rates(self, steps_per_epoch: int) -> Tensor:
        from oversmooth_papers.engine.schedule import learning_rates

        return learning_rates(self.lr, self.warmup * steps_per_epoch, self.epochs * steps_per_epoch)

    @property
    def label(self) -> str:
        """``ViT-Ti⁻, 10 % of cifar100``, and what sets the model apart from the paper's."""
        name = variant_title(self.variant)
        if self.shape.width != Shape.width:
            name = name.replace("ViT-Ti", "ViT")
        steered, spectral = self.variant != "plain", self.variant in ("smooth", "sharpen")
        unusual = {
            f"layers {self.layers}": steered and self.layers != "all",
            "freed": steered and self.freed,
            f"ramp {self.ramp:g}": steered and self.ramp != 0,
            f"wiring {self.wiring}": spectral and self.wiring != "paper",
            f"start {self.start}": spectral and self.start != "cold",
            f"depth {self.shape.depth}": self.shape.depth != Shape.depth,
        }
        words = [word for word, is_so in unusual.items() if is_so]
        return ", ".join([name, *words, f"{percent(self.share)} of {self.data}"])

    def describe(self, scores: Scores) -> str:
        return f"accuracy {100 * scores['accuracy']:.2f} %"

    def methods(self) -> list[Method]:
        return methods_of(self.variant, wiring=self.wiring, start=self.start, seed=self.seed)

    def changed(self, settings: dict[str, Any], augment: bool | None = None) -> Self:
        """With these settings, its own or the shape's, and all of augmentation or none; None leaves one as it is."""
        changed, usual = super().changed(settings), Recipe()
        if augment is True:
            return dataclasses.replace(changed, mixup=usual.mixup, cutmix=usual.cutmix, rand_augment=usual.rand_augment)
        if augment is False:
            return dataclasses.replace(changed, mixup=0.0, cutmix=0.0, rand_augment=None)
        return changed

    def fitted(self, images: Images) -> Recipe:
        """The same for these images: name, size, channels, classes and normalisation are theirs."""
        from oversmooth_papers.tasks.images.data import normalisation

        mean, std = normalisation(images)
        _, channels, side, _ = images.images.shape
        shape = dataclasses.replace(self.shape, image=side, channels=channels, classes=len(images.classes))
        return dataclasses.replace(self, data=images.name, shape=shape, mean=mean, std=std)

    def check_fits(self, images: Images) -> None:
        """Raise InputError for images of another data set or size."""
        shape = self.shape
        given, wanted = tuple(images.images.shape[1:]), (shape.channels, shape.image, shape.image)
        if (given, len(images.classes), images.name) != (wanted, shape.classes, self.data):
            raise InputError(
                f"{images.name} has images {given} in {len(images.classes)} classes and the recipe is for {self.data}, "
                f"{wanted} in {shape.classes}; fit it with recipe.fitted(images)"
            )


VARIANTS = ("plain", "smooth", "sharpen")
"""ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ of Dovonon et al."""


def variant_title(variant: str) -> str:
    """As the paper writes it."""
    return {"plain": "ViT-Ti", "smooth": "ViT-Ti⁺", "sharpen": "ViT-Ti⁻"}.get(variant, f"ViT-Ti with {variant}")


def percent(share: float) -> str:
    """``10 %``."""
    return f"{100 * share:.4g} %"


PAPER = Recipe()

QUICK = Recipe(
    share=0.05,
    shape=Shape(patch=4, width=64, depth=4, heads=2),
    epochs=4,
    warmup=1,
    lr=1e-3,
    batch=48,
    mixup=0.0,
    cutmix=0.0,
    rand_augment=None,
)
"""A small version for a CPU: minutes, 2,500 images, 5 epochs, 0.2 million weights.

Its figures compare with each other, not with published ones. Without RandAugment, Mixup and CutMix, which help only in
runs long enough to overfit. It reached 4.98 % of the 10,000 test images (plain, seed 0; chance is 1 %), in 20 minutes
on one thread of a busy two-core CPU (aarch64, torch 2.13.0+cpu).
"""
