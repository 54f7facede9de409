"""Nguyen et al.'s first table: a ViT and NeuTRENO, and NeuTRENO with FeatScale.

    oversmooth reproduce neutreno classification --at-once 3

Published on ImageNet-1k with DeiT-Tiny (300 epochs on 4 GPUs). Ours is Dovonon et al.'s recipe on 10 % of CIFAR-100,
so the figures do not compare in size: what can be held against the paper is the sign of the difference and how it
stands to the spread over seeds. The cells are those of `methods`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from oversmooth_papers.tables.base import Rows, register
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.neutreno.methods import METHODS, TITLES, Methods, accuracies, cells_of
from oversmooth_papers.tables.variants import ends


@register
@dataclass(frozen=True, kw_only=True)
class Classification(Methods):
    """Make the classification table of Nguyen et al.: the plain model, NeuTRENO, and NeuTRENO with FeatScale."""

    name = "classification"
    published: ClassVar = {"plain": 72.17, "neutreno": 73.01}
    """Top-1 of DeiT-Tiny on ImageNet-1k, in %."""
    shown: ClassVar[Sequence[str]] = ("plain", "neutreno", "neutreno+featscale")

    def rows(self, kept: Kept) -> Rows:
        rows = []
        for name in self.shown:
            cells = cells_of(kept, METHODS[name])
            rows.append([TITLES[name], accuracies(cells), *ends(cells), self.whose()])
            if not self.quick and name in self.published:
                rows.append([TITLES[name], f"{self.published[name]:.2f}", "–", "–", "published, ImageNet-1k"])
        return ["", "accuracy, %", "HFC/LFC, last", "mean |cos|, last", "whose"], rows
