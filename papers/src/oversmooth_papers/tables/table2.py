"""Dovonon et al.'s table 2: CIFAR-100 accuracy of ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ against the share of training data.

    oversmooth reproduce table2 --cells 10% --seeds 3 --at-once 3      the 10 % column, about 2 minutes a run on an H200
    oversmooth reproduce table2 --quick                                a small version, minutes on a CPU

The recipe is `tasks.images.recipe.PAPER` (recovered from the authors' code), which says what it reached, with
which seeds, on what and in what time: all blocks constrained, Θ and ψ as in THEORY §5 with the paper's wiring. Accuracy
is that of the last epoch on the 10,000 test images; ± is the standard deviation over seeds (n − 1). How many seeds are
behind the published ± was not published.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth.safety.errors import InputError
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Available
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe, percent

SHARES = (1.0, 0.5, 0.1)
_QUICK_NOTE = (
    "quick: a small ViT (patch 4, depth 4, width 64), 2,500 images, 5 epochs. These figures compare with each other "
    "and with nothing that is published."
)


@dataclass(frozen=True, kw_only=True)
class Table2(Table):
    """Make table 2 of Dovonon et al.: accuracy against the share of training data, for ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻.

    Cells that are not there yet are run, and kept; interrupted ones go on from their checkpoint next time.
    """

    name = "table2"
    published: ClassVar = {
        "plain": {1.0: (66.78, 0.1), 0.5: (56.38, 0.5), 0.1: (32.47, 0.9)},
        "smooth": {1.0: (64.34, 0.3), 0.5: (55.21, 0.5), 0.1: (28.67, 0.5)},
        "sharpen": {1.0: (66.62, 0.3), 0.5: (56.58, 0.3), 0.1: (33.99, 0.4)},
    }
    """By share."""
    published_by: ClassVar[str] = "published"
    corner: ClassVar[str] = ""
    """Of the heading: what columns are."""

    def recipes(self) -> list[Recipe]:
        """The cheapest column first; quick has one column."""
        return [
            replace(QUICK if self.quick else PAPER, share=share, variant=variant, seed=seed)
            for share in self.columns()[::-1]
            for seed in range(self.seeds)
            for variant in VARIANTS
        ]

    def columns(self) -> Sequence[Any]:
        """What the figures of a row are of: shares of the data."""
        return [QUICK.share] if self.quick else SHARES

    def heading(self, column: Any) -> str:
        return f"{percent(column)} of the data"

    def accuracies(self, available: Available, variant: str, column: Any) -> list[float]:
        """Shares of the test images that are right, over seeds."""
        own = (variant, column)
        return [cell["accuracy"] for recipe, cell in available.items() if (recipe.variant, recipe.share) == own]

    def rows(self, available: Available) -> Rows:
        """Of each variant ours, and under it the published one."""
        rows, columns = [], self.columns()
        for variant in VARIANTS:
            ours = [table_text.percent_over_seeds(self.accuracies(available, variant, column)) for column in columns]
            rows.append([self.model_name(variant), *ours, self.whose()])
            if not self.quick:
                theirs = ["{:.2f} ± {}".format(*self.published[variant][column]) for column in columns]
                rows.append([self.model_name(variant), *theirs, self.published_by])
        return [self.corner, *map(self.heading, columns), "whose"], rows

    def points(self, available: Available, column: Any) -> list[table_charts.Point]:
        """Ours and the published of a column; none where none of ours is there."""
        points, found = [], False
        for variant in VARIANTS:
            name, ours = self.model_name(variant), self.accuracies(available, variant, column)
            points += table_charts.over_seeds(name, self.whose(), [100 * value for value in ours], x=column)
            found = found or bool(ours)
            if not self.quick:
                published = self.published[variant][column]
                points.append(table_charts.point(name, self.published_by, *published, x=column))
        return points if found else []

    def standings(self, available: Available) -> dict[str, float]:
        last = self.columns()[-1]
        values = {self.model_name(variant): self.accuracies(available, variant, last) for variant in VARIANTS}
        return {name: 100 * statistics.fmean(over_seeds) for name, over_seeds in values.items() if over_seeds}

    def chart(self, available: Available) -> Any:
        """A panel a share."""
        quick = ", quick" if self.quick else ""
        panels = [(f"{self.heading(share)}{quick}", self.points(available, share)) for share in self.columns()]
        return table_charts.points(panels, "test accuracy, %")

    def notes(self) -> list[str]:
        return [_QUICK_NOTE if self.quick else "Accuracy in %, mean ± standard deviation over seeds (their number)."]

    def terminal_note(self) -> str:
        return _QUICK_NOTE if self.quick else ""


def column(share: float, *, seeds: int = 1, quick: bool = False) -> list[Recipe]:
    """The recipes of one column; quick has one, whatever its share."""
    recipes = [recipe for recipe in Table2(seeds=seeds, quick=quick).recipes() if quick or recipe.share == share]
    if not recipes:
        raise InputError(f"table 2 has no models of a share of {share:g}; choose 1, 0.5 or 0.1")
    return recipes
