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
from statistics import fmean
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Cell, Kept
from oversmooth_papers.tables.variants import Case, minutes
from oversmooth_papers.tasks.language.recipe import Recipe

CASES = {
    "plain": Case("plain", {"variant": "plain"}),
    "smooth": Case("smoothing, all layers", {"variant": "smooth", "start": "warm"}),
    "sharpen": Case("sharpening, all layers", {"variant": "sharpen", "start": "warm"}),
    "smooth-half": Case("smoothing, first half", {"variant": "smooth", "start": "warm", "layers": "first half"}),
    "sharpen-half": Case("sharpening, first half", {"variant": "sharpen", "start": "warm", "layers": "first half"}),
    "smooth-cold": Case("smoothing, the paper's start", {"variant": "smooth", "start": "cold"}),
    "sharpen-cold": Case("sharpening, the paper's start", {"variant": "sharpen", "start": "cold"}),
    "fixed-cold": Case("fixed random signs, the paper's start", {"variant": "spectral:signs=fixed,start=cold"}),
    "free-cold": Case("either sign, the paper's start", {"variant": "spectral:signs=free,start=cold"}),
}
"""Rows, by what --cells calls them."""
WARM = {name: case.title for name, case in CASES.items() if not name.endswith("-cold")}
"""Titles of those that are fine-tuned."""
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
    for name, case in CASES.items():
        if all(getattr(recipe, key, value) == value for key, value in {"layers": "all", **case.changes}.items()):
            return name
    return ""


@dataclass(frozen=True, kw_only=True)
class TextTable(Table):
    """Subclasses say the recipe and its quick version."""

    group = "text"
    asks_unknowns = False
    fits_data = True
    quick_data = "prose"
    cells_help = f"Which: {', '.join(CASES)}; by default all."
    base: ClassVar[Recipe]
    quick_base: ClassVar[Recipe]
    note: ClassVar[str]

    def recipes(self) -> list[Any]:
        """Seed by seed, so that a table that is cut short compares all of them."""
        base = self.quick_base if self.quick else self.base
        return [replace(base, seed=seed, **case.changes) for seed in range(self.seeds) for case in CASES.values()]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": name_of(recipe)}

    def rows(self, kept: Kept) -> Rows:
        head = ["", "validation", "test", "training", "HFC/LFC, last", "asymmetry of H, first and last", "minutes"]
        rows = []
        for name, case in CASES.items():
            cells = cells_of(kept, name)
            valid = over_seeds([cell["valid_perplexity"] for cell in cells])
            test = over_seeds([cell["test_perplexity"] for cell in cells if "test_perplexity" in cell])
            rows.append([case.title, valid, test, _trained(cells), *_last(cells), minutes(cells), self.whose()])
        rows.append(["forced either way", "worse than plain", *"–––––", PUBLISHED])
        tested = not kept or any("test_perplexity" in cell for cell in kept.values())
        return _without(() if tested else ("test",), [*head, "whose"], rows)

    def terminal_rows(self, kept: Kept) -> Rows:
        """Without test, training and minutes, so that names stay whole."""
        return _without(("test", "training", "minutes"), *self.rows(kept))

    def chart(self, kept: Kept) -> Any:
        points = []
        for name, case in CASES.items():
            if values := [cell["valid_perplexity"] for cell in cells_of(kept, name)]:
                points.append(table_charts.point(case.title, self.whose(), *table_text.mean_and_spread(values)))
        return table_charts.bars(f"{self.name}{', quick' if self.quick else ''}", points, "validation perplexity")

    def notes(self) -> list[str]:
        return [QUICK_NOTE] if self.quick else [self.note, FORM]

    def terminal_note(self) -> str:
        return self.notes()[0].replace(TRAINING, "Perplexity in training, and minutes: with -o TABLE.md. ")


def _without(columns: Sequence[str], head: Sequence[str], rows: list[list[str]]) -> Rows:
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
    ends = [[fmean(looks[end]["asymmetry"]) for looks in looked if "asymmetry" in looks[end]] for end in (0, -1)]
    shown = [f"{fmean(values):.3f}" if values else "–" for values in ends]
    return [f"{fmean(looks[-1]['hfc_lfc'][-1] for looks in looked):#.3g}" if looked else "–", " → ".join(shown)]
