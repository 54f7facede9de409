"""The comparison that neither paper has: every way of steering with one recipe, the same seeds and as many steps.

    oversmooth reproduce neutreno methods --at-once 3      10 % of CIFAR-100, about 2 minutes a run on an H200
    oversmooth reproduce neutreno methods --quick          a small version, minutes on a CPU

The recipe is Dovonon et al.'s for its table 2 at 10 % of the data, and was tuned for none of the methods, nor for the
plain model beyond what its authors did. Strengths are the published ones (NeuTRENO's 0.6 for vision) or, for methods
that learn theirs, where training begins: 0. Inversion and gated attention learn a linear map in every layer, 14 and 442
thousand weights of ViT-Ti's more. The cells of plain, smoothing and sharpening are table 2's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, Table, register
from oversmooth_papers.tables.cells import Cell, Kept
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.variants import ends
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe

SHARE = 0.1
METHODS = {
    "plain": "plain",
    "neutreno": "neutreno:strength=0.6",
    "featscale": "featscale",
    "attnscale": "attnscale",
    "neutreno+featscale": "neutreno:strength=0.6 + featscale",
    "contranorm": "contranorm",
    "valueresidual": "valueresidual",
    "centred": "centred",
    "sharpen": "sharpen",
    "smooth": "smooth",
    "inversion": "inversion",
    "gatedattention": "gatedattention",
    "layernormscaling": "layernormscaling",
    "orthogonalupdate": "orthogonalupdate",
}
"""Variants of the recipe by what --cells calls them."""
TITLES = {
    "plain": "plain ViT-Ti",
    "neutreno": "NeuTRENO, λ̃ = 0.6",
    "featscale": "FeatScale",
    "attnscale": "AttnScale",
    "neutreno+featscale": "NeuTRENO + FeatScale",
    "contranorm": "ContraNorm, 0.1",
    "valueresidual": "value residual, 0.5",
    "centred": "centred attention",
    "sharpen": "Spectral, sharpening (ViT-Ti⁻)",
    "smooth": "Spectral, smoothing (ViT-Ti⁺)",
    "inversion": "attention inversion",
    "gatedattention": "gated attention",
    "layernormscaling": "LayerNorm scaling, 1/√ℓ",
    "orthogonalupdate": "orthogonal update of attention",
}
QUICK_NOTE = (
    "quick: a small ViT (patch 4, depth 4, width 64), 2,500 images, 5 epochs. These figures compare with each other "
    "and with nothing that is published."
)
NOTE = (
    "10 % of CIFAR-100. Accuracy in % of the test images after the last epoch; HFC/LFC and mean |cos| of what leaves "
    "the last block, of the first 8 test images; mean ± standard deviation over seeds (their number). Equal budgets: "
    "every row has the same recipe and steps, and none was tuned; rows of other numbers of seeds compare seed by seed."
)


@register
@dataclass(frozen=True, kw_only=True)
class Methods(Table):
    """Every way of steering beside the plain model: one recipe, the same seeds, 10 % of CIFAR-100."""

    name = "methods"
    group = "neutreno"
    asks_unknowns = False
    cells_help = f"Which, by name: {', '.join(METHODS)}; by default all."
    shown: ClassVar[Sequence[str]] = tuple(METHODS)
    """Rows, in their order."""

    def recipes(self) -> list[Any]:
        """Seed by seed, so that a table that is cut short compares all of them."""
        base = QUICK if self.quick else replace(PAPER, share=SHARE)
        return [replace(base, variant=METHODS[name], seed=seed) for seed in range(self.seeds) for name in self.shown]

    def folder(self, recipe: Recipe) -> str:
        """Table 2 has the cells of Dovonon et al.'s variants."""
        return self.folder_of(Table2 if recipe.variant in VARIANTS else Methods)

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": next((name for name, own in METHODS.items() if own == recipe.variant), recipe.variant)}

    def rows(self, kept: Kept) -> Rows:
        rows = []
        for name in self.shown:
            cells = cells_of(kept, METHODS[name])
            rows.append([TITLES[name], accuracies(cells), *ends(cells), self.whose()])
        return ["", "accuracy, %", "HFC/LFC, last", "mean |cos|, last", "whose"], rows

    def chart(self, kept: Kept) -> Any:
        points = []
        for name in self.shown:
            if cells := cells_of(kept, METHODS[name]):
                mean, spread = table_text.mean_and_spread([100 * cell["accuracy"] for cell in cells])
                points.append(table_charts.point(TITLES[name], self.whose(), mean, spread))
        return table_charts.bars("10 % of CIFAR-100, mean and spread over seeds", points, "test accuracy, %")

    def notes(self) -> list[str]:
        return [QUICK_NOTE] if self.quick else [NOTE]


def cells_of(kept: Kept, variant: str) -> list[Cell]:
    """Over seeds."""
    return [cell for recipe, cell in kept.items() if recipe.variant == variant]


def accuracies(cells: Sequence[Cell]) -> str:
    return table_text.percent_over_seeds([cell["accuracy"] for cell in cells])
