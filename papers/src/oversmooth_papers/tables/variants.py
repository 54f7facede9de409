"""What tables have in common that compare ways of steering with each other: one recipe, 10 % of the data.

Rows are cases by name; a case is what it changes of table 2's recipe. Cells that are table 2's own are taken from there
and kept there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import depth, table2, table_text
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Cell, Kept
from oversmooth_papers.tasks.images.recipe import PAPER, VARIANTS, Recipe

SHARE = 0.1
QUICK_BASE = replace(depth.QUICK_BASE, shape=replace(depth.QUICK_BASE.shape, depth=4))
QUICK_NOTE = (
    "quick: a small ViT (patch 8, depth 4, width 64), 1,000 images, 5 epochs. These figures compare with each other "
    "and with nothing that is published; accuracies, of 1,000 test images, are uncertain by half a point."
)
NOTE = (
    "10 % of CIFAR-100, table 2's recipe, steps and seeds in every row; none was tuned. Accuracy in % of the 10,000 "
    "test images after the last epoch, mean ± standard deviation over seeds (their number); HFC/LFC and mean |cos| of "
    "what leaves the last block, of the first 8 test images."
)
WEIGHTS = "W_V, W_O"


@dataclass(frozen=True)
class Case:
    """A row: its title, what it changes of the recipe, and what of attention's value and output decays."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    decays: str = "Θ (scale without effect), ψ"


@dataclass(frozen=True, kw_only=True)
class VariantTable(Table):
    """Subclasses say their cases."""

    asks_unknowns = False
    own_cases: ClassVar[Mapping[str, Case]]
    shows_cost: ClassVar[bool] = True
    """Whether parameters, weight decay and minutes have columns."""

    def cases(self) -> Mapping[str, Case]:
        """By what --cells calls them."""
        return self.own_cases

    def base(self) -> Recipe:
        return QUICK_BASE if self.quick else replace(PAPER, share=SHARE)

    def recipe(self, name: str, seed: int = 0) -> Recipe:
        return replace(self.base(), seed=seed, **self.cases()[name].changes)

    def recipes(self) -> list[Any]:
        """Seed by seed, so that a table that is cut short compares all of them."""
        return [self.recipe(name, seed) for seed in range(self.seeds) for name in self.cases()]

    def folder(self, recipe: Recipe) -> str:
        """Table 2 has the cells of its own recipes."""
        own = replace(PAPER, share=SHARE, variant=recipe.variant, seed=recipe.seed)
        if not self.quick and recipe.variant in VARIANTS and recipe == own:
            return table2.Table2.name
        return super().folder(recipe)

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": self._name(recipe)}

    def _name(self, recipe: Recipe) -> str:
        """Of the case, whatever data a quick recipe was fitted to."""
        cases, usual = self.cases(), self.base()
        keys = {key for case in cases.values() for key in case.changes}
        own = {key: getattr(recipe, key) for key in keys}
        found = (name for name in cases if own == {key: getattr(usual, key) for key in keys} | {**cases[name].changes})
        return next(found, "")

    def cells(self, kept: Kept, name: str) -> list[Cell]:
        """Over seeds."""
        return [cell for recipe, cell in kept.items() if self._name(recipe) == name]

    def rows(self, kept: Kept) -> Rows:
        head = ["", "accuracy, %", "HFC/LFC, last", "mean |cos|, last"]
        head += ["parameters", "decays", "minutes"] if self.shows_cost else []
        rows = []
        for name, case in self.cases().items():
            cells = self.cells(kept, name)
            row = [case.title, table_text.percent_over_seeds([cell["accuracy"] for cell in cells]), *ends(cells)]
            if self.shows_cost:
                row += [f"{parameters(self.recipe(name)):,}", case.decays, minutes(cells)]
            rows.append([*row, self.whose()])
        return [*head, "whose"], rows

    def chart(self, kept: Kept) -> Any:
        points = []
        for name, case in self.cases().items():
            accuracies = [100 * cell["accuracy"] for cell in self.cells(kept, name)]
            points += table_charts.over_seeds(case.title, self.whose(), accuracies)
        return table_charts.bars("quick" if self.quick else "10 % of CIFAR-100", points, "test accuracy, %")

    def notes(self) -> list[str]:
        return [QUICK_NOTE] if self.quick else [NOTE]


def parameters(recipe: Recipe) -> int:
    """Numbers that training changes, of models constrained in all blocks or in none: in a constrained block Θ, or the
    entries of a rotation, and ψ in place of W_V and W_O.
    """
    constrained = [method for method in recipe.methods() if method.place == "weights"]
    if not constrained or recipe.freed:
        return recipe.parameters
    width = recipe.shape.width
    rotated = getattr(constrained[0], "orthogonal", "qr") != "qr"
    free = width * (width - 1) // 2 if rotated else width**2
    return recipe.parameters + recipe.shape.depth * (free + width - 2 * width**2)


def minutes(cells: Sequence[Cell]) -> str:
    """Of training, least and most, by runs that had the device for themselves; where there are none, of the others."""
    cells = [cell for cell in cells if "seconds" in cell]
    alone = [cell for cell in cells if "at_once" not in cell]
    spent = sorted(cell["seconds"] / 60 for cell in alone or cells)
    if not spent:
        return "–"
    said = f"{spent[0]:.1f}" if spent[-1] - spent[0] < 0.05 else f"{spent[0]:.1f} to {spent[-1]:.1f}"
    return said if alone else f"{said}, {max(cell['at_once'] for cell in cells)} at once"


def ends(cells: Sequence[Cell]) -> list[str]:
    """HFC/LFC and mean |cos| after the last block."""
    return [table_text.over_seeds([look[place] for look in depth.looks(cells)], ".3g") for place in (1, 2)]
