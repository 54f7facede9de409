"""Nguyen et al.'s first table: a ViT and NeuTRENO, and NeuTRENO with FeatScale.

    oversmooth reproduce neutreno classification --at-once 3

Published on ImageNet-1k with DeiT-Tiny (300 epochs on 4 GPUs). Ours is Dovonon et al.'s recipe on 10 % of CIFAR-100,
so the figures do not compare in size: what can be held against the paper is the sign of the difference and how it
stands to the spread over seeds. The cells are those of `methods`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from oversmooth_papers.tables.neutreno.methods import CASES, Methods


@dataclass(frozen=True, kw_only=True)
class Classification(Methods):
    """Make the classification table of Nguyen et al.: the plain model, NeuTRENO, and NeuTRENO with FeatScale."""

    name = "classification"
    case_by_name: ClassVar = {name: CASES[name] for name in ("plain", "neutreno", "neutreno+featscale")}
    published: ClassVar = {"plain": 72.17, "neutreno": 73.01}
    """Top-1 of DeiT-Tiny, in %."""
    published_as = ("accuracy, %", "ImageNet-1k")
