"""Nguyen et al.'s language model, and NeuTRENO on it: perplexity on WikiText-2.

    oversmooth reproduce neutreno language --seeds 1
    oversmooth reproduce neutreno language --quick         bytes of the package's own prose, a minute on a CPU
    oversmooth reproduce neutreno language-ablation --cells 0.1,0.6 --norm pre

Published on WikiText-103, whose text users have (`oversmooth train --task language --data wikitext-103`); here the same
16 blocks of width 128 read WikiText-2, a fiftieth of that, Post-LN as published and Pre-LN beside it. Differs from the
paper: a plain softmax over all 33,278 words instead of an adaptive one; warm-up, epochs and dropout scaled to the
smaller text and chosen for the baseline, the same for every row. Perplexity slides a window of 256 tokens by one, as
the paper's does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Case, Column, Table, last_snapshots
from oversmooth_papers.tables.cells import Available, scores
from oversmooth_papers.tables.neutreno import methods
from oversmooth_papers.tasks.language.recipe import QUICK, WIKITEXT2

NORMS = {"post": "Post-LN", "pre": "Pre-LN"}
_METHODS = {
    "plain": ("baseline", "plain"),
    "neutreno": ("NeuTRENO, λ̃ = 0.4", methods.FIXED["0.4"]),
}


def over_seeds(values: Sequence[float], form: str = ".2f") -> str:
    """``91.09``, and with several seeds ``91.09 ± 0.4 (3)``."""
    return table_text.over_seeds(values, form, count="several")


def _perplexity(name: str) -> Column:
    return lambda row: over_seeds(scores(row.cells, name))


@dataclass(frozen=True, kw_only=True)
class Language(Table):
    """Make the language table of Nguyen et al.: the baseline and NeuTRENO, Post-LN and Pre-LN, on WikiText-2."""

    name = "language"
    group = "neutreno"
    default_data = "wikitext-2"
    quick_data = "prose"
    data_help = "wikitext-2 where OVERSMOOTH_DATA has it, or its folder."
    cells_help = "The cells to run: plain, neutreno, post, pre, or both (plain:post); by default all."
    full = WIKITEXT2
    small = QUICK
    case_by_name: ClassVar = {
        f"{name}:{norm}": Case(f"{model}, {title}", {"variant": variant, "norm": norm})
        for norm, title in NORMS.items()
        for name, (model, variant) in _METHODS.items()
    }
    column_by_heading: ClassVar = {
        "validation": _perplexity("valid_perplexity_sliding"),
        "test": _perplexity("test_perplexity_sliding"),
        "HFC/LFC, last": lambda row: over_seeds(last_snapshots(row.cells, 1), ".3g"),
    }
    published: ClassVar = {"plain:post": {"test": 34.29}, "neutreno:post": {"test": 33.70}}
    published_by = "published, WikiText-103"
    score = ("test_perplexity_sliding", 1)
    label = "test perplexity"
    note = (
        "Perplexity per word of the last epoch's model, windows of 256 tokens that slide by one; mean ± standard "
        "deviation over seeds (their number). HFC/LFC of what leaves the last block, of 8 windows of the validation "
        "text. Published: WikiText-103, which is fifty times as long, so that the figures compare in sign alone. Equal "
        "budgets: baseline and method have the same recipe, steps and seeds; dropout and epochs were chosen for the "
        "baseline."
    )

    def names_of(self, recipe: Any) -> dict[str, str]:
        return dict(zip(("variant", "norm"), self.case_of(recipe).split(":"), strict=True))

    def chart(self, available: Available) -> Any:
        panels: dict[str, list[table_charts.Point]] = {title: [] for title in NORMS.values()}
        for name, case in self.cases().items():
            model, _, norm = case.title.rpartition(", ")
            panels[norm] += table_charts.over_seeds(model, "ours", self.charted(available, name))
        return table_charts.points([*panels.items()], self.label)


@dataclass(frozen=True, kw_only=True)
class LanguageAblation(Language):
    """NeuTRENO's strength on a language model, from 0 to 1.5: perplexity on WikiText-2."""

    name = "language-ablation"
    cells_help = f"The cells to run, by λ̃: {', '.join(methods.FIXED)}; by default all."
    rows_are = "λ̃"
    published: ClassVar = {}
    note = (
        "WikiText-2: perplexity per word of the last epoch's model, windows of 256 tokens that slide by one; mean ± "
        "standard deviation over seeds (their number). HFC/LFC of what leaves the last block, of 8 windows of the "
        "validation text. Every λ̃ has the same recipe and steps; dropout and epochs were chosen for λ̃ = 0."
    )

    norm: Literal["post", "pre"] = option("post", "Where the norms stand: post, as published, or pre.")

    def cases(self) -> Mapping[str, Case]:
        own = {"norm": self.norm}
        return {f"{name}:{self.norm}": Case(name, {"variant": v, **own}) for name, v in methods.FIXED.items()}

    def folder(self, recipe: Any) -> str:
        """`language` has the cells of its two variants."""
        return self.folder_of(Language if recipe.variant in ("plain", methods.FIXED["0.4"]) else LanguageAblation)

    def chart(self, available: Available) -> Any:
        return methods.curve(self, available, f"WikiText-2, {NORMS[self.norm]}")
