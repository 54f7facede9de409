"""The first paper's table 3: CIFAR-100 accuracy against the intensity of corruption, CIFAR-100-C.

    oversmooth reproduce table2 --cells 100%                           the models
    oversmooth reproduce table3 --share 1                              their corruptions

A figure is the mean over the 15 standard types, which is our reading; intensity 0 is the clean test set. Corruptions
are made on the spot with the published constants (`train.corruptions` says what differs: random numbers, and textures
of frost of our own), or read from the official files with --official. The published figures are of models that were
trained with all of the data; models of a smaller share are ours alone, and said to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from oversmooth.reproduce import cells, tables
from oversmooth.safety.errors import InputError
from oversmooth.steering import fold, steering_of
from oversmooth.train.engine.loop import device_named
from oversmooth.train.tasks.images.corruptions import KINDS, SEVERITIES
from oversmooth.train.tasks.images.data import Images
from oversmooth.train.tasks.images.evaluate import Corruptions, Evaluator, by_severity, under_corruption
from oversmooth.train.tasks.images.recipe import VARIANTS, Recipe, percent, variant_title
from oversmooth.train.tasks.images.saved_model import load_model

if TYPE_CHECKING:
    from rich.table import Table

NAME, QUICK_NAME = "table3", "table3-quick"
PUBLISHED: dict[str, list[tuple[float, float]]] = {
    "plain": [(66.78, 0.1), (61.59, 0.2), (57.75, 0.2), (53.12, 0.1), (49.32, 0.1), (39.17, 0.2)],
    "smooth": [(64.34, 0.3), (58.36, 0.4), (53.83, 0.5), (49.03, 0.6), (45.15, 0.6), (35.86, 0.6)],
    "sharpen": [(66.62, 0.3), (61.62, 0.2), (58.00, 0.3), (53.56, 0.2), (49.70, 0.3), (40.07, 0.2)],
}
"""Accuracy in % and its ±, for intensities 0 to 5."""
_OTHER_WEIGHTS = (
    "Intensity 0 is not table 2's figure to the last image: that was tested at the end of training, with the weights "
    "in float32; this is of the file that training left, whose weights are in bf16, with ViT⁺ and ViT⁻ folded."
)
_PUBLISHED = "published, 100 % of the data"
Values = dict[str, list[list[float]]]
"""By variant, one list a seed: accuracies for intensities 0 to 5."""


def find_model(recipe: Recipe, results: Path, models: Path | None = None) -> Path | None:
    """The trained model of a cell: where `cells` keeps it, or in a folder of the user's."""
    folder = results / "models" if models is None else models
    candidates = (folder / f"{recipe.key}.safetensors", folder / recipe.key / "model.safetensors")
    return next((path for path in candidates if path.is_file()), None)


def fill(
    recipes: Sequence[Recipe],
    test: Images,
    results: Path,
    table: str,
    *,
    models: Path | None = None,
    official: Path | None = None,
    device: str | None = None,
    kinds: Sequence[str] = KINDS,
    force: bool = False,
    told: Callable[[str, int, int, str], None] | None = None,
) -> list[Recipe]:
    """Corrupt and test the models that are there and were not tested yet; gives the cells whose model is missing."""
    lacking, place = [], device_named(device)
    corruptions = Corruptions(test, place, official=official)
    evaluator: Evaluator | None = None
    with cells.written(results, force):
        for recipe in cells.missing(recipes, results, table):
            path = find_model(recipe, results, models)
            if path is None:
                lacking.append(recipe)
                continue
            evaluator = _evaluator(recipe, path, place, evaluator)
            clean = evaluator.accuracy(test.images, test.labels)
            say = None if told is None else lambda done, total, what, of=recipe.title: told(of, done, total, what)
            found = under_corruption(evaluator, corruptions, kinds=kinds, told=say)
            cells.write(
                cells.cell_path(results, table, recipe),
                {
                    "table": table,
                    "title": recipe.title,
                    "accuracy": clean,
                    "seed": recipe.seed,
                    "test_images": len(test),
                    "corruptions": "official files" if official is not None else "made on the spot, seed 0",
                    "mean": by_severity(found),
                    "kinds": found,
                    "recipe": recipe.to_dict(),
                    **cells.provenance(device),
                },
            )
    return lacking


def _evaluator(recipe: Recipe, path: Path, device: torch.device, before: Evaluator | None) -> Evaluator:
    """Of the model in this file. before: of another; folded, all are one function, and need compiling once."""
    model, trained = load_model(path)
    if (differs := trained.difference(recipe)) is not None:
        raise InputError(f"{path} is of another recipe: {differs}; name the folder with the models of this table")
    steering = steering_of(model)
    if steering is not None and not any(method.why_no_fold for method in steering.methods):
        fold(model)
        steering = None
    if steering is None and before is not None and steering_of(before.model) is None:
        before.model.load_state_dict(model.state_dict())
        return before
    return Evaluator(recipe, model.to(device), device)


def found(recipes: Sequence[Recipe], results: Path, table: str) -> Values:
    values: Values = {variant: [] for variant in VARIANTS}
    for recipe in recipes:
        cell = cells.read(cells.cell_path(results, table, recipe))
        if cell is None:
            continue
        if len(cell.get("mean", ())) != len(SEVERITIES):
            path = cells.cell_path(results, table, recipe)
            raise InputError(f"{path} has no mean of each of {len(SEVERITIES)} intensities; remove it to run it again")
        values[recipe.variant].append([cell["accuracy"], *cell["mean"]])
    return values


def _rows(values: Values, share: float, quick: bool) -> tuple[list[str], list[list[str]]]:
    head = ["intensity", "0", *map(str, SEVERITIES), "whose"]
    whose = "ours, quick" if quick else f"ours, {percent(share)} of the data"
    rows = []
    for variant in VARIANTS:
        title = variant_title(variant).replace("ViT-Ti", "ViT") if quick else variant_title(variant)
        columns = zip(*values[variant], strict=True) if values[variant] else [()] * (1 + len(SEVERITIES))
        rows.append([title, *(cells.shown(list(column)) for column in columns), whose])
        if not quick:
            theirs = [f"{mean:.2f} ± {spread}" for mean, spread in PUBLISHED[variant]]
            rows.append([title, *theirs, _PUBLISHED])
    return head, rows


def table(values: Values, share: float, quick: bool = False) -> Table:
    head, rows = _rows(values, share, quick)
    short = [[*row[:-1], row[-1].removesuffix(" of the data")] for row in rows]  # six figures leave no room for more
    return tables.terminal(head, short)


def markdown(values: Values, share: float, quick: bool = False) -> str:
    note = (
        "Accuracy in %, the mean over the 15 standard corruptions; mean ± standard deviation over seeds (their number)."
    )
    if quick:
        note = f"quick: small models, trained for minutes, nothing to compare with published figures. {note}"
    return tables.markdown(*_rows(values, share, quick), [f"{note} {_OTHER_WEIGHTS}"])


def chart(values: Values, share: float, quick: bool = False) -> Any:
    """Ours and the published in one panel where they are of the same data; else apart, each with a scale of its own."""
    from oversmooth.reproduce import charts

    ours: list[dict[str, Any]] = []
    published: list[dict[str, Any]] = []
    whose = "ours, quick" if quick else f"ours, {percent(share)} of the data"
    for variant in VARIANTS:
        name = variant_title(variant).replace("ViT-Ti", "ViT") if quick else variant_title(variant)
        for severity, column in enumerate(zip(*values[variant], strict=True)):
            mean, spread = cells.mean_and_spread([100 * value for value in column])
            ours.append(_point(name, whose, severity, mean, spread or 0.0))
        if not quick and values[variant]:
            for severity, (mean, spread) in enumerate(PUBLISHED[variant]):
                published.append(_point(name, _PUBLISHED, severity, mean, spread))
    panels = [(whose, ours), (_PUBLISHED, published)]
    if share == 1 and not quick:
        panels = [("100 % of the data", ours + published)]
    return charts.lines([(*panel, "test accuracy, %") for panel in panels], "intensity of corruption")


def _point(name: str, whose: str, x: int, mean: float, spread: float) -> dict[str, Any]:
    return {"model": name, "whose": whose, "x": x, "value": mean, "low": mean - spread, "high": mean + spread}
