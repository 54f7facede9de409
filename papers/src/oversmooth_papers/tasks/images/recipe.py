"""ViT-Ti on CIFAR-100: our reconstruction of the recipe behind tables 2 and 3 of Dovonon et al., and its results.

    oversmooth train -o run                                          ViT-Ti on all of the data
    oversmooth train -o run --variant sharpen --share 0.1            ViT-Ti⁻ on 10 % of it
    oversmooth train -o run --quick                                  a small version for a CPU

Accuracy in % of the 10,000 test images after the last epoch:

    share   model     accuracy       seeds     minutes      published
    100 %   ViT-Ti    67.33          0         21.0         66.78 ± 0.1
    100 %   ViT-Ti⁺   65.35          0         26.0         64.34 ± 0.3
    100 %   ViT-Ti⁻   67.02          0         25.2         66.62 ± 0.3
    50 %    ViT-Ti    56.23 ± 0.22   0, 1      10.5 to 17.2 56.38 ± 0.5
    50 %    ViT-Ti⁺   55.63          0         11.8         55.21 ± 0.5
    50 %    ViT-Ti⁻   57.77          0         11.8         56.58 ± 0.3
    10 %    ViT-Ti    33.35 ± 0.37   0, 1, 2   2.1 to 5.4   32.47 ± 0.9
    10 %    ViT-Ti⁺   29.49 ± 0.51   0, 1, 2   2.3 to 6.0   28.67 ± 0.5
    10 %    ViT-Ti⁻   34.61 ± 0.61   0, 1, 2   2.3 to 6.0   33.99 ± 0.4

± is the standard deviation over seeds (n − 1); the paper does not say how many seeds are behind its ±. Minutes are of
one run on an NVIDIA H200 in bf16 (torch 2.11.0+cu130): the lowest alone; the highest, and part of 25.2 and 26.0, while
other runs shared the GPU. The result files are in results/table2.

This module does not import torch: help texts need it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.options import check_settings, limited, option
from oversmooth_papers.engine.recipe import BaseRecipe, BaseShape, Scores, ramp_option

if TYPE_CHECKING:
    from torch import Tensor

CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HIGHEST_MAGNITUDE = 10.0  # the magnitude at which each RandAugment operation is strongest (for some, weakest)


@dataclass(frozen=True)
class Shape(BaseShape):
    """A ViT; by default ViT-Ti on 32 px images with patches of 2, which makes 257 tokens."""

    image: int = limited(32, least=1)
    patch: int = option(2, "Side of a patch.", least=1)
    channels: int = limited(3, least=1)
    classes: int = limited(100, least=1)
    width: int = option(192, "Features of a token.", least=1)
    depth: int = option(12, "Blocks.", least=1)
    heads: int = option(3, "Attention heads.", least=1)
    mlp_ratio: float = limited(4.0, above=0)
    qkv_bias: bool = False
    eps: float = limited(1e-6, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image % self.patch:
            raise InputError(f"patches of {self.patch} do not tile images of {self.image} pixels; give a divisor")

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + 1

    @property
    def hidden(self) -> int:
        return int(self.width * self.mlp_ratio)

    @property
    def parameters(self) -> int:
        width = self.width
        block = 4 * width**2 + width * (1 + 3 * self.qkv_bias) + 2 * width * self.hidden + self.hidden + width
        outside = self.channels * self.patch**2 * width + (3 + self.tokens) * width + (width + 1) * self.classes
        return self.depth * (block + 4 * width) + outside + width

    @property
    def words(self) -> str:
        return f"a ViT of depth {self.depth:,} and width {self.width:,}"


@dataclass(frozen=True)
class RandAugment:
    """``operations`` are drawn per image, with replacement; each is applied with ``probability``.

    Magnitudes are normal with mean ``magnitude`` and standard deviation ``noise``, clipped to [0, 10]. With
    ``increasing`` (timm's ``inc1``) a larger magnitude always means a stronger change. ``interpolation`` "random",
    timm's default, chooses bilinear or bicubic with equal probability.
    """

    magnitude: float = limited(9.0, least=0, most=HIGHEST_MAGNITUDE)
    operations: int = limited(2, least=1, most=100)  # on one image
    noise: float = limited(1.0, least=0, most=1e6)
    probability: float = limited(0.5, least=0, most=1)
    increasing: bool = False
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """The defaults are the published recipe.

    ``warmup`` epochs come before ``epochs`` epochs of cosine decay. An epoch has ``len(data) // batch`` steps: the last
    incomplete batch is dropped, as in timm. ``variant`` is plain, smooth, sharpen, or steering methods such as
    ``neutreno:strength=0.6``, several joined by ``" + "``. Each `option` is an option of `oversmooth train`.
    """

    task_name: ClassVar[str] = "images"
    unit: ClassVar[str] = "images"
    of_data: ClassVar[tuple[str, ...]] = ("data", "mean", "std")
    shape_of_data: ClassVar[tuple[str, ...]] = ("image", "channels", "classes")

    data: str = "cifar100"
    share: float = option(1.0, "Share of the training images to use, above 0 and up to 1.", above=0, most=1)
    share_seed: int = option(0, "Seed that selects the images of the share.", least=0)
    """The same images for every variant and seed."""
    variant: str = option(
        "plain",
        "plain, smooth (ViT⁺) or sharpen (ViT⁻); or methods as for oversmooth steer, joined by ' + '.",
    )
    ramp: float = ramp_option()
    wiring: Literal["paper", "code"] = option(
        "paper", "For smooth and sharpen: paper, or code (the authors' early code)."
    )
    start: Literal["cold", "warm"] = option(
        "cold", "For smooth and sharpen: cold as in the paper, or warm from the plain weights."
    )
    initialisation: Literal["truncated", "torch"] = option(
        "truncated", "Initialisation of all other weights: truncated or torch."
    )
    """Truncated normal with standard deviation 0.02, as usual for ViTs, or torch's default; the paper does not say."""
    output_bias: bool = option(
        True, "For smooth and sharpen: a bias in attention's output; the authors' early code has none."
    )
    layers: str = option("all", "Blocks that the variant steers: all, first half, last half, or indices such as 0-2.")
    """The others are not modified: Dovonon et al.'s ViT*."""
    freed: bool = option(False, "Use the variant for the initial weights only: fold it into them and train without it.")
    """A control: the same initial weights without the constraint."""
    shape: Shape = field(default_factory=Shape)
    epochs: int = option(300, "Epochs of cosine decay.", least=1)
    warmup: int = option(5, "Epochs of warm-up before them.", least=0)
    lr: float = option(1.25e-4, "Peak learning rate.", above=0)
    weight_decay: float = option(0.05, "Weight decay, on all parameters.", least=0)
    batch: int = option(96, "Images per step.", least=1)
    clip: float | None = limited(5.0, above=0)
    smoothing: float = limited(0.1, least=0, most=1)
    mixup: float = limited(1.0, least=0)
    cutmix: float = limited(0.8, least=0)
    rand_augment: RandAugment | None = field(default_factory=RandAugment)
    padding: int = limited(4, least=0)
    flip: float = limited(0.5, least=0, most=1)
    mean: tuple[float, ...] = CIFAR100_MEAN
    std: tuple[float, ...] = CIFAR100_STD
    seed: int = option(0, "Seed of weights, order and augmentation.", least=0)
    precision: Literal["bf16", "float32"] = option("bf16", "Precision on a GPU: bf16 or float32.")
    """bf16 is by autocast. On a CPU everything is float32."""

    def check(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        if not len(self.mean) == len(self.std) == self.shape.channels or not all(one > 0 for one in self.std):
            remedy = f"give one number for each of the {self.shape.channels} channels, each std above 0"
            raise InputError(f"mean is {list(self.mean)} and std is {list(self.std)}; {remedy}")
        if self.freed and (why := next((m.why_no_fold for m in self.methods() if m.why_no_fold), "")):
            raise InputError(f"freed needs what weights alone can do, and {self.variant} {why}; leave one out")

    @property
    def total_epochs(self) -> int:
        return self.warmup + self.epochs

    def learning_rates(self, steps_per_epoch: int) -> Tensor:
        from oversmooth_papers.engine.schedule import learning_rates

        return learning_rates(self.lr, self.warmup * steps_per_epoch, self.epochs * steps_per_epoch)

    @property
    def label(self) -> str:
        """``ViT-Ti⁻, 10 % of cifar100``, with the settings that differ from the paper's."""
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

    def changed(self, settings: dict[str, Any], augment: bool | None = None) -> Self:
        """A copy with these settings, its own or the shape's, but not those that are None. augment: all, or none."""
        changed, usual = super().changed(settings), Recipe()
        if augment is True:
            return dataclasses.replace(changed, mixup=usual.mixup, cutmix=usual.cutmix, rand_augment=usual.rand_augment)
        if augment is False:
            return dataclasses.replace(changed, mixup=0.0, cutmix=0.0, rand_augment=None)
        return changed

    def decided_by(self, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """data: `Images`, or `Splits`."""
        images = getattr(data, "train", data)
        _, channels, side, _ = images.images.shape
        return {"data": images.name}, {"classes": len(images.classes), "channels": channels, "image": side}

    def fitted(self, data: Any, **more: Any) -> Self:
        """With the normalisation of these images too."""
        mean, std = getattr(data, "train", data).normalisation()
        return super().fitted(data, mean=mean, std=std, **more)


VARIANTS = ("plain", "smooth", "sharpen")  # ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ of Dovonon et al.


def variant_title(variant: str) -> str:
    """The paper's name for it."""
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

Compare its results with each other, not with published ones. It has no RandAugment, Mixup or CutMix, which help only in
runs long enough to overfit. Accuracy is 4.98 % (plain, seed 0, 10,000 test images; chance is 1 %), after 20 minutes on
one thread of a busy two-core CPU (aarch64, torch 2.13.0+cpu).
"""
