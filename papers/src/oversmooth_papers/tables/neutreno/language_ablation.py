"""NeuTRENO's λ̃ on a language model, from 0 to 1.5: perplexity on WikiText-2.

    oversmooth reproduce neutreno language-ablation --seeds 1
    oversmooth reproduce neutreno language-ablation --cells 0.1,0.6 --norm pre

The recipe is that of `language`, whose cells of the baseline and of λ̃ = 0.4 are taken from there. Which λ̃ the spectra
of the baseline propose is what `oversmooth reproduce neutreno prediction --trained BASELINE` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, register
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.neutreno import language
from oversmooth_papers.tables.neutreno.ablation import STRENGTHS
from oversmooth_papers.tasks.language.recipe import QUICK, WIKITEXT2, Recipe

VARIANTS = {"0": "plain", **{f"{strength:g}": f"neutreno:strength={strength:g}" for strength in STRENGTHS}}
"""By what --cells calls them."""
_NOTE = (
    "WikiText-2: perplexity per word of the last epoch's model, windows of 256 tokens that slide by one; mean ± "
    "standard deviation over seeds (their number). HFC/LFC of what leaves the last block, of 8 windows of the "
    "validation text. Every λ̃ has the same recipe and steps; dropout and epochs were chosen for λ̃ = 0."
)


@register
@dataclass(frozen=True, kw_only=True)
class LanguageAblation(language.Language):
    """NeuTRENO's strength on a language model, from 0 to 1.5: perplexity on WikiText-2."""

    name = "language-ablation"
    cells_help = f"Which, by λ̃: {', '.join(VARIANTS)}; by default all."

    norm: Literal["post", "pre"] = option("post", "Where the norms stand: post, as published, or pre.")

    def recipes(self) -> list[Any]:
        base = QUICK if self.quick else WIKITEXT2
        base = replace(base, shape=replace(base.shape, norm=self.norm))
        return [replace(base, variant=words, seed=seed) for seed in range(self.seeds) for words in VARIANTS.values()]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": next((name for name, words in VARIANTS.items() if words == recipe.variant), "")}

    def folder(self, recipe: Recipe) -> str:
        """`language` has the cells of its two variants."""
        return self.folder_of(language.Language if recipe.variant in language.VARIANTS.values() else type(self))

    def rows(self, kept: Kept) -> Rows:
        cells = {name: language.cells_of(kept, words, self.norm) for name, words in VARIANTS.items()}
        return ["λ̃", *language.HEAD], [[name, *language.figures(own), self.whose()] for name, own in cells.items()]

    def chart(self, kept: Kept) -> Any:
        scores = {name: language.tested(language.cells_of(kept, words, self.norm)) for name, words in VARIANTS.items()}
        points = [
            table_charts.point("NeuTRENO", "ours", *table_text.mean_and_spread(own), x=float(name))
            for name, own in scores.items()
            if own
        ]
        title = f"WikiText-2, {self.norm.capitalize()}-LN"
        return table_charts.lines([(title, points, "test perplexity")], "λ̃")

    def notes(self) -> list[str]:
        return [language.QUICK_NOTE if self.quick else _NOTE]
