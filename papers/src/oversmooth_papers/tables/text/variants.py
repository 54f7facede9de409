"""The language models of every text table, and what their tables have in common.

Published, in words: for text, Transformers that are forced to smooth or to sharpen generalise worse than plain ones.
Forced models begin as near to the plain model's first weights as their form allows; four rows begin as the paper
initialises, with eigenvalues of H up to 1 where the plain model's are near 0. Two of these are controls, with random
signs that stay and with eigenvalues that may take either sign: what they lose is lost to the form of H and its start,
and not to smoothing or sharpening.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Cell, Kept
from oversmooth_papers.tables.variants import minutes
from oversmooth_papers.tasks.language.recipe import Recipe

VARIANTS: dict[str, dict[str, str]] = {
    "plain": {"variant": "plain"},
    "smooth": {"variant": "smooth", "start": "warm"},
    "sharpen": {"variant": "sharpen", "start": "warm"},
    "smooth-half": {"variant": "smooth", "start": "warm", "layers": "first half"},
    "sharpen-half": {"variant": "sharpen", "start": "warm", "layers": "first half"},
    "smooth-cold": {"variant": "smooth", "start": "cold"},
    "sharpen-cold": {"variant": "sharpen", "start": "cold"},
    "fixed-cold": {"variant": "spectral:signs=fixed,start=cold"},
    "free-cold": {"variant": "spectral:signs=free,start=cold"},
}
"""What each changes of the recipe, by what --cells calls it."""
WARM = tuple(name for name in VARIANTS if not name.endswith("-cold"))
"""Those that are fine-tuned."""
TITLES = {
    "plain": "plain",
    "smooth": "smoothing, all layers",
    "sharpen": "sharpening, all layers",
    "smooth-half": "smoothing, first half",
    "sharpen-half": "sharpening, first half",
    "smooth-cold": "smoothing, the paper's start",
    "sharpen-cold": "sharpening, the paper's start",
    "fixed-cold": "fixed random signs, the paper's start",
    "free-cold": "either sign, the paper's start",
}
PUBLISHED = "published, in words"
FORM = (
    "A forced model differs from the plain one in form too: each head's H is symmetric, with eigenvectors orthogonal "
    "to those of the other heads, and λ = ±ψ². The rows with fixed random signs, λ = sψ², and with either sign, λ = ψ, "
    "have the form and are forced neither way; without them the two cannot be told apart."
)
TRAINING = "Training: over the last epoch's batches, with dropout. "
QUICK_NOTE = (
    "quick: 4 blocks of width 64, bytes of the package's prose, perplexity per byte. These figures compare with each "
    "other and with nothing that is published."
)


def name_of(recipe: Any) -> str:
    """Of the variant; fine-tuning always begins from weights and has no start to tell by."""
    for name, changes in VARIANTS.items():
        own = {"layers": "all", **changes}
        if all(getattr(recipe, key, value) == value for key, value in own.items()):
            return name
    return ""


@dataclass(frozen=True, kw_only=True)
class TextTable(Table):
    """Subclasses say the recipe and its quick version."""

    group = "text"
    asks_unknowns = False
    fits_data = True
    quick_data = "prose"
    cells_help = f"Which: {', '.join(VARIANTS)}; by default all."
    base: ClassVar[Recipe]
    quick_base: ClassVar[Recipe]
    note: ClassVar[str]

    def recipes(self) -> list[Any]:
        """Seed by seed, so that a table that is cut short compares all of them."""
        base = self.quick_base if self.quick else self.base
        return [replace(base, seed=seed, **changes) for seed in range(self.seeds) for changes in VARIANTS.values()]  # type: ignore[arg-type]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": name_of(recipe)}

    def rows(self, kept: Kept) -> Rows:
        rows = []
        tested = not kept or any("test_perplexity" in cell for cell in kept.values())
        for name, title in TITLES.items():
            cells = cells_of(kept, name)
            valid = over_seeds([cell["valid_perplexity"] for cell in cells])
            test = over_seeds([cell["test_perplexity"] for cell in cells if "test_perplexity" in cell])
            rows.append([title, valid, test, _trained(cells), *_last(cells), minutes(cells), self.whose()])
        rows.append(["forced either way", "worse than plain", "–", "–", "–", "–", "–", PUBLISHED])
        head = ["", "validation", "test", "training", "HFC/LFC, last", "asymmetry of H, first and last", "minutes"]
        head.append("whose")
        return (head, rows) if tested else without(("test",), head, rows)

    def terminal_rows(self, kept: Kept) -> Rows:
        """Without test, training and minutes, so that names stay whole."""
        return without(("test", "training", "minutes"), *self.rows(kept))

    def chart(self, kept: Kept) -> Any:
        points = []
        for name, title in TITLES.items():
            if cells := cells_of(kept, name):
                mean, spread = table_text.mean_and_spread([cell["valid_perplexity"] for cell in cells])
                points.append(table_charts.point(title, self.whose(), mean, spread))
        return table_charts.bars(f"{self.name}{', quick' if self.quick else ''}", points, "validation perplexity")

    def notes(self) -> list[str]:
        return [QUICK_NOTE] if self.quick else [self.note, FORM]

    def terminal_note(self) -> str:
        return self.notes()[0].replace(TRAINING, "Perplexity in training, and minutes: with -o TABLE.md. ")


def without(columns: tuple[str, ...], head: Sequence[str], rows: list[list[str]]) -> Rows:
    places = [place for place, name in enumerate(head) if name not in columns]
    return [head[place] for place in places], [[row[place] for place in places] for row in rows]


def cells_of(kept: Kept, name: str) -> list[Cell]:
    """Over seeds."""
    return [cell for recipe, cell in kept.items() if name_of(recipe) == name]


def over_seeds(values: Sequence[float]) -> str:
    huge = max(values, default=0) > 1e6  # a run that went wrong
    return table_text.over_seeds(values, ".3g" if huge else ".2f", count="always")


def _trained(cells: Sequence[Cell]) -> str:
    """Perplexity over the batches of the last epoch."""
    return over_seeds([math.exp(min(cell["epochs"][-1]["loss"], 700)) for cell in cells if cell.get("epochs")])


def _last(cells: Sequence[Cell]) -> list[str]:
    """HFC/LFC after the last block; how asymmetric H was, the mean over blocks, at the first look and at the last."""
    looked = [cell["smoothing"] for cell in cells if cell.get("smoothing")]
    ratios = [looks[-1]["hfc_lfc"][-1] for looks in looked]
    ends = [[_mean(looks[end]["asymmetry"]) for looks in looked if "asymmetry" in looks[end]] for end in (0, -1)]
    shown = [f"{_mean(values):.3f}" if values else "–" for values in ends]
    return [f"{_mean(ratios):#.3g}" if ratios else "–", " → ".join(shown)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
