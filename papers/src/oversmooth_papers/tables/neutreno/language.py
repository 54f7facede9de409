"""Nguyen et al.'s language model, and NeuTRENO on it: perplexity on WikiText-2.

    oversmooth reproduce neutreno language --seeds 1
    oversmooth reproduce neutreno language --quick         bytes of the package's own prose, a minute on a CPU

Published on WikiText-103, whose text users have (`oversmooth train --task language --data wikitext-103`); here the same
16 blocks of width 128 read WikiText-2, a fiftieth of that, Post-LN as published and Pre-LN beside it. Differs from the
paper: a plain softmax over all 33,278 words instead of an adaptive one; warm-up, epochs and dropout scaled to the
smaller text and chosen for the baseline, the same for every row. Perplexity slides a window of 256 tokens by one, as
the paper's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, Table, register
from oversmooth_papers.tables.cells import Cell, Kept
from oversmooth_papers.tasks.language.recipe import QUICK, WIKITEXT2, Recipe

NORMS: tuple[Literal["post", "pre"], ...] = ("post", "pre")
VARIANTS = {"plain": "plain", "neutreno": "neutreno:strength=0.4"}
TITLES = {"plain": "baseline", "neutreno": "NeuTRENO, λ̃ = 0.4"}
HEAD = ("validation", "test", "HFC/LFC, last", "whose")
_NOTE = (
    "Perplexity per word of the last epoch's model, windows of 256 tokens that slide by one; mean ± standard deviation "
    "over seeds (their number). HFC/LFC of what leaves the last block, of 8 windows of the validation text. Published: "
    "WikiText-103, which is fifty times as long, so that the figures compare in sign alone. Equal budgets: baseline "
    "and method have the same recipe, steps and seeds; dropout and epochs were chosen for the baseline."
)
QUICK_NOTE = (
    "quick: 4 blocks of width 64, bytes of the package's prose, perplexity per byte. These figures compare with each "
    "other and with nothing that is published."
)


@register
@dataclass(frozen=True, kw_only=True)
class Language(Table):
    """Make the language table of Nguyen et al.: the baseline and NeuTRENO, Post-LN and Pre-LN, on WikiText-2."""

    name = "language"
    group = "neutreno"
    asks_unknowns = False
    default_data = "wikitext-2"
    quick_data = "prose"
    data_help = "wikitext-2 where OVERSMOOTH_DATA has it, or its folder."
    cells_help = "Which: plain, neutreno, post, pre, or both (plain:post); by default all."
    published: ClassVar = {"plain": 34.29, "neutreno": 33.70}
    """Test perplexity on WikiText-103."""

    def recipes(self) -> list[Any]:
        base = QUICK if self.quick else WIKITEXT2
        return [
            replace(base, variant=variant, seed=seed, shape=replace(base.shape, norm=norm))
            for seed in range(self.seeds)
            for norm in NORMS
            for variant in VARIANTS.values()
        ]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {
            "variant": next(name for name, words in VARIANTS.items() if words == recipe.variant),
            "norm": recipe.shape.norm,
        }

    def rows(self, kept: Kept) -> Rows:
        rows = []
        for norm in NORMS:
            for name in VARIANTS:
                title = f"{TITLES[name]}, {norm.capitalize()}-LN"
                rows.append([title, *figures(cells_of(kept, VARIANTS[name], norm)), self.whose()])
                if norm == "post" and not self.quick:
                    rows.append([title, "–", f"{self.published[name]:.2f}", "–", "published, WikiText-103"])
        return ["", *HEAD], rows

    def chart(self, kept: Kept) -> Any:
        panels = []
        for norm in NORMS:
            scores = {name: tested(cells_of(kept, VARIANTS[name], norm)) for name in VARIANTS}
            points = [
                table_charts.point(TITLES[name], "ours", *table_text.mean_and_spread(own))
                for name, own in scores.items()
                if own
            ]
            panels.append((f"{norm.capitalize()}-LN", points))
        return table_charts.points(panels, "test perplexity")

    def notes(self) -> list[str]:
        return [QUICK_NOTE if self.quick else _NOTE]


def cells_of(kept: Kept, variant: str, norm: str) -> list[Cell]:
    """Over seeds."""
    return [cell for recipe, cell in kept.items() if (recipe.variant, recipe.shape.norm) == (variant, norm)]


def tested(cells: Sequence[Cell]) -> list[float]:
    """Perplexities on the test text."""
    return [cell["test_perplexity_sliding"] for cell in cells]


def figures(cells: Sequence[Cell]) -> list[str]:
    """Of a row: what `HEAD` names, but for whose."""
    looks = [cell["smoothing"][-1]["hfc_lfc"][-1] for cell in cells if cell.get("smoothing")]
    splits = [[cell.get(f"{split}_perplexity_sliding") for cell in cells] for split in ("valid", "test")]
    return [*map(over_seeds, splits), over_seeds(looks, ".3g")]


def over_seeds(values: Sequence[float | None], form: str = ".2f") -> str:
    """``91.09``, and with several seeds ``91.09 ± 0.4 (3)``; those without the figure are left out."""
    return table_text.over_seeds([value for value in values if value is not None], form, count="several")
