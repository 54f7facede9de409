"""Table 2's trained models, found again in results/models by what they were trained by.

    oversmooth reproduce table1 --trained --data IMAGES

and likewise fig2, fig3 and fig5: `--trained` stands for the files' names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images.recipe import Recipe, percent


def find(results: Path, share: float, seed: int | None = None) -> list[Path]:
    """The models of one column of table 2, variant by variant; of one seed, or of all that are there.

    Each variant must be there at least once: a figure without one would not say what it lacks.
    """
    column = {recipe.variant: recipe for recipe in Table2(seeds=1).recipes() if recipe.share == share}
    if not column:
        raise InputError(f"table 2 has no models of a share of {share:g}; choose 1, 0.5 or 0.1")
    paths: dict[tuple[str, int], Path] = {}
    for path in sorted((results / "models").glob("*")):
        recipe = recipe_of(path)
        if not isinstance(recipe, Recipe):
            continue
        wanted = column.get(recipe.variant)
        if wanted is not None and recipe == replace(wanted, seed=recipe.seed):
            paths[recipe.variant, recipe.seed] = path
    models = []
    for variant, wanted in column.items():
        seeds = sorted(s for v, s in paths if v == variant and seed in (None, s))
        if not seeds:
            raise InputError(_lacks(results, replace(wanted, seed=seed or 0), seed))
        models += [paths[variant, s] for s in seeds]
    return models


def _lacks(results: Path, recipe: Recipe, seed: int | None) -> str:
    seeds = f" --seeds {seed + 1}" if seed else ""
    return (
        f"there is no model {recipe.title if seed is not None else recipe.label}; make it with oversmooth reproduce "
        f"table2 --cells {percent(recipe.share).replace(' ', '')}{seeds} --results {results}, or take a release's with "
        "oversmooth reproduce models --from FILE"
    )
