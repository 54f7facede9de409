"""The comparison that neither paper has: every way of steering with one recipe, the same seeds and as many steps.

    oversmooth reproduce neutreno methods --at-once 3      10 % of CIFAR-100, about 2 minutes a run on an H200
    oversmooth reproduce neutreno methods --quick          a small version, minutes on a CPU

The recipe is Dovonon et al.'s for its table 2 at 10 % of the data, and was tuned for none of the methods, nor for the
plain model beyond what its authors did. Strengths are the published ones (NeuTRENO's 0.6 for vision) or, for methods
that learn theirs, where training begins: 0. Inversion and gated attention learn a linear map in every layer, 14 and 442
thousand weights of ViT-Ti's more. The cells of plain, smoothing and sharpening are table 2's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from oversmooth_papers.tables.case_table import CaseTable, hfc_lfc, mean_abs_cos, percent
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.variants import SHARE, Case
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe

CASES = {
    "plain": Case("plain ViT-Ti", {"variant": "plain"}),
    "neutreno": Case("NeuTRENO, λ̃ = 0.6", {"variant": "neutreno:strength=0.6"}),
    "featscale": Case("FeatScale", {"variant": "featscale"}),
    "attnscale": Case("AttnScale", {"variant": "attnscale"}),
    "neutreno+featscale": Case("NeuTRENO + FeatScale", {"variant": "neutreno:strength=0.6 + featscale"}),
    "contranorm": Case("ContraNorm, 0.1", {"variant": "contranorm"}),
    "valueresidual": Case("value residual, 0.5", {"variant": "valueresidual"}),
    "centred": Case("centred attention", {"variant": "centred"}),
    "sharpen": Case("Spectral, sharpening (ViT-Ti⁻)", {"variant": "sharpen"}),
    "smooth": Case("Spectral, smoothing (ViT-Ti⁺)", {"variant": "smooth"}),
    "inversion": Case("attention inversion", {"variant": "inversion"}),
    "gatedattention": Case("gated attention", {"variant": "gatedattention"}),
    "layernormscaling": Case("LayerNorm scaling, 1/√ℓ", {"variant": "layernormscaling"}),
    "orthogonalupdate": Case("orthogonal update of attention", {"variant": "orthogonalupdate"}),
}
"""By what --cells calls them."""
METHODS = {name: case.changes["variant"] for name, case in CASES.items()}
"""Variants of the recipe."""


@dataclass(frozen=True, kw_only=True)
class Methods(CaseTable):
    """Every way of steering beside the plain model: one recipe, the same seeds, 10 % of CIFAR-100."""

    name = "methods"
    group = "neutreno"
    cells_help = f"Which, by name: {', '.join(METHODS)}; by default all."
    full = replace(PAPER, share=SHARE)
    small = QUICK
    case_by_name = CASES
    columns: ClassVar = {"accuracy, %": percent("accuracy"), "HFC/LFC, last": hfc_lfc, "mean |cos|, last": mean_abs_cos}
    quick_note = (
        "quick: a small ViT (patch 4, depth 4, width 64), 2,500 images, 5 epochs. These figures compare with each "
        "other and with nothing that is published."
    )
    note = (
        "10 % of CIFAR-100. Accuracy in % of the test images after the last epoch; HFC/LFC and mean |cos| of what "
        "leaves the last block, of the first 8 test images; mean ± standard deviation over seeds (their number). Equal "
        "budgets: every row has the same recipe and steps, and none was tuned; rows of other numbers of seeds compare "
        "seed by seed."
    )

    def folder(self, recipe: Recipe) -> str:
        """Table 2 has the cells of Dovonon et al.'s variants."""
        return self.folder_of(Table2 if recipe.variant in VARIANTS else Methods)
