"""What the spectra of plain models predict for NeuTRENO's λ̃, beside what training with λ̃ gave.

    oversmooth reproduce neutreno prediction --trained PLAIN --trained PLAIN...

Of a plain model of images or of text and a few inputs: the share of cases (input, layer, head) that smooth at each λ̃,
and the least λ̃ from which on none does, which `oversmooth.steering.suggest` proposes. One file per model,
results/neutreno/prediction/<recipe key>.json. What training gave is in the cells of `ablation` or `language-ablation`
that share the model's recipe, over all seeds that are there.

Whether the proposal is good is decided by one rule: what the λ̃ that was trained and lies nearest to it gave is within
one standard error of the best mean, or not. The standard error is that of the best mean over its seeds; with one seed
there is none, and nothing is decided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_json
from oversmooth.safety.typed import typed
from oversmooth.steering.suggestion import STRENGTHS as HUNDREDTHS
from oversmooth.steering.suggestion import suggest
from oversmooth_papers.engine.loop import device_named
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.cells import Folder, cell_path, read_kept, write
from oversmooth_papers.tables.filling import Running, one_writer
from oversmooth_papers.tables.neutreno import robustness
from oversmooth_papers.tables.neutreno.ablation import STRENGTHS, VARIANTS, Ablation
from oversmooth_papers.tables.neutreno.language import over_seeds
from oversmooth_papers.tables.neutreno.language_ablation import LanguageAblation
from oversmooth_papers.tables.neutreno.robustness import Trained, check_as_asked
from oversmooth_papers.tables.provenance import provenance
from oversmooth_papers.tasks.images import recipe as images
from oversmooth_papers.tasks.images.build import augment_of
from oversmooth_papers.tasks.images.data import Images
from oversmooth_papers.tasks.images.data import load as load_images
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.registry import load_data, load_trained

FOLDER = "neutreno/prediction"
SEEDS = 10
"""Of the ablation's cells: those below are looked for."""
_TRIED = tuple(sorted({*HUNDREDTHS, *STRENGTHS}))
_BATCH = 8
Recipe = images.Recipe | language.Recipe


@dataclass(frozen=True)
class Kind:
    """What differs between models of images and of text."""

    inputs_are: str
    load: Callable[[Any, str | Path], Any]
    """The data of a recipe, by name or from where they lie."""
    inputs: Callable[[Any, Any, int], Tensor]
    """Of a recipe and its data, the first so many, as the model takes them."""
    folder: Folder
    """Where the cells of the ablation are."""
    score: str
    """What cells call the figure that counts."""
    heading: str
    best: Callable[..., Outcome]
    """max or min."""
    shown: Callable[[Sequence[float]], str]
    """Over seeds, in a table."""
    figure: Callable[[float], str]
    """In a sentence."""


def _pixels(recipe: images.Recipe, test: Images, count: int) -> Tensor:
    recipe.check_fits(test)
    return augment_of(recipe).normalise(test.images[:count].float())


def _windows(recipe: language.Recipe, text: Text, count: int) -> Tensor:
    recipe.check_fits(text)
    length = min(recipe.shape.length, len(text.valid))
    return text.valid[: len(text.valid) // length * length].long().unflatten(0, (-1, length))[:count]


KINDS: dict[type, Kind] = {
    images.Recipe: Kind(
        inputs_are="test images",
        load=lambda _recipe, what: load_images(what, "test"),
        inputs=_pixels,
        folder=Ablation().folder,
        score="accuracy",
        heading="accuracy, %",
        best=max,
        shown=table_text.percent_over_seeds,
        figure=lambda value: f"{100 * value:.2f} %",
    ),
    language.Recipe: Kind(
        inputs_are="windows of the validation text",
        load=load_data,
        inputs=_windows,
        folder=LanguageAblation().folder,
        score="valid_perplexity_sliding",
        heading="validation perplexity",
        best=min,
        shown=over_seeds,
        figure="{:.2f}".format,
    ),
}
"""By recipe."""


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
    inputs: int
    weights: str
    strength: float | None
    reason: str
    curve: list[Point]
    recipe: dict[str, Any]


def named(paths: Sequence[Path]) -> list[Trained]:
    """The files, plain models of one kind, each of a recipe of its own.

    Raises:
        InputError: a file is none, or is of another kind.
    """
    models = robustness.named(paths, load_trained)
    for model in models:
        if type(model.recipe) not in KINDS:
            raise InputError(f"{model.path} is a {model.recipe.title}; give a model of images or of text")
        if model.recipe.variant != "plain":
            raise InputError(
                f"{model.path} is a {model.recipe.title}; predictions are those of plain models: name the one that was "
                "trained with the same recipe"
            )
        if model.recipe != replace(models[0].recipe, seed=model.recipe.seed):
            raise InputError(
                f"{models[0].path} and {model.path} differ in more than their seed, so that no mean can be taken over "
                "them; name one of them"
            )
    return models


def measure(
    models: Sequence[Trained], data: Any, results: Path, inputs: int, running: Running
) -> dict[Recipe, Prediction]:
    """Of these models; what is there is not computed again.

    Raises:
        InputError: a model does not fit the data, or was measured otherwise.
    """
    taken = [KINDS[type(model.recipe)].inputs(model.recipe, data, inputs) for model in models]
    predictions: dict[Recipe, Prediction] = {}
    with one_writer(results, running):
        before = [_kept(model, results, len(x)) for model, x in zip(models, taken, strict=True)]  # refused before any
        for model, x, there in zip(models, taken, before, strict=True):
            if there is None:
                there = _predicted(model, x, running)
                write(cell_path(results, FOLDER, model.recipe), {**there, **provenance(running.device)})
            predictions[model.recipe] = there
    return predictions


def _predicted(model: Trained, x: Tensor, running: Running) -> Prediction:
    network, recipe = load_trained(model.path)
    device, tell = device_named(running.device), running.told(recipe.title)
    batches = [batch.to(device) for batch in x.split(_BATCH)]
    suggestion = suggest(
        network.to(device), batches, strengths=_TRIED, progress=lambda done, _total, what: tell(done, len(x), what)
    )
    return Prediction(
        title=recipe.title,
        seed=recipe.seed,
        inputs=len(x),
        weights=model.digest,
        strength=suggestion.strength,
        reason=suggestion.reason,
        curve=[
            Point(strength=p.strength, smoothing=p.steered_share, undecided=p.undecided_share, rho_rough=p.rho_rough)
            for p in suggestion.curve
        ],
        recipe=recipe.to_dict(),
    )


def _kept(model: Trained, results: Path, inputs: int) -> Prediction | None:
    path = cell_path(results, FOLDER, model.recipe)
    if not path.is_file():
        return None
    remedy = "remove it to compute it again"
    try:
        there: Prediction = typed(Prediction, read_json(path, remedy))
        if [point["strength"] for point in there["curve"]] != list(_TRIED):
            raise ValueError("its curve is over other λ̃")
    except ValueError as error:
        raise InputError(f"{path} is no prediction of ours or is damaged ({reason(error)}); {remedy}") from error
    check_as_asked(path, there, {"inputs": inputs, "weights": model.digest}, remedy)
    return there


@dataclass(frozen=True)
class Outcome:
    """What models that were trained with one λ̃ reached, over seeds."""

    strength: float
    figures: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.figures)

    @property
    def standard_error(self) -> float | None:
        """Of the mean; one seed has none."""
        count = len(self.figures)
        return statistics.stdev(self.figures) / math.sqrt(count) if count > 1 else None


def outcomes(recipe: Recipe, results: Path) -> list[Outcome]:
    """Of every λ̃ that was trained with this recipe, ascending; λ̃ = 0 is the plain model."""
    kind, trained = KINDS[type(recipe)], []
    for strength in (0.0, *STRENGTHS):
        recipes = [replace(recipe, variant=VARIANTS[f"{strength:g}"], seed=seed) for seed in range(SEEDS)]
        figures = [cell.get(kind.score) for cell in read_kept(recipes, results, kind.folder).values()]
        if there := tuple(figure for figure in figures if figure is not None):
            trained.append(Outcome(strength, there))
    return trained


def verdict(proposed: float | None, trained: Sequence[Outcome], kind: Kind) -> str:
    """Whether the proposal is within one standard error of the best mean, in one sentence."""
    if proposed is None:
        return "The spectra propose no λ̃, so there is nothing to compare."
    says = f"The spectra propose λ̃ = {proposed:.3g}"
    if len(trained) < 2:
        return f"{says}; no two λ̃ were trained with this recipe, so nothing is decided."
    best = kind.best(trained, key=lambda one: one.mean)
    nearest = min(trained, key=lambda one: (abs(one.strength - proposed), one.strength))
    seen = (
        f"{says}; trained nearest to it is {nearest.strength:g}, with {kind.figure(nearest.mean)}, and the best mean "
        f"is {kind.figure(best.mean)} at {best.strength:g}"
    )
    if best.standard_error is None:
        return f"{seen}, of one seed, which has no standard error: undecided."
    within = abs(best.mean - nearest.mean) <= best.standard_error
    error = kind.figure(best.standard_error).removesuffix(" %")
    answer = "yes, the proposal is" if within else "no, the proposal is not"
    return f"{seen} ± {error} (standard error): {answer} within one standard error of the best."


def rows(predictions: dict[Recipe, Prediction], results: Path) -> tuple[list[str], list[list[str]]]:
    """A row per λ̃ of the ablation: what the spectra say, mean over models, and what training gave."""
    first = next(iter(predictions))
    kind = KINDS[type(first)]
    trained = {one.strength: one for one in outcomes(first, results)}
    table = []
    for strength in (0.0, *STRENGTHS):
        points = [next(p for p in one["curve"] if p["strength"] == strength) for one in predictions.values()]
        table.append(
            [
                f"{strength:g}",
                _mean([p["smoothing"] for p in points], 100, ".1f"),
                _mean([p["undecided"] for p in points], 100, ".1f"),
                _mean([p["rho_rough"] for p in points], 1, ".3f"),
                kind.shown(trained[strength].figures if strength in trained else ()),
            ]
        )
    return ["λ̃", "cases that smooth, %", "undecided, %", "ρ_rough", kind.heading], table


def _mean(values: Sequence[float | None], factor: float, style: str) -> str:
    known = [value for value in values if value is not None]
    return format(factor * statistics.fmean(known), style) if known else "–"


def notes(predictions: dict[Recipe, Prediction], results: Path) -> list[str]:
    """Paragraphs under the table: what each model's spectra propose, and whether training bears it out."""
    first = next(iter(predictions))
    kind, trained = KINDS[type(first)], outcomes(first, results)
    lines = [
        f"{one['title']}: {one['reason']}. {verdict(one['strength'], trained, kind)}" for one in predictions.values()
    ]
    figure = kind.heading.removesuffix(", %").capitalize()
    return [
        *lines,
        f"Predicted from plain models, {predictions[first]['inputs']} {kind.inputs_are} each: the share of cases "
        "(input, layer, head) in layers in which NeuTRENO acts, mean over models; ρ_rough above 1 is how fast "
        f"differences between tokens grow per layer. {figure}: of models trained with that λ̃ from the start, mean ± "
        "standard deviation over seeds (their number).",
    ]
