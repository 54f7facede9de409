"""Dovonon et al.'s depth study, "more layers": ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ with 12, 24 and 48 blocks.

    oversmooth reproduce depth --seeds 1 --at-once 3      10 % of the data
    oversmooth reproduce depth --quick                    a small version with 2, 4 and 8 blocks, minutes on a CPU

The recipe is table 2's, and nothing but the number of blocks differs: the cells of 12 blocks are table 2's own, taken
from there and kept there. The paper's figures were not published as numbers, nor was the share of the data behind them;
10 % is the default here because 48 blocks cost four times 12, and because the three variants are furthest apart there.

Beside accuracy stands how smooth the tokens end, since that is what more layers are about: HFC/LFC and mean |cos| of
what leaves the last block, from the log that every run keeps (`engine.smoothing`, on the first 8 test images). What was
reached is in docs/first-paper.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table2, table_text
from oversmooth_papers.tables.base import Case, Column, Table, last_snapshot, last_snapshots
from oversmooth_papers.tables.cells import Available, names_of, scores
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe, percent

DEPTHS = (12, 24, 48)
QUICK_DEPTHS = (2, 4, 8)
QUICK_BASE = replace(QUICK, share=0.02, shape=replace(QUICK.shape, patch=8))
_NOTE = (
    "Accuracy in %; HFC/LFC of what enters the first block and of what leaves the last, and mean |cos| there, of the "
    "first 8 test images when training ended; mean ± standard deviation over seeds (n − 1). The paper's depth study "
    "was not published as numbers, so nothing stands beside these."
)


@dataclass(frozen=True, kw_only=True)
class Depth(Table):
    """Make the depth study of Dovonon et al.: accuracy, and how smooth tokens end, with 12, 24 and 48 blocks.

    The cells of 12 blocks are table 2's: they are taken from there, or run and kept there.
    """

    name = "depth"
    asks_unknowns = True
    cells_help = "The cells to run: a variant (plain), a depth (depth24), or both (plain:depth24)."
    column_by_heading: ClassVar[Mapping[str, Column]] = {
        "blocks": lambda row: str(row.recipe.shape.depth),
        "seeds": lambda row: str(len(row.cells)),
        "accuracy, %": lambda row: table_text.over_seeds(scores(row.cells, "accuracy", 100)),
        "HFC/LFC, first": last_snapshot(0),
        "HFC/LFC, last": last_snapshot(1),
        "mean |cos|, last": last_snapshot(2),
    }

    share: float = option(0.1, "Of the training images; the paper's was not published.")

    def base(self) -> Recipe:
        paper = replace(PAPER, share=self.share)  # which refuses a share that is none
        return QUICK_BASE if self.quick else paper

    def cases(self) -> Mapping[str, Case]:
        return {
            f"{variant}:depth{depth}": Case(self.model_name(variant), {"variant": variant, "depth": depth})
            for variant in VARIANTS
            for depth in (QUICK_DEPTHS if self.quick else DEPTHS)
        }

    def names_of(self, recipe: Recipe) -> Mapping[str, str]:
        return names_of(recipe)

    def recipes(self) -> list[Recipe]:
        """The shallowest first."""
        return sorted(super().recipes(), key=lambda recipe: recipe.shape.depth)

    def folder(self, recipe: Recipe) -> str:
        """Table 2 has the cells of its own depth and shares."""
        shared = recipe.shape.depth == PAPER.shape.depth and recipe.share in table2.SHARES
        return table2.Table2.name if shared and not self.quick else super().folder(recipe)

    def whose(self) -> str:
        return "ours, quick" if self.quick else f"ours, {percent(self.share)}"

    def chart(self, available: Available) -> Any:
        """Accuracy, and HFC/LFC after the last block, against the number of blocks."""
        whose = self.whose() if self.quick else f"{self.whose()} of the data"
        accuracy: list[table_charts.Point] = []
        smoothness: list[table_charts.Point] = []
        for name, case in self.cases().items():
            cells, depth = self.cells(available, name), case.changes["depth"]
            accuracy += table_charts.over_seeds(case.title, whose, self.charted(available, name), x=depth)
            smoothness += table_charts.over_seeds(case.title, whose, last_snapshots(cells, 1), x=depth)
        for point in smoothness:
            point["low"] = max(point["low"], point["value"] / 10)  # above zero, as the axis is logarithmic
        panels = [
            (f"accuracy; {whose}", accuracy, self.label),
            (f"after the last block; {whose}", smoothness, "HFC / LFC"),
        ]
        return table_charts.lines(panels, "blocks", ratios=("HFC / LFC",))

    def notes(self) -> list[str]:
        return (
            [self.quick_note, _NOTE] if self.quick else [f"Ours: {percent(self.share)} of the training images. {_NOTE}"]
        )

    def terminal_note(self) -> str:
        return self.quick_note if self.quick else _NOTE
