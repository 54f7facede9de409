"""NeuTRENO's λ̃ on a language model, from 0 to 1.5: perplexity on WikiText-2.

    oversmooth reproduce neutreno language-ablation --seeds 1
    oversmooth reproduce neutreno language-ablation --cells 0.1,0.6 --norm pre

The recipe is that of `language`, whose cells of the baseline and of λ̃ = 0.4 are taken from there. Which λ̃ the spectra
of the baseline propose is what `oversmooth reproduce neutreno prediction --trained BASELINE` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from oversmooth_papers.engine.options import option
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.neutreno import ablation
from oversmooth_papers.tables.neutreno.language import NORMS, Language
from oversmooth_papers.tables.variants import Case


@dataclass(frozen=True, kw_only=True)
class LanguageAblation(Language):
    """NeuTRENO's strength on a language model, from 0 to 1.5: perplexity on WikiText-2."""

    name = "language-ablation"
    cells_help = f"Which, by λ̃: {', '.join(ablation.CASES)}; by default all."
    rows_are = "λ̃"
    published: ClassVar = {}
    note = (
        "WikiText-2: perplexity per word of the last epoch's model, windows of 256 tokens that slide by one; mean ± "
        "standard deviation over seeds (their number). HFC/LFC of what leaves the last block, of 8 windows of the "
        "validation text. Every λ̃ has the same recipe and steps; dropout and epochs were chosen for λ̃ = 0."
    )

    norm: Literal["post", "pre"] = option("post", "Where the norms stand: post, as published, or pre.")

    def cases(self) -> Mapping[str, Case]:
        return {f"{name}:{self.norm}": case for name, case in ablation.CASES.items()}

    def folder(self, recipe: Any) -> str:
        """`language` has the cells of its two variants."""
        shared = recipe.variant in (ablation.VARIANTS["0"], ablation.VARIANTS["0.4"])
        return self.folder_of(Language if shared else LanguageAblation)

    def chart(self, kept: Kept) -> Any:
        return ablation.curve(self, kept, f"WikiText-2, {NORMS[self.norm]}")
