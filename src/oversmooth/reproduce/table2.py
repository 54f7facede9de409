"""The first paper's table 2: CIFAR-100 accuracy of ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ against the share of training data.

    oversmooth reproduce table2 --cells 10% --seeds 3 --at-once 3      the 10 % column, about 2 minutes a run on an H200
    oversmooth reproduce table2 --quick                                a small version, minutes on a CPU

The recipe is `train.recipe.PAPER` (recovered from the authors' code): all blocks constrained, Θ and ψ as in
THEORY §5 with the paper's wiring. Accuracy is that of the last epoch on the 10,000 test images; ± is the standard
deviation over seeds (n − 1). How many seeds are behind the published ± was not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oversmooth.reproduce import cells, tables
from oversmooth.train.tasks.images.recipe import PAPER, QUICK, VARIANTS, Recipe, percent, variant_title

if TYPE_CHECKING:
    from rich.table import Table

NAME, QUICK_NAME = "table2", "table2-quick"
SHARES = (1.0, 0.5, 0.1)
PUBLISHED: dict[str, dict[float, tuple[float, float]]] = {
    "plain": {1.0: (66.78, 0.1), 0.5: (56.38, 0.5), 0.1: (32.47, 0.9)},
    "smooth": {1.0: (64.34, 0.3), 0.5: (55.21, 0.5), 0.1: (28.67, 0.5)},
    "sharpen": {1.0: (66.62, 0.3), 0.5: (56.58, 0.3), 0.1: (33.99, 0.4)},
}
"""Accuracy in %, and its ±."""
QUICK_TEST_IMAGES = 1000
QUICK_NOTE = (
    "quick: a small ViT (patch 4, depth 4, width 64), 2,500 images, 5 epochs. These figures compare with each other "
    "and with nothing that is published."
)


def recipes(seeds: int, *, quick: bool = False) -> list[Recipe]:
    """All cells, the cheapest column first; quick has one column."""
    base, shares = (QUICK, (QUICK.share,)) if quick else (PAPER, SHARES[::-1])
    return [
        replace(base, share=share, variant=variant, seed=seed)
        for share in shares
        for seed in range(seeds)
        for variant in VARIANTS
    ]


def found(chosen: Sequence[Recipe], results: Path, table: str) -> dict[tuple[str, float], list[float]]:
    """Accuracies over seeds of the cells that are there, by variant and share."""
    values: dict[tuple[str, float], list[float]] = {}
    for recipe in chosen:
        cell = cells.read(cells.cell_path(results, table, recipe))
        values.setdefault((recipe.variant, recipe.share), [])
        if cell is not None:
            values[recipe.variant, recipe.share].append(cell["accuracy"])
    return values


def _rows(values: dict[tuple[str, float], list[float]], quick: bool) -> tuple[list[str], list[list[str]]]:
    shares = sorted({share for _, share in values}, reverse=True)
    if not quick:
        shares = list(SHARES)
    head = ["", *(f"{percent(share)} of the data" for share in shares), "whose"]
    rows = []
    for variant in VARIANTS:
        title = variant_title(variant).replace("ViT-Ti", "ViT") if quick else variant_title(variant)
        ours = [cells.shown(values.get((variant, share), [])) for share in shares]
        rows.append([title, *ours, "ours, quick" if quick else "ours"])
        if not quick:
            theirs = [f"{mean:.2f} ± {spread}" for mean, spread in (PUBLISHED[variant][share] for share in shares)]
            rows.append([title, *theirs, "published"])
    return head, rows


def table(values: dict[tuple[str, float], list[float]], quick: bool = False) -> Table:
    return tables.terminal(*_rows(values, quick))


def markdown(values: dict[tuple[str, float], list[float]], quick: bool = False) -> str:
    note = QUICK_NOTE if quick else "Accuracy in %, mean ± standard deviation over seeds (their number)."
    return tables.markdown(*_rows(values, quick), [note])


def chart(values: dict[tuple[str, float], list[float]], quick: bool = False) -> Any:
    """A panel a share: ours filled, the published ones hollow beside them, with error bars."""
    shares = [share for share in SHARES if any(values.get((v, share)) for v in VARIANTS)]
    if quick:
        shares = sorted({share for _, share in values})
    panels: list[tuple[str, list[dict[str, Any]]]] = []
    for share in shares:
        rows: list[dict[str, Any]] = []
        for variant in VARIANTS:
            name = variant_title(variant).replace("ViT-Ti", "ViT") if quick else variant_title(variant)
            if values.get((variant, share)):
                mean, spread = cells.mean_and_spread([100 * v for v in values[variant, share]])
                rows.append(_bar(name, "ours, quick" if quick else "ours", mean, spread))
            if not quick:
                rows.append(_bar(name, "published", *PUBLISHED[variant][share]))
        panels.append((f"{percent(share)} of the data{', quick' if quick else ''}", rows))
    from oversmooth.reproduce import charts

    return charts.points(panels, "test accuracy, %")


def _bar(name: str, whose: str, mean: float, spread: float | None) -> dict[str, Any]:
    width = spread or 0.0
    return {"model": name, "whose": whose, "value": mean, "low": mean - width, "high": mean + width}
