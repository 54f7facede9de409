"""Nguyen et al.'s ablation: NeuTRENO's λ̃, fixed from 0.05 to 1.5, or learned per layer and per head.

    oversmooth reproduce neutreno ablation --seeds 1 --at-once 3
    oversmooth reproduce neutreno ablation --cells 0.1,0.4,1.0

One recipe, 10 % of CIFAR-100: Dovonon et al.'s, as in `methods`, whose cell of λ̃ = 0.6 is taken from there and table
2's for λ̃ = 0. Which λ̃ the spectra of the plain model propose is what `oversmooth.steering.suggest` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, register
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.neutreno.methods import QUICK_NOTE, Methods
from oversmooth_papers.tables.variants import Case
from oversmooth_papers.tasks.images.recipe import Recipe

STRENGTHS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
VARIANTS = {
    "0": "plain",
    **{f"{strength:g}": f"neutreno:strength={strength:g}" for strength in STRENGTHS},
    "per-layer": "neutreno:strength=0,learned",
    "per-head": "neutreno:strength=0,learned,per=head",
}
"""By what --cells calls them."""
_NOTE = (
    "10 % of CIFAR-100; accuracy in % of the test images after the last epoch, mean ± standard deviation over seeds "
    "(their number); HFC/LFC and mean |cos| of what leaves the last block, of the first 8 test images. Every λ̃ has the "
    "same recipe and steps."
)


@register
@dataclass(frozen=True, kw_only=True)
class Ablation(Methods):
    """NeuTRENO's strength, from 0 to 1.5 and learned: accuracy and how smooth tokens end, 10 % of CIFAR-100."""

    name = "ablation"
    cells_help = f"Which, by λ̃: {', '.join(VARIANTS)}; by default all."

    def cases(self) -> Mapping[str, Case]:
        titles = {name: f"learned {name.replace('-', ' ')}, from 0" for name in ("per-layer", "per-head")}
        return {name: Case(titles.get(name, name), {"variant": words}) for name, words in VARIANTS.items()}

    def folder(self, recipe: Recipe) -> str:
        shared = recipe.variant in ("plain", VARIANTS["0.6"])
        return super().folder(recipe) if shared else self.folder_of(Ablation)

    def rows(self, kept: Kept) -> Rows:
        head, rows = super().rows(kept)
        return ["λ̃", *head[1:]], rows

    def chart(self, kept: Kept) -> Any:
        points = []
        for strength in (0.0, *STRENGTHS):
            if values := [100 * cell["accuracy"] for cell in self.cells(kept, f"{strength:g}")]:
                points.append(table_charts.point("NeuTRENO", "ours", *table_text.mean_and_spread(values), x=strength))
        return table_charts.lines([("10 % of CIFAR-100", points, "test accuracy, %")], "λ̃")

    def notes(self) -> list[str]:
        return [QUICK_NOTE] if self.quick else [_NOTE]
