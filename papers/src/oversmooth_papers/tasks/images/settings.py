"""What a recipe is made of beside numbers of its own: plain data, which help texts and files take without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth.safety.options import option

CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
HIGHEST_MAGNITUDE = 10.0
"""At which each of RandAugment's operations is strongest, or for some weakest."""
_MOST_OPERATIONS = 100  # on one image, of which nothing would be left
_BLOCK = 50_000  # bytes of a block's modules, whatever its width


@dataclass(frozen=True)
class Shape:
    """The defaults are ViT-Ti on 32 px images with patches of 2: 257 tokens (Dovonon et al.'s tables 2 and 3)."""

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
        """Refuse what exceeds the machine. copies: of the weights, gradients and moments too; more: bytes beside."""
        check_fits(
            copies * 4 * self.parameters + _BLOCK * self.depth + more,
            f"a ViT of depth {self.depth:,} and width {self.width:,} has {self.parameters:,} weights and",
            "give a smaller one",
        )


@dataclass(frozen=True)
class RandAugment:
    """Settings: ``operations`` per image, with replacement, each applied with ``probability``.

    The magnitude is normal about ``magnitude`` with spread ``noise``, cut to 0..10. With ``increasing`` (timm's
    ``inc1``) a larger magnitude always means a stronger change. ``interpolation`` "random" is timm's own when none is
    asked for: bilinear or bicubic with equal chance.
    """

    magnitude: float = 9.0
    operations: int = 2
    noise: float = 1.0
    probability: float = 0.5
    increasing: bool = False
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude <= HIGHEST_MAGNITUDE:
            raise InputError(f"RandAugment's magnitude is {self.magnitude}; it goes from 0 to {HIGHEST_MAGNITUDE:g}")
        if not 1 <= self.operations <= _MOST_OPERATIONS:
            raise InputError(
                f"RandAugment has {self.operations} operations; give 1 to {_MOST_OPERATIONS}, or leave it out"
            )
        if not 0 <= self.noise <= 1e6:
            raise InputError(f"RandAugment's noise is {self.noise}; it is a spread, from 0 to 1,000,000")
        if not 0 <= self.probability <= 1:
            raise InputError(f"RandAugment's probability is {self.probability}; it goes from 0 to 1")
        if self.interpolation not in ("random", "bilinear", "bicubic"):
            raise InputError(f"no interpolation {self.interpolation!r}; choose random, bilinear or bicubic")
