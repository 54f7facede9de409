"""The first paper's depth study, "more layers": ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ with 12, 24 and 48 blocks.

    oversmooth reproduce depth --seeds 1 --at-once 3      10 % of the data
    oversmooth reproduce depth --quick                    a small version with 2, 4 and 8 blocks, minutes on a CPU

The recipe is table 2's, and nothing but the number of blocks differs: the cells of 12 blocks are table 2's own, taken
from there and kept there. The paper's figures were not published as numbers, nor was the share of the data behind them;
10 % is the default here because 48 blocks cost four times 12, and because the three variants are furthest apart there.

Beside accuracy stands how smooth the tokens end, since that is what more layers are about: HFC/LFC and mean |cos| of
what leaves the last block, from the log that every run keeps (`train.monitor`: the first 8 test images).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oversmooth.reproduce import cells, table2, tables
from oversmooth.train.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe, percent, variant_title

if TYPE_CHECKING:
    from rich.table import Table

NAME, QUICK_NAME = "depth", "depth-quick"
DEPTHS = (12, 24, 48)
QUICK_DEPTHS = (2, 4, 8)
QUICK_BASE = replace(QUICK, share=0.02, shape=replace(QUICK.shape, patch=8))
QUICK_TEST_IMAGES = 1000
QUICK_NOTE = (
    "quick: a small ViT (patch 8, width 64) with 2, 4 and 8 blocks, 1,000 images, 5 epochs. These figures compare with "
    "each other and with nothing that is published; accuracies, of 1,000 test images, are uncertain by half a point."
)
NOTE = (
    "Accuracy in %; HFC/LFC of what enters the first block and of what leaves the last, and mean |cos| there, of the "
    "first 8 test images when training ended; mean ± standard deviation over seeds (n − 1). The paper's depth study "
    "was not published as numbers, so nothing stands beside these."
)
_HEAD = ("", "blocks", "seeds", "accuracy, %", "HFC/LFC, first", "HFC/LFC, last", "mean |cos|, last", "whose")
Values = dict[tuple[str, int], list[dict[str, Any]]]
"""Cells over seeds, by variant and depth."""


def recipes(seeds: int, *, share: float = 0.1, quick: bool = False) -> list[Recipe]:
    """All cells, the shallowest first; quick has a share of its own."""
    paper = replace(PAPER, share=share)  # which refuses a share that is none
    base, depths = (QUICK_BASE, QUICK_DEPTHS) if quick else (paper, DEPTHS)
    return [
        replace(base, variant=variant, seed=seed, shape=replace(base.shape, depth=depth))
        for depth in depths
        for seed in range(seeds)
        for variant in VARIANTS
    ]


def home(recipe: Recipe) -> str:
    """The table that keeps a cell: table 2 has those of its own depth and shares."""
    shared = recipe.shape.depth == PAPER.shape.depth and recipe.share in table2.SHARES
    return table2.NAME if shared else NAME


def found(chosen: Sequence[Recipe], results: Path, table: cells.Home) -> Values:
    values: Values = {}
    for recipe in chosen:
        cell = cells.read(cells.cell_path(results, table, recipe))
        there = values.setdefault((recipe.variant, recipe.shape.depth), [])
        if cell is not None:
            there.append(cell)
    return values


def ends(cell: dict[str, Any]) -> tuple[float, float, float] | None:
    """HFC/LFC first and last, and mean |cos| last, when smoothing was last looked at; None if it never was."""
    if not cell.get("smoothing"):
        return None
    look = cell["smoothing"][-1]
    return look["hfc_lfc"][0], look["hfc_lfc"][-1], look["abs_cos"][-1]


def _rows(values: Values, share: float, quick: bool) -> tuple[Sequence[str], list[list[str]]]:
    whose = "ours, quick" if quick else f"ours, {percent(share)}"
    rows = []
    for variant in VARIANTS:
        for depth in sorted({depth for _, depth in values}):
            there = values.get((variant, depth), [])
            looks = [look for cell in there if (look := ends(cell)) is not None]
            columns = list(zip(*looks, strict=True)) if looks else [()] * 3
            figures = [_shown([100 * cell["accuracy"] for cell in there], ".2f"), *(_shown(c, ".3g") for c in columns)]
            rows.append([_name(variant, quick), str(depth), str(len(there)), *figures, whose])
    return _HEAD, rows


def table(values: Values, share: float, quick: bool = False) -> Table:
    return tables.terminal(*_rows(values, share, quick))


def markdown(values: Values, share: float, quick: bool = False) -> str:
    notes = [QUICK_NOTE, NOTE] if quick else [f"Ours: {percent(share)} of the training images. {NOTE}"]
    return tables.markdown(*_rows(values, share, quick), notes)


def chart(values: Values, share: float, quick: bool = False) -> Any:
    """Accuracy, and HFC/LFC after the last block, against the number of blocks."""
    from oversmooth.reproduce import charts

    accuracy: list[dict[str, Any]] = []
    smooth: list[dict[str, Any]] = []
    for (variant, depth), there in sorted(values.items(), key=lambda item: VARIANTS.index(item[0][0])):
        row = {"model": _name(variant, quick), "whose": _whose(share, quick), "x": depth}
        lasts = [look[1] for cell in there if (look := ends(cell)) is not None]
        for rows, numbers in ((accuracy, [100 * cell["accuracy"] for cell in there]), (smooth, lasts)):
            if numbers:
                mean, spread = cells.mean_and_spread(numbers)
                width = spread or 0.0
                low = max(mean - width, mean / 10)  # above zero, where the axis is logarithmic
                rows.append({**row, "value": mean, "low": low, "high": mean + width})
    title = _whose(share, quick)
    panels = [
        (f"accuracy; {title}", accuracy, "test accuracy, %"),
        (f"after the last block; {title}", smooth, "HFC / LFC"),
    ]
    return charts.lines(panels, "blocks", ratios=("HFC / LFC",))


def _shown(values: Sequence[float], form: str) -> str:
    if not values:
        return "–"
    mean, spread = cells.mean_and_spread(values)
    return f"{mean:{form}}" + ("" if spread is None else f" ± {spread:.2g}")


def _name(variant: str, quick: bool) -> str:
    return variant_title(variant).replace("ViT-Ti", "ViT") if quick else variant_title(variant)


def _whose(share: float, quick: bool) -> str:
    return "ours, quick" if quick else f"ours, {percent(share)} of the data"
