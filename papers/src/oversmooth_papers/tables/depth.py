"""Dovonon et al.'s depth study, "more layers": ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ with 12, 24 and 48 blocks.

    oversmooth reproduce depth --seeds 1 --at-once 3      10 % of the data
    oversmooth reproduce depth --quick                    a small version with 2, 4 and 8 blocks, minutes on a CPU

The recipe is table 2's, and nothing but the number of blocks differs: the cells of 12 blocks are table 2's own, taken
from there and kept there. The paper's figures were not published as numbers, nor was the share of the data behind them;
10 % is the default here because 48 blocks cost four times 12, and because the three variants are furthest apart there.

Beside accuracy stands how smooth the tokens end, since that is what more layers are about: HFC/LFC and mean |cos| of
what leaves the last block, from the log that every run keeps (`engine.smoothing`, on the first 8 test images).

What it reached: with 12 blocks what table 2 did at 10 % (33.35, 29.49 and 34.61 %; seeds 0, 1 and 2; an H200; 2 to 6
minutes a run), with HFC/LFC of 1.74 ± 0.05, 0.22 ± 0.02 and 3.65 ± 0.11 at the end for ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻.
With 24 blocks, seed 0 alone: 33.85, 28.68 and 33.69 %, and 1.83, 0.126 and 6.55. With 48:
33.88, 29.04 and 34.10 %, and 1.94, 0.0715 and 9.35. Figures of --quick are not kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table2, table_text
from oversmooth_papers.tables.base import Rows, Table
from oversmooth_papers.tables.cells import Available, Cell
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe, percent

DEPTHS = (12, 24, 48)
QUICK_DEPTHS = (2, 4, 8)
QUICK_BASE = replace(QUICK, share=0.02, shape=replace(QUICK.shape, patch=8))
_QUICK_NOTE = (
    "quick: a small ViT (patch 8, width 64) with 2, 4 and 8 blocks, 1,000 images, 5 epochs. These figures compare with "
    "each other and with nothing that is published; accuracies, of 1,000 test images, are uncertain by half a point."
)
_NOTE = (
    "Accuracy in %; HFC/LFC of what enters the first block and of what leaves the last, and mean |cos| there, of the "
    "first 8 test images when training ended; mean ± standard deviation over seeds (n − 1). The paper's depth study "
    "was not published as numbers, so nothing stands beside these."
)
_HEAD = ("", "blocks", "seeds", "accuracy, %", "HFC/LFC, first", "HFC/LFC, last", "mean |cos|, last", "whose")


@dataclass(frozen=True, kw_only=True)
class Depth(Table):
    """Make the depth study of Dovonon et al.: accuracy, and how smooth tokens end, with 12, 24 and 48 blocks.

    The cells of 12 blocks are table 2's: they are taken from there, or run and kept there.
    """

    name = "depth"
    cells_help = "The cells to run: a variant (plain), a depth (depth24), or both (plain:depth24)."

    share: float = option(0.1, "Of the training images; the paper's was not published.")

    def recipes(self) -> list[Recipe]:
        """The shallowest first; quick has a share of its own."""
        paper = replace(PAPER, share=self.share)  # which refuses a share that is none
        base = QUICK_BASE if self.quick else paper
        return [
            replace(base, variant=variant, seed=seed, shape=replace(base.shape, depth=depth))
            for depth in self._depths()
            for seed in range(self.seeds)
            for variant in VARIANTS
        ]

    def folder(self, recipe: Recipe) -> str:
        """Table 2 has the cells of its own depth and shares."""
        shared = recipe.shape.depth == PAPER.shape.depth and recipe.share in table2.SHARES
        return table2.Table2.name if shared and not self.quick else super().folder(recipe)

    def whose(self) -> str:
        return "ours, quick" if self.quick else f"ours, {percent(self.share)}"

    def by_case(self, available: Available) -> list[tuple[str, int, list[Cell]]]:
        """Of each variant and depth the cells over seeds."""
        return [
            (variant, depth, [c for own, c in available.items() if (own.variant, own.shape.depth) == (variant, depth)])
            for variant in VARIANTS
            for depth in self._depths()
        ]

    def rows(self, available: Available) -> Rows:
        rows = []
        for variant, depth, cells in self.by_case(available):
            accuracy = table_text.over_seeds([100 * cell["accuracy"] for cell in cells])
            smoothness = [table_text.over_seeds([s[place] for s in last_snapshots(cells)], ".3g") for place in range(3)]
            rows.append([self.model_name(variant), str(depth), str(len(cells)), accuracy, *smoothness, self.whose()])
        return _HEAD, rows

    def standings(self, available: Available) -> dict[str, float]:
        deepest = [(v, cells) for v, depth, cells in self.by_case(available) if depth == self._depths()[-1] and cells]
        return {self.model_name(v): 100 * statistics.fmean(cell["accuracy"] for cell in cells) for v, cells in deepest}

    def chart(self, available: Available) -> Any:
        """Accuracy, and HFC/LFC after the last block, against the number of blocks."""
        whose = self.whose() if self.quick else f"{self.whose()} of the data"
        accuracy: list[table_charts.Point] = []
        smoothness: list[table_charts.Point] = []
        for variant, depth, cells in self.by_case(available):
            name, lasts = self.model_name(variant), [last for _, last, _ in last_snapshots(cells)]
            accuracy += table_charts.over_seeds(name, whose, [100 * cell["accuracy"] for cell in cells], x=depth)
            smoothness += table_charts.over_seeds(name, whose, lasts, x=depth)
        for point in smoothness:
            point["low"] = max(point["low"], point["value"] / 10)  # above zero, as the axis is logarithmic
        panels = [
            (f"accuracy; {whose}", accuracy, "test accuracy, %"),
            (f"after the last block; {whose}", smoothness, "HFC / LFC"),
        ]
        return table_charts.lines(panels, "blocks", ratios=("HFC / LFC",))

    def notes(self) -> list[str]:
        return [_QUICK_NOTE, _NOTE] if self.quick else [f"Ours: {percent(self.share)} of the training images. {_NOTE}"]

    def terminal_note(self) -> str:
        return _QUICK_NOTE if self.quick else _NOTE

    def _depths(self) -> tuple[int, ...]:
        return QUICK_DEPTHS if self.quick else DEPTHS


def last_snapshots(cells: Sequence[Cell]) -> list[tuple[float, float, float]]:
    """HFC/LFC first and last, and mean |cos| last, of each run's last look at smoothing; runs without one left out."""
    lasts = [cell["smoothing"][-1] for cell in cells if cell.get("smoothing")]
    return [(last["hfc_lfc"][0], last["hfc_lfc"][-1], last["abs_cos"][-1]) for last in lasts]
