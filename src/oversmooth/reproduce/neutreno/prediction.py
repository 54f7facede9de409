"""What the spectra of plain models predict for NeuTRENO's λ̃, beside what training with λ̃ gave.

    oversmooth reproduce neutreno prediction --trained PLAIN --trained PLAIN... --data cifar100

Of a plain model and a few test images: the share of cases (image, layer, head) that smooth at each λ̃, and the least λ̃
from which on none does, which `oversmooth.steering.suggest` proposes. One file per model,
results/neutreno/prediction/<recipe key>.json. The accuracies are those of the cells of `ablation` that share the
model's recipe, over all seeds that are there.

Whether the proposal is good is decided by one rule: the accuracy of the λ̃ that was trained and lies nearest to it is
within one standard error of the best mean, or not. The standard error is that of the best mean over its seeds; with one
seed there is none, and nothing is decided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from oversmooth.reproduce import table_text
from oversmooth.reproduce.cells import cell_path, read_kept, write
from oversmooth.reproduce.filling import Running, one_writer
from oversmooth.reproduce.neutreno.ablation import STRENGTHS, VARIANTS, Ablation
from oversmooth.reproduce.neutreno.robustness import Trained
from oversmooth.reproduce.provenance import provenance
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_json
from oversmooth.safety.typed import typed
from oversmooth.steering.suggestion import STRENGTHS as HUNDREDTHS
from oversmooth.steering.suggestion import suggest
from oversmooth.train.engine.loop import device_named
from oversmooth.train.tasks.images.build import augment_of, load_vit
from oversmooth.train.tasks.images.data import Images
from oversmooth.train.tasks.images.recipe import Recipe

FOLDER = "neutreno/prediction"
IMAGES = 32
SEEDS = 10
"""Of the ablation's cells: those below are looked for."""
_TRIED = tuple(sorted({*HUNDREDTHS, *STRENGTHS}))
_BATCH = 8


class Point(TypedDict):
    """At one λ̃; of the cases in layers in which NeuTRENO acts."""

    strength: float
    smoothing: float | None
    undecided: float
    rho_rough: float | None


class Prediction(TypedDict):
    """Of one plain model, as its file keeps it."""

    title: str
    seed: int
    images: int
    weights: str
    strength: float | None
    reason: str
    curve: list[Point]
    recipe: dict[str, Any]


def measure(
    models: Sequence[Trained], test: Images, results: Path, images: int, running: Running
) -> dict[Recipe, Prediction]:
    """Of these models; what is there is not computed again.

    Raises:
        InputError: a model is not plain, does not fit the images, or was measured otherwise.
    """
    for model in models:
        if model.recipe.variant != "plain":
            raise InputError(
                f"{model.path} is a {model.recipe.title}; predictions are those of plain models: name the one that was "
                "trained with the same recipe"
            )
        model.recipe.check_fits(test)
    taken = test.images[:images]
    predictions: dict[Recipe, Prediction] = {}
    with one_writer(results, running):
        before = [_kept(model, results, len(taken)) for model in models]  # refused before any is run
        for model, there in zip(models, before, strict=True):
            if there is None:
                there = _predicted(model, taken, running)
                write(cell_path(results, FOLDER, model.recipe), {**there, **provenance(running.device)})
            predictions[model.recipe] = there
    return predictions


def _predicted(model: Trained, images: Any, running: Running) -> Prediction:
    network, recipe = load_vit(model.path)
    device = device_named(running.device)
    x = augment_of(recipe).normalise(images.float())

    def progress(done: int, _total: int | None, what: str) -> None:
        if running.on_progress is not None:
            running.on_progress(recipe.title, done, len(images), what)

    batches = [batch.to(device) for batch in x.split(_BATCH)]
    suggestion = suggest(network.to(device), batches, strengths=_TRIED, progress=progress)
    curve = [
        Point(strength=p.strength, smoothing=p.steered_share, undecided=p.undecided_share, rho_rough=p.rho_rough)
        for p in suggestion.curve
    ]
    return Prediction(
        title=recipe.title,
        seed=recipe.seed,
        images=len(images),
        weights=model.digest,
        strength=suggestion.strength,
        reason=suggestion.reason,
        curve=curve,
        recipe=recipe.to_dict(),
    )


def _kept(model: Trained, results: Path, images: int) -> Prediction | None:
    path = cell_path(results, FOLDER, model.recipe)
    if not path.is_file():
        return None
    remedy = "remove it to compute it again"
    try:
        there: Prediction = typed(Prediction, read_json(path, remedy))
        if [point["strength"] for point in there["curve"]] != list(_TRIED):
            raise ValueError("its curve is over other λ̃")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no prediction of ours or is damaged ({reason(error)}); {remedy}") from error
    for name, asked in (("images", images), ("weights", model.digest)):
        if there[name] != asked:  # type: ignore[literal-required]
            raise InputError(
                f"{path} is of {name} {there[name]!r} and is asked for with {asked!r}; "  # type: ignore[literal-required]
                f"name other --results, or {remedy}"
            )
    return there


@dataclass(frozen=True)
class Outcome:
    """Accuracies of the models that were trained with one λ̃, over seeds."""

    strength: float
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def standard_error(self) -> float | None:
        """Of the mean; one seed has none."""
        count = len(self.accuracies)
        return statistics.stdev(self.accuracies) / math.sqrt(count) if count > 1 else None


def outcomes(recipe: Recipe, results: Path) -> list[Outcome]:
    """Of every λ̃ that was trained with this recipe, ascending; λ̃ = 0 is the plain model."""
    trained = []
    for strength in (0.0, *STRENGTHS):
        recipes = [replace(recipe, variant=VARIANTS[f"{strength:g}"], seed=seed) for seed in range(SEEDS)]
        kept = read_kept(recipes, results, Ablation().folder)
        if kept:
            trained.append(Outcome(strength, tuple(cell["accuracy"] for cell in kept.values())))
    return trained


def verdict(proposed: float | None, trained: Sequence[Outcome]) -> str:
    """Whether the proposal is within one standard error of the best mean, in one sentence."""
    if proposed is None:
        return "The spectra propose no λ̃, so there is nothing to compare."
    says = f"The spectra propose λ̃ = {proposed:.3g}"
    if len(trained) < 2:
        return f"{says}; no two λ̃ were trained with this recipe, so nothing is decided."
    best = max(trained, key=lambda one: one.mean)
    nearest = min(trained, key=lambda one: (abs(one.strength - proposed), one.strength))
    seen = (
        f"{says}; trained nearest to it is {nearest.strength:g}, with {100 * nearest.mean:.2f} %, and the best mean is "
        f"{100 * best.mean:.2f} % at {best.strength:g}"
    )
    if best.standard_error is None:
        return f"{seen}, of one seed, which has no standard error: undecided."
    within = best.mean - nearest.mean <= best.standard_error
    return f"{seen} ± {100 * best.standard_error:.2f} (standard error): {'yes' if within else 'no'}, " + (
        "the proposal is within one standard error of the best."
        if within
        else "the proposal is not within one standard error of the best."
    )


def rows(predictions: dict[Recipe, Prediction], results: Path) -> tuple[list[str], list[list[str]]]:
    """A row per λ̃ of the ablation: what the spectra say, mean over models, and what training gave."""
    first = next(iter(predictions))
    trained = {one.strength: one for one in outcomes(first, results)}
    table = []
    for strength in (0.0, *STRENGTHS):
        points = [next(p for p in one["curve"] if p["strength"] == strength) for one in predictions.values()]
        accuracies = trained[strength].accuracies if strength in trained else ()
        table.append(
            [
                f"{strength:g}",
                _mean([p["smoothing"] for p in points], 100, ".1f"),
                _mean([p["undecided"] for p in points], 100, ".1f"),
                _mean([p["rho_rough"] for p in points], 1, ".3f"),
                table_text.percent_over_seeds(accuracies),
            ]
        )
    return ["λ̃", "cases that smooth, %", "undecided, %", "ρ_rough", "accuracy, %"], table


def _mean(values: Sequence[float | None], factor: float, style: str) -> str:
    known = [value for value in values if value is not None]
    return format(factor * statistics.fmean(known), style) if known else "–"


def notes(predictions: dict[Recipe, Prediction], results: Path) -> list[str]:
    """Paragraphs under the table: what each model's spectra propose, and whether training bears it out."""
    trained = outcomes(next(iter(predictions)), results)
    lines = [f"{one['title']}: {one['reason']}. {verdict(one['strength'], trained)}" for one in predictions.values()]
    images = ", ".join(sorted({str(one["images"]) for one in predictions.values()}))
    return [
        *lines,
        f"Predicted from plain models, {images} test images each: the share of cases (image, layer, head) in layers in "
        "which NeuTRENO acts, mean over models; ρ_rough above 1 is how fast differences between tokens grow per layer. "
        "Accuracy: of models trained with that λ̃ from the start, mean ± standard deviation over seeds (their number).",
    ]
