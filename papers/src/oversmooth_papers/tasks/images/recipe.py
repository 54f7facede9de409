"""Everything that decides how a ViT is trained on images, in one frozen object."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from oversmooth.safety.errors import InputError
from oversmooth.safety.options import option
from oversmooth_papers.engine.recipe import BaseRecipe, Scores, check_layers, methods_of, ramp_option
from oversmooth_papers.tasks.images.settings import CIFAR100_MEAN, CIFAR100_STD, RandAugment, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from oversmooth.steering import Method
    from oversmooth_papers.tasks.images.data import Images

VARIANTS = ("plain", "smooth", "sharpen")
"""ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ of Dovonon et al."""
_USUAL = {"wiring": "paper", "start": "cold"}


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """The defaults are the recovered recipe of Dovonon et al.'s tables 2 and 3, at 100 % of the data.

    ``epochs`` of cosine follow ``warmup`` epochs, both of ``len(data) // batch`` steps: the last incomplete batch is
    dropped, as timm's loader does for training. ``variant`` is plain, smooth, sharpen, or steering methods in words,
    such as ``neutreno:strength=0.6``, several joined by ``" + "``. Weight decay acts on all parameters. What `option`
    makes is an option of `oversmooth train`, with these words as its help.
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
    """Of smooth and sharpen; see `steering.Spectral`."""
    start: Literal["cold", "warm"] = option(
        "cold", "Of smooth and sharpen: cold as the paper begins, or warm from the plain weights."
    )
    """Of smooth and sharpen: as the paper initialises, or from the plain model's weights."""
    initialisation: Literal["truncated", "torch"] = option("truncated", "Of other weights: truncated or torch.")
    """Of all other weights: normal of 0.02 as ViTs usually begin, or torch's own; the paper does not say."""
    output_bias: bool = option(True, "Of smooth and sharpen: of attention's output; the authors' early code has none.")
    """Of attention in smooth and sharpen; the authors' early code has none there (THEORY §5)."""
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
            at_least_0=("warmup", "seed", "share_seed", "weight_decay"),
            bounded=("lr", "weight_decay", "clip", "mixup", "cutmix"),
        )
        self.check_choices(
            wiring=("paper", "code"),
            start=("cold", "warm"),
            initialisation=("truncated", "torch"),
            precision=("bf16", "float32"),
        )
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
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
        """``ViT-Ti⁻, 10 % of cifar100``; another depth than 12 is named."""
        name = variant_title(self.variant)
        if self.shape.width != PAPER.shape.width:
            name = name.replace("ViT-Ti", "ViT")
        depth = "" if self.shape.depth == PAPER.shape.depth else f", depth {self.shape.depth}"
        return f"{name}{self._unusual}{depth}, {percent(self.share)} of {self.data}"

    @property
    def _unusual(self) -> str:
        """What sets a steered model apart from the paper's."""
        if self.variant == "plain":
            return ""
        words = ["" if self.layers == "all" else f"layers {self.layers}", "freed" if self.freed else ""]
        words.append(f"ramp {self.ramp:g}" if self.ramp else "")
        if self.variant in VARIANTS:
            words += [f"{name} {word}" for name in ("wiring", "start") if (word := getattr(self, name)) != _USUAL[name]]
        return "".join(f", {word}" for word in words if word)

    @property
    def parameters(self) -> int:
        return self.shape.parameters

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
        """Refuse images of another data set or size."""
        _, channels, height, width = images.images.shape
        wanted, given = self.shape, (channels, height, width, len(images.classes))
        if given != (wanted.channels, wanted.image, wanted.image, wanted.classes):
            raise InputError(
                f"{images.name} has images ({channels}, {height}, {width}) in {len(images.classes)} classes and the "
                f"recipe is for ({wanted.channels}, {wanted.image}, {wanted.image}) in {wanted.classes}; "
                "fit it with recipe.fitted(images)"
            )
        if images.name != self.data:
            raise InputError(
                f"the recipe is for {self.data} and the images are {images.name}; give those of the recipe"
            )


def variant_title(variant: str) -> str:
    """As the paper writes it."""
    return {"plain": "ViT-Ti", "smooth": "ViT-Ti⁺", "sharpen": "ViT-Ti⁻"}.get(variant, f"ViT-Ti with {variant}")


def percent(share: float) -> str:
    """``10 %``."""
    return f"{100 * share:.4g} %"


PAPER = Recipe()
"""Tables 2 and 3 of Dovonon et al. What it reached on CIFAR-100, in % of the 10,000 test images after the last epoch:

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
the 25.2 and 26.0 in part. The cells are in results/table2.
"""

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
"""A small honest version for a CPU: minutes, 2,500 images, 5 epochs, 0.2 million weights.

Its figures compare with each other and with nothing that is published. Without RandAugment, Mixup and CutMix, which
help only in runs that are long enough to overfit. What it reached: plain, seed 0, 4.98 % of the 10,000 test images
(chance is 1 %), in 20 minutes on one thread of a busy two-core CPU (aarch64, torch 2.13.0+cpu).
"""
