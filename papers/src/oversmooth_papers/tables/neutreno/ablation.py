"""Nguyen et al.'s ablation: NeuTRENO's λ̃, fixed from 0.05 to 1.5, or learned per layer and per head.

    oversmooth reproduce neutreno ablation --seeds 1 --at-once 3
    oversmooth reproduce neutreno ablation --cells 0.1,0.4,1.0

One recipe, 10 % of CIFAR-100: Dovonon et al.'s, as in `methods`, whose cell of λ̃ = 0.6 is taken from there and table
2's for λ̃ = 0. Which λ̃ the spectra of the plain model propose is what `oversmooth.steering.suggest` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables.case_table import CaseTable
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.neutreno.methods import Methods
from oversmooth_papers.tables.variants import Case
from oversmooth_papers.tasks.images.recipe import Recipe

STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
VARIANTS = {f"{strength:g}": f"neutreno:strength={strength:g}" if strength else "plain" for strength in STRENGTHS}
"""Of recipes, by what --cells calls them."""
CASES = {name: Case(name, {"variant": variant}) for name, variant in VARIANTS.items()}
_LEARNED = {
    "per-layer": Case("learned per layer, from 0", {"variant": "neutreno:strength=0,learned"}),
    "per-head": Case("learned per head, from 0", {"variant": "neutreno:strength=0,learned,per=head"}),
}


def curve(table: CaseTable, kept: Kept, title: str) -> Any:
    """The chart: figures against λ̃, where it is fixed."""
    points = []
    for name in table.cases():
        strength = name.partition(":")[0]
        if strength in VARIANTS:
            points += table_charts.over_seeds("NeuTRENO", "ours", table.charted(kept, name), x=float(strength))
    return table_charts.lines([(title, points, table.label)], "λ̃")


@dataclass(frozen=True, kw_only=True)
class Ablation(Methods):
    """NeuTRENO's strength, from 0 to 1.5 and learned: accuracy and how smooth tokens end, 10 % of CIFAR-100."""

    name = "ablation"
    case_by_name = CASES | _LEARNED
    cells_help = f"Which, by λ̃: {', '.join(case_by_name)}; by default all."
    rows_are = "λ̃"
    note = (
        "10 % of CIFAR-100; accuracy in % of the test images after the last epoch, mean ± standard deviation over "
        "seeds (their number); HFC/LFC and mean |cos| of what leaves the last block, of the first 8 test images. Every "
        "λ̃ has the same recipe and steps."
    )

    def folder(self, recipe: Recipe) -> str:
        shared = recipe.variant in (VARIANTS["0"], VARIANTS["0.6"])
        return super().folder(recipe) if shared else self.folder_of(Ablation)

    def chart(self, kept: Kept) -> Any:
        return curve(self, kept, self.title)
