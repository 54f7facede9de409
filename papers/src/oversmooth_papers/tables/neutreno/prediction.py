"""What the spectra of plain models predict for NeuTRENO's λ̃, beside what training with λ̃ gave.

    oversmooth reproduce neutreno prediction --trained PLAIN --trained PLAIN...

Of a plain model of images or of text and a few inputs: the share of cases (input, layer, head) that smooth at each λ̃,
and the least λ̃ from which on none does, which `oversmooth.steering.suggest` proposes. One file per model,
results/neutreno/prediction/<recipe key>.json. What training gave is in the cells of `ablation` or `language-ablation`
that share the model's recipe, over all seeds that are there. The proposal is good where the λ̃ that was trained and lies
nearest to it gave a mean within one standard error (over seeds) of the best.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.steering.suggestion import STRENGTHS as HUNDREDTHS
from oversmooth.steering.suggestion import suggest
from oversmooth_papers.engine.loop import device_named
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import Cell, cell_path, read_cells, scores
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.neutreno import measured
from oversmooth_papers.tables.neutreno.language import LanguageAblation, over_seeds
from oversmooth_papers.tables.neutreno.measured import CellOrder, Trained
from oversmooth_papers.tables.neutreno.methods import FIXED, STRENGTHS, Ablation
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
Outcomes = Mapping[float, Sequence[float]]
"""What models that were trained with a λ̃ reached, over seeds."""


class Kind(NamedTuple):
    """What differs between models of images and of text."""

    inputs_are: str
    load: Callable[[Any, str | Path], Any]
    """The data of a recipe, by name or from where they lie."""
    inputs: Callable[[Any, Any, int], Tensor]
    """Of a recipe and its data, the first so many, as the model takes them."""
    ablation: Table
    """Whose cells say what training gave."""
    score: str
    heading: str
    best: Callable[..., float]
    shown: Callable[[Sequence[float]], str]
    """Over seeds, in a table."""
    figure: Callable[[float], str]
    """In a sentence."""


def _pixels(recipe: images.Recipe, test: Images, count: int) -> Tensor:
    return augment_of(recipe).normalise(test.images[:count].float())


def _windows(recipe: language.Recipe, text: Text, count: int) -> Tensor:
    length = min(recipe.shape.length, len(text.valid))
    return text.valid[: len(text.valid) // length * length].long().unflatten(0, (-1, length))[:count]


KINDS: dict[type, Kind] = {
    images.Recipe: Kind(
        inputs_are="test images",
        load=lambda _recipe, what: load_images(what, "test"),
        inputs=_pixels,
        ablation=Ablation(),
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
        ablation=LanguageAblation(),
        score="valid_perplexity_sliding",
        heading="validation perplexity",
        best=min,
        shown=over_seeds,
        figure="{:.2f}".format,
    ),
}


def named(paths: Sequence[Path]) -> list[Trained]:
    """The files, plain models of one kind, each of a recipe of its own."""
    models = measured.named(paths, load_trained)
    for model in models:
        if type(model.recipe) not in KINDS or model.recipe.variant != "plain":
            raise InputError(
                f"{model.path} is a {model.recipe.title}; predictions are those of plain models of images or of text: "
                "name the one that was trained with the same recipe"
            )
        if model.recipe != replace(models[0].recipe, seed=model.recipe.seed):
            raise InputError(
                f"{models[0].path} and {model.path} differ in more than their seed, so that no mean can be taken over "
                "them; name one of them"
            )
    return models


def measure(models: Sequence[Trained], data: Any, results: Path, inputs: int, running: Running) -> dict[Recipe, Cell]:
    """Of these models what their spectra say; what is there is not computed again."""
    models[0].recipe.check_fits(data)
    x = KINDS[type(models[0].recipe)].inputs(models[0].recipe, data, inputs)

    def predicted(model: Trained, there: Cell | None) -> Cell:
        if there is not None:
            return there
        network, recipe = load_trained(model.path)
        device, progress = device_named(running.device), running.progress_of(recipe.title)
        batches = [batch.to(device) for batch in x.split(_BATCH)]
        told = lambda done, _total, what: progress(done, len(x), what)  # noqa: E731
        suggestion = suggest(network.to(device), batches, strengths=_TRIED, progress=told)
        curve = [
            {
                "strength": point.strength,
                "smoothing": point.steered_share,
                "undecided": point.undecided_share,
                "rho_rough": point.rho_rough,
            }
            for point in suggestion.curve
        ]
        return {
            "title": recipe.title,
            "seed": recipe.seed,
            "inputs": len(x),
            "weights": model.digest,
            "strength": suggestion.strength,
            "reason": suggestion.reason,
            "curve": curve,
            "recipe": recipe.to_dict(),
        }

    wanted = [
        CellOrder(cell_path(results, FOLDER, m.recipe), {"inputs": len(x), "weights": m.digest}, partial(predicted, m))
        for m in models
    ]
    cells = measured.measured(wanted, results, running, _settings_of)
    return {model.recipe: cell for model, cell in zip(models, cells, strict=True)}


def _settings_of(cell: Cell) -> Cell:
    if [point["strength"] for point in cell["curve"]] != list(_TRIED):
        raise ValueError("its curve is over other λ̃")
    _spectra([cell], 0.0)
    return cell


def outcomes(recipe: Recipe, results: Path) -> Outcomes:
    """Of every λ̃ that was trained with this recipe, ascending; λ̃ = 0 is the plain model."""
    kind, trained = KINDS[type(recipe)], {}
    for strength in STRENGTHS:
        recipes = [replace(recipe, variant=FIXED[f"{strength:g}"], seed=seed) for seed in range(SEEDS)]
        if found := scores(read_cells(recipes, results, kind.ablation.folder), kind.score):
            trained[strength] = found
    return trained


def verdict(proposed: float | None, trained: Outcomes, kind: Kind) -> str:
    """Whether the proposal is within one standard error of the best mean, in one sentence."""
    if proposed is None:
        return "The spectra propose no λ̃, so there is nothing to compare."
    says = f"The spectra propose λ̃ = {proposed:.3g}"
    if len(trained) < 2:
        return f"{says}; no two λ̃ were trained with this recipe, so nothing is decided."
    means = {strength: statistics.fmean(figures) for strength, figures in trained.items()}
    best = kind.best(means, key=means.__getitem__)
    nearest = min(means, key=lambda strength: (abs(strength - proposed), strength))
    seen = (
        f"{says}; trained nearest to it is {nearest:g}, with {kind.figure(means[nearest])}, and the best mean "
        f"is {kind.figure(means[best])} at {best:g}"
    )
    seeds = len(trained[best])
    if seeds == 1:
        return f"{seen}, of one seed, which has no standard error: undecided."
    error = statistics.stdev(trained[best]) / math.sqrt(seeds)
    within = abs(means[best] - means[nearest]) <= error
    answer = "yes, the proposal is" if within else "no, the proposal is not"
    shown = kind.figure(error).removesuffix(" %")
    return f"{seen} ± {shown} (standard error): {answer} within one standard error of the best."


def table(predictions: Mapping[Recipe, Cell], results: Path) -> tuple[list[str], list[list[str]], list[str]]:
    """The heading, a row per λ̃ of the ablation, and the notes: what each model's spectra propose, and whether training
    bears it out.
    """
    first, cells = next(iter(predictions)), [*predictions.values()]
    kind, trained = KINDS[type(first)], outcomes(first, results)
    rows = [[f"{s:g}", *_spectra(cells, s), kind.shown(trained.get(s, ()))] for s in STRENGTHS]
    proposals = [f"{cell['title']}: {cell['reason']}. {verdict(cell['strength'], trained, kind)}" for cell in cells]
    figure = kind.heading.removesuffix(", %").capitalize()
    note = (
        f"Predicted from plain models, {cells[0]['inputs']} {kind.inputs_are} each: the share of cases "
        "(input, layer, head) in layers in which NeuTRENO acts, mean over models; ρ_rough above 1 is how fast "
        f"differences between tokens grow per layer. {figure}: of models trained with that λ̃ from the start, mean ± "
        "standard deviation over seeds (their number)."
    )
    head = ["λ̃", "cases that smooth, %", "undecided, %", "ρ_rough", kind.heading]
    return head, rows, [*proposals, note]


def _spectra(cells: Sequence[Cell], strength: float) -> list[str]:
    """Means over models at one λ̃."""
    points = [point for cell in cells for point in cell["curve"] if point["strength"] == strength]
    shown = []
    for name, factor, form in (("smoothing", 100, ".1f"), ("undecided", 100, ".1f"), ("rho_rough", 1, ".3f")):
        known = [point[name] for point in points if point.get(name) is not None]
        shown.append(format(factor * statistics.fmean(known), form) if known else "–")
    return shown
