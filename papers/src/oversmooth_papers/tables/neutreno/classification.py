"""Nguyen et al.'s first table: a ViT and NeuTRENO, and NeuTRENO with FeatScale.

    oversmooth reproduce neutreno classification --at-once 3

Published on ImageNet-1k with DeiT-Tiny (300 epochs on 4 GPUs). Ours is Dovonon et al.'s recipe on 10 % of CIFAR-100,
so the figures do not compare in size: what can be held against the paper is the sign of the difference and how it
stands to the spread over seeds. The cells are those of `methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from oversmooth_papers.tables.base import Rows, register
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.neutreno.methods import CASES, Methods
from oversmooth_papers.tables.variants import Case


@register
@dataclass(frozen=True, kw_only=True)
class Classification(Methods):
    """Make the classification table of Nguyen et al.: the plain model, NeuTRENO, and NeuTRENO with FeatScale."""

    name = "classification"
    published: ClassVar = {"plain": 72.17, "neutreno": 73.01}
    """Top-1 of DeiT-Tiny on ImageNet-1k, in %."""

    def cases(self) -> Mapping[str, Case]:
        return {name: CASES[name] for name in ("plain", "neutreno", "neutreno+featscale")}

    def rows(self, kept: Kept) -> Rows:
        head, ours = super().rows(kept)
        rows = []
        for name, row in zip(self.cases(), ours, strict=True):
            rows.append(row)
            if not self.quick and name in self.published:
                rows.append([row[0], f"{self.published[name]:.2f}", "–", "–", "published, ImageNet-1k"])
        return head, rows
