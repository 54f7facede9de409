"""Everything that decides a training run, in one frozen object: saved beside what it made, and the name of a cell.

Not for how a run is watched or stopped (how often to evaluate, to save, to look at smoothing): that changes no weight.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import parse_json, read_json
from oversmooth.safety.options import option
from oversmooth.safety.typed import typed
from oversmooth.train.tasks.images.settings import CIFAR100_MEAN, CIFAR100_STD, RandAugment, Shape

if TYPE_CHECKING:
    from oversmooth.steering import Method
    from oversmooth.train.tasks.images.data import Images

VARIANTS = ("plain", "smooth", "sharpen")
"""ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ of the first paper."""
_BETWEEN_METHODS = " + "
_HIGHEST = 1e15  # of a rate: tensors take neither whole numbers of more than 64 bits nor floats beyond float32's
_SEEDS = 2**62  # torch's generators take 64 bits, and a run needs two seeds


@dataclass(frozen=True)
class Recipe:
    """The defaults are the recovered recipe of the first paper's tables 2 and 3, at 100 % of the data.

    ``epochs`` of cosine follow ``warmup`` epochs, both of ``len(data) // batch`` steps: the last incomplete batch is
    dropped, as timm's loader does for training. ``variant`` is plain, smooth, sharpen, or steering methods in words,
    such as ``neutreno:strength=0.6``, several joined by ``" + "``. Weight decay acts on all parameters. What `option`
    makes is an option of `oversmooth train`, with these words as its help.
    """

    data: str = "cifar100"
    share: float = option(1.0, "Share of the training images, above 0 and up to 1.")
    share_seed: int = option(0, "Which images the share takes.")
    """The same images for every variant and seed."""
    variant: str = option(
        "plain",
        "plain, smooth (ViT⁺) or sharpen (ViT⁻); or methods as oversmooth steer takes them, joined by ' + '.",
    )
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
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in ("warmup", "seed", "share_seed", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; give 0 or more")
        for name in ("lr", "weight_decay", "clip", "mixup", "cutmix"):
            if (getattr(self, name) or 0) > _HIGHEST:
                raise InputError(f"{name} is {getattr(self, name):g}; give at most {_HIGHEST:g}")
        for name in ("seed", "share_seed"):
            if getattr(self, name) >= _SEEDS:
                raise InputError(f"{name} is {getattr(self, name):,}; give less than {_SEEDS:,}")
        if not self.lr > 0:
            raise InputError(f"lr is {self.lr:g}; give a number above 0")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip is {self.clip:g}; give a gradient norm above 0, or none")
        choices = {
            "wiring": ("paper", "code"),
            "start": ("cold", "warm"),
            "initialisation": ("truncated", "torch"),
            "precision": ("bf16", "float32"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(allowed)}")
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        self.methods()  # refuses words that name none

    @property
    def total_epochs(self) -> int:
        return self.warmup + self.epochs

    @property
    def key(self) -> str:
        """Twelve digits that name the recipe, seed included: of what differs from PAPER.

        So a field that is added later, with the default that stands for what was done before, renames no cell.
        """
        return hashlib.sha256(json.dumps(_leaves_that_differ(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """For people: ``ViT-Ti⁻, 10 % of cifar100, seed 2``; another depth than 12 is said."""
        return f"{self.label}, seed {self.seed}"

    @property
    def label(self) -> str:
        """The title without the seed."""
        name = variant_title(self.variant)
        if self.shape.width != PAPER.shape.width:
            name = name.replace("ViT-Ti", "ViT")
        depth = "" if self.shape.depth == PAPER.shape.depth else f", depth {self.shape.depth}"
        return f"{name}{depth}, {percent(self.share)} of {self.data}"

    def autocasts(self, device: str) -> bool:
        """Whether steps run in bfloat16 on a device of this type."""
        return self.precision == "bf16" and device == "cuda"

    def methods(self) -> list[Method]:
        """What steers the model; none for plain."""
        if self.variant == "plain":  # before torch is needed: PAPER is made for help texts too
            return []
        from oversmooth.steering import Spectral
        from oversmooth.steering.methods.registry import method_named

        if self.variant in ("smooth", "sharpen"):
            return [Spectral(mode=self.variant, wiring=self.wiring, start=self.start, seed=self.seed)]  # type: ignore[arg-type]
        return [method_named(words.strip()) for words in self.variant.split(_BETWEEN_METHODS)]

    def changed(self, settings: dict[str, Any], augment: bool | None = None) -> Recipe:
        """With these settings, its own or the shape's, and all of augmentation or none; None leaves one as it is."""
        changes = {name: value for name, value in settings.items() if value is not None}
        sizes = {name: changes.pop(name) for name in list(changes) if name in Shape.__dataclass_fields__}
        if sizes:
            changes["shape"] = dataclasses.replace(self.shape, **sizes)
        if augment is True:
            usual = Recipe()
            changes |= dict(mixup=usual.mixup, cutmix=usual.cutmix, rand_augment=usual.rand_augment)
        elif augment is False:
            changes |= dict(mixup=0.0, cutmix=0.0, rand_augment=None)
        return dataclasses.replace(self, **changes)

    def fitted(self, images: Images) -> Recipe:
        """The same for these images: name, size, channels, classes and normalisation are theirs."""
        from oversmooth.train.tasks.images.data import normalisation

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

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    @classmethod
    def from_dict(cls, fields: dict[str, Any], where: str = "the recipe") -> Recipe:
        """What `to_dict` gave; fields that are missing have their defaults."""
        try:
            return typed(cls, fields)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{where} cannot be read ({reason(error)}); write it again with Recipe.to_json") from error

    @classmethod
    def from_json(cls, text: str, where: str = "the recipe") -> Recipe:
        return cls.from_dict(parse_json(text, f"{where} is no JSON", "write it again with Recipe.to_json"), where)

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """From a file."""
        return cls.from_dict(read_json(path, "give a recipe in JSON, as Recipe.to_json writes it"), str(path))

    def difference(self, other: Recipe) -> str | None:
        """The first field that differs, with both values, in words; None if none does."""
        mine, theirs = _leaves(self.to_dict()), _leaves(other.to_dict())
        for name in dict.fromkeys([*mine, *theirs]):
            if mine.get(name) != theirs.get(name):
                return f"{name} is {mine.get(name)!r} there and {theirs.get(name)!r} here"
        return None


def _leaves(fields: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by dotted name, lists as JSON has them."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= _leaves(value, f"{before}{name}.")
        else:
            flat[before + name] = list(value) if isinstance(value, tuple) else value
    return flat


def _leaves_that_differ(recipe: Recipe) -> dict[str, Any]:
    usual = _leaves(Recipe().to_dict())
    return {name: value for name, value in _leaves(recipe.to_dict()).items() if usual.get(name, ...) != value}


def variant_title(variant: str) -> str:
    """As the paper writes it."""
    return {"plain": "ViT-Ti", "smooth": "ViT-Ti⁺", "sharpen": "ViT-Ti⁻"}.get(variant, f"ViT-Ti with {variant}")


def percent(share: float) -> str:
    """``10 %``."""
    return f"{100 * share:.4g} %"


PAPER = Recipe()
"""Tables 2 and 3 of the first paper. What it reached on CIFAR-100, in % of the 10,000 test images after the last epoch:

    share   model     accuracy       seeds     minutes      published
    100 %   ViT-Ti    67.33          0         21.0         66.78 ± 0.1
    100 %   ViT-Ti⁺   not run                               64.34 ± 0.3
    100 %   ViT-Ti⁻   not run                               66.62 ± 0.3
    50 %    ViT-Ti    56.39          0         10.5         56.38 ± 0.5
    50 %    ViT-Ti⁺   55.63          0         11.8         55.21 ± 0.5
    50 %    ViT-Ti⁻   57.77          0         11.8         56.58 ± 0.3
    10 %    ViT-Ti    33.35 ± 0.37   0, 1, 2   2.1 to 5.4   32.47 ± 0.9
    10 %    ViT-Ti⁺   29.49 ± 0.51   0, 1, 2   2.3 to 6.0   28.67 ± 0.5
    10 %    ViT-Ti⁻   34.61 ± 0.61   0, 1, 2   2.3 to 6.0   33.99 ± 0.4

± is the standard deviation over seeds (n − 1); how many seeds are behind the published ± was not published. Minutes are
of one run on an NVIDIA H200 in bf16 (torch 2.11.0+cu130): the least alone, the most with other runs beside it. The
cells are in results/table2.
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
