"""The comparison that neither paper has, and two tables of Nguyen et al. that are parts of it: 10 % of CIFAR-100.

    oversmooth reproduce neutreno methods --at-once 3      about 2 minutes a run on an H200
    oversmooth reproduce neutreno methods --quick          a small version, minutes on a CPU
    oversmooth reproduce neutreno classification --at-once 3
    oversmooth reproduce neutreno ablation --cells 0.1,0.4,1.0

The recipe is Dovonon et al.'s for its table 2 at 10 % of the data, and was tuned for none of the methods, nor for the
plain model beyond what its authors did. Strengths are the published ones (NeuTRENO's 0.6 for vision) or, for methods
that learn theirs, where training begins: 0. Inversion and gated attention learn a linear map in every layer, 14 and 442
thousand weights of ViT-Ti's more. Tables share cells: those of plain, smoothing and sharpening are table 2's own.
Nguyen et al. published classification on ImageNet-1k with DeiT-Tiny, so that the figures compare in sign alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables.base import Case, Table
from oversmooth_papers.tables.cells import Available
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images.recipe import VARIANTS

STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5)
"""λ̃ of the ablation."""
FIXED = {f"{strength:g}": f"neutreno:strength={strength:g}" if strength else "plain" for strength in STRENGTHS}
"""Variants of recipes, by what --cells calls them."""
_TITLES = {
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
METHODS = {name: name for name in _TITLES} | {
    "neutreno": FIXED["0.6"],
    "neutreno+featscale": f"{FIXED['0.6']} + featscale",
}
"""Variants of the recipe, by what --cells calls them."""


@dataclass(frozen=True, kw_only=True)
class Methods(Table):
    """Every way of steering beside the plain model: one recipe, the same seeds, 10 % of CIFAR-100."""

    name = "methods"
    group = "neutreno"
    case_by_name: ClassVar = {name: Case(title, {"variant": METHODS[name]}) for name, title in _TITLES.items()}
    cells_from: ClassVar = dict.fromkeys(VARIANTS, Table2)
    note = (
        "10 % of CIFAR-100. Accuracy in % of the test images after the last epoch; HFC/LFC and mean |cos| of what "
        "leaves the last block, of the first 8 test images; mean ± standard deviation over seeds (their number). Equal "
        "budgets: every row has the same recipe and steps, and none was tuned; rows of other numbers of seeds compare "
        "seed by seed."
    )


@dataclass(frozen=True, kw_only=True)
class Classification(Methods):
    """Make the classification table of Nguyen et al.: the plain model, NeuTRENO, and NeuTRENO with FeatScale."""

    name = "classification"
    case_by_name: ClassVar = {n: Methods.case_by_name[n] for n in ("plain", "neutreno", "neutreno+featscale")}
    cells_from: ClassVar = {"plain": Table2, "neutreno": Methods, "neutreno+featscale": Methods}
    published: ClassVar = {"plain": {"accuracy, %": 72.17}, "neutreno": {"accuracy, %": 73.01}}
    """Top-1 of DeiT-Tiny, in %."""
    published_by = "published, ImageNet-1k"


def curve(table: Table, available: Available, title: str) -> Any:
    """The chart of an ablation: figures against λ̃, where it is fixed."""
    points = []
    for name in table.cases():
        strength = name.partition(":")[0]
        if strength in FIXED:
            points += table_charts.over_seeds("NeuTRENO", "ours", table.charted(available, name), x=float(strength))
    return table_charts.lines([(title, points, table.label)], "λ̃")


@dataclass(frozen=True, kw_only=True)
class Ablation(Methods):
    """NeuTRENO's strength, from 0 to 1.5 and learned: accuracy and how smooth tokens end, 10 % of CIFAR-100."""

    name = "ablation"
    case_by_name: ClassVar = {name: Case(name, {"variant": variant}) for name, variant in FIXED.items()} | {
        "per-layer": Case("learned per layer, from 0", {"variant": "neutreno:strength=0,learned"}),
        "per-head": Case("learned per head, from 0", {"variant": "neutreno:strength=0,learned,per=head"}),
    }
    cells_from: ClassVar = {"0": Table2, "0.6": Methods}
    rows_are = "λ̃"
    note = (
        "10 % of CIFAR-100; accuracy in % of the test images after the last epoch, mean ± standard deviation over "
        "seeds (their number); HFC/LFC and mean |cos| of what leaves the last block, of the first 8 test images. Every "
        "λ̃ has the same recipe and steps."
    )

    def chart(self, available: Available) -> Any:
        return curve(self, available, self.title)
