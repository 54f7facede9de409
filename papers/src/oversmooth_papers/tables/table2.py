"""Dovonon et al.'s table 2: CIFAR-100 accuracy of ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ against the share of training data.

    oversmooth reproduce table2 --cells 10% --seeds 3 --at-once 3      the 10 % column, about 2 minutes a run on an H200
    oversmooth reproduce table2 --quick                                a small version, minutes on a CPU

The recipe is `tasks.images.recipe.PAPER` (recovered from the authors' code), which says what it reached, with
which seeds, on what and in what time: all blocks constrained, Θ and ψ as in THEORY §5 with the paper's wiring. Accuracy
is that of the last epoch on the 10,000 test images; ± is the standard deviation over seeds (n − 1). How many seeds are
behind the published ± was not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth.safety.errors import InputError
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Case, Column, Table
from oversmooth_papers.tables.cells import Available, names_of, scores
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe, percent

SHARES = (1.0, 0.5, 0.1)


def heading(share: float) -> str:
    return f"{percent(share)} of the data"


@dataclass(frozen=True, kw_only=True)
class Table2(Table):
    """Make table 2 of Dovonon et al.: accuracy against the share of training data, for ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻.

    Cells that are not there yet are run, and kept; interrupted ones go on from their checkpoint next time.
    """

    name = "table2"
    asks_unknowns = True
    published: ClassVar[Mapping[str, Any]] = {
        "plain": {heading(1.0): (66.78, 0.1), heading(0.5): (56.38, 0.5), heading(0.1): (32.47, 0.9)},
        "smooth": {heading(1.0): (64.34, 0.3), heading(0.5): (55.21, 0.5), heading(0.1): (28.67, 0.5)},
        "sharpen": {heading(1.0): (66.62, 0.3), heading(0.5): (56.58, 0.3), heading(0.1): (33.99, 0.4)},
    }
    note = "Accuracy in %, mean ± standard deviation over seeds (their number)."

    def places(self) -> Mapping[str, Any]:
        """What each column is of, by its heading: shares of the data; quick has one."""
        return {heading(share): share for share in ([QUICK.share] if self.quick else SHARES)}

    def base(self) -> Recipe:
        return QUICK if self.quick else PAPER

    def cases(self) -> Mapping[str, Case]:
        return {variant: Case(self.model_name(variant), {"variant": variant}) for variant in VARIANTS}

    def names_of(self, recipe: Recipe) -> Mapping[str, str]:
        return names_of(recipe)

    def recipes(self) -> list[Recipe]:
        """The cheapest column first."""
        return [
            replace(self.recipe(variant, seed), share=share)
            for share in reversed([*Table2.places(self).values()])
            for seed in range(self.seeds)
            for variant in VARIANTS
        ]

    def accuracies(self, cells: Available, place: Any) -> list[float]:
        """Of a variant's cells those of one column, in %, over seeds."""
        return scores({recipe: cell for recipe, cell in cells.items() if recipe.share == place}, "accuracy", 100)

    def columns(self) -> Mapping[str, Column]:
        return {
            head: lambda row, place=place: table_text.counted(self.accuracies(row.cells, place))  # type: ignore[misc]
            for head, place in self.places().items()
        }

    def charted(self, available: Available, name: str) -> list[float]:
        """Of the last column."""
        return self.accuracies(self.cells(available, name), [*self.places().values()][-1])

    def points(self, available: Available, head: str) -> list[table_charts.Point]:
        """Ours and the published of a column; none where none of ours is there."""
        points, found, place = [], False, self.places()[head]
        for variant, case in self.cases().items():
            ours = self.accuracies(self.cells(available, variant), place)
            points += table_charts.over_seeds(case.title, self.whose(), ours, x=place)
            found = found or bool(ours)
            if not self.quick:
                points.append(
                    table_charts.point(case.title, self.published_by, *self.published[variant][head], x=place)
                )
        return points if found else []

    def chart(self, available: Available) -> Any:
        """A panel a share."""
        quick = ", quick" if self.quick else ""
        return table_charts.points(
            [(f"{head}{quick}", self.points(available, head)) for head in self.places()], self.label
        )

    def terminal_note(self) -> str:
        return self.quick_note if self.quick else ""


def column(share: float, *, seeds: int = 1, quick: bool = False) -> list[Recipe]:
    """The recipes of one column; quick has one, whatever its share."""
    recipes = [recipe for recipe in Table2(seeds=seeds, quick=quick).recipes() if quick or recipe.share == share]
    if not recipes:
        raise InputError(f"table 2 has no models of a share of {share:g}; choose 1, 0.5 or 0.1")
    return recipes
