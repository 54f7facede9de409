"""Minutes that a missing cell would take, by similar ones that were run: scaled by steps, blocks and tokens.

The likeness is the recipe's: the cell of fewest differences that was measured, and of equals the quickest. Runs that
shared a device count only where none had it alone, and then by their share. A guess, and said to be: it knows nothing
of compiling, nor of what else the machine does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe
from oversmooth_papers.tables.cells import read_folder

_NO_COST = ("seed", "share", "epochs", "warmup", "shape.depth", "share_seed")
"""Fields that make a run no other, or that scaling takes care of."""


@dataclass(frozen=True)
class Measured:
    """A run that is over."""

    recipe: BaseRecipe
    minutes: float
    hardware: str


def measured(results: Path, hardware: str = "") -> list[Measured]:
    """Every cell of a training run. hardware: of this machine alone, where any was measured there."""
    cells = [cell for folder in _folders(results) for cell in read_folder(folder, []) if cell.get("seconds")]
    cells = [cell for cell in cells if cell["hardware"] == hardware] or cells
    runs = [(read_recipe(cell["recipe"]), cell, cell.get("at_once", 1)) for cell in cells]
    alone = {(type(recipe), _data(recipe)) for recipe, _, at_once in runs if at_once == 1}
    return [
        Measured(recipe, cell["seconds"] / 60 / at_once, cell["hardware"])
        for recipe, cell, at_once in runs
        if at_once == 1 or (type(recipe), _data(recipe)) not in alone
    ]


def cost(recipe: BaseRecipe, runs: Iterable[Measured]) -> float | None:
    """Minutes that a recipe takes, estimated from similar runs; None where nothing like it was run on these data."""
    # How much there is of other data is not known without loading them.
    alike = [run for run in runs if type(run.recipe) is type(recipe) and _data(run.recipe) == _data(recipe)]
    if not alike:
        return None
    nearest = min(alike, key=lambda run: (_differences(recipe, run.recipe), _scaled(recipe, run)))
    return _scaled(recipe, nearest)


def total(recipes: Sequence[BaseRecipe], runs: Sequence[Measured]) -> float | None:
    """Of all of them, one after the other; None where one is unknown."""
    costs = [cost(recipe, runs) for recipe in recipes]
    known = [minutes for minutes in costs if minutes is not None]
    return sum(known) if len(known) == len(costs) else None


def work(recipe: BaseRecipe) -> float:
    """What minutes grow with: examples and blocks; tokens of a window or an image, and the batches they come in, are
    compared as differences.
    """
    return float(recipe.total_epochs * getattr(recipe, "share", 1.0) * recipe.shape.depth)


def _data(recipe: BaseRecipe) -> str:
    return str(recipe.to_dict().get("data"))


def _scaled(recipe: BaseRecipe, run: Measured) -> float:
    return run.minutes * work(recipe) / work(run.recipe)


def _differences(one: BaseRecipe, other: BaseRecipe) -> int:
    mine, theirs = _leaves(one.to_dict()), _leaves(other.to_dict())
    return sum(mine.get(name) != theirs.get(name) for name in {*mine, *theirs} if name not in _NO_COST)


def _leaves(fields: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _leaves(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: str(value)}
    return flat


def _folders(results: Path) -> list[Path]:
    """Of cells: table2, and neutreno/language."""
    return sorted({path.parent for path in results.glob("**/*.json") if path.parent.parts[-1:] != ("work",)})
