"""How robust trained models are: FGSM and PGD in the L∞ ball, and the 15 corruptions, on the same test images.

    oversmooth reproduce neutreno robustness --trained MODEL --trained MODEL... --data cifar100

One cell per model, results/neutreno/robustness/<recipe key>.json. A cell that is there is kept: only radii that it
lacks are run and added to it. One that was measured otherwise (other images, steps or weights) is refused, not
replaced. Attacks compute in float32; corruptions as table 3 tests them. What was reached is in docs/neutreno.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from oversmooth.steering.apply import fold_if_possible
from oversmooth_papers.engine.loop import device_named
from oversmooth_papers.tables.cells import Cell, cell_path
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.neutreno import measured
from oversmooth_papers.tables.neutreno.measured import CellOrder, Trained
from oversmooth_papers.tasks.images.attacks import ATTACKS, STEPS, AttackSettings, shown_radius, under_attack
from oversmooth_papers.tasks.images.build import augment_of, load_vit
from oversmooth_papers.tasks.images.corruptions import SEVERITIES
from oversmooth_papers.tasks.images.data import Images
from oversmooth_papers.tasks.images.evaluate import (
    OWN_FROST,
    Corruptions,
    Evaluator,
    by_severity,
    corruptions_made,
    under_corruption,
)
from oversmooth_papers.tasks.images.recipe import Recipe

RADII = (1 / 255, 4 / 255)
CURVE = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255)
named = partial(measured.named, load=load_vit)


@dataclass(frozen=True)
class RobustnessSettings:
    """What is measured, apart from the models. The images are the first of the test set."""

    images: int = 1000
    steps: int = STEPS
    """Of PGD, each of 2.5 ε / steps."""
    restarts: int = 1
    severities: tuple[int, ...] = SEVERITIES
    radii: tuple[float, ...] = RADII
    official: Path | None = None
    """Folder of CIFAR-100-C's own files, whose frost is that of the photographs; without it they are made."""
    frost: Path | None = None
    """Folder of the photographs, for corruptions that are made; without it frost is of textures of our own."""
    quick: bool = False

    @property
    def folder(self) -> str:
        """Of the results."""
        return "neutreno/robustness-quick" if self.quick else "neutreno/robustness"

    def recorded(self, weights: str, images: int) -> dict[str, Any]:
        """What must be equal for figures to stand in one cell. images: how many there are of those asked for."""
        return {
            "images": images,
            "steps": self.steps,
            "restarts": self.restarts,
            "severities": list(self.severities),
            **corruptions_made(self.official, self.frost),
            "weights": weights,
        }


QUICK = RobustnessSettings(images=12, steps=5, severities=(3,), quick=True)
"""65 s of CPU time for a ViT-Ti on one thread (aarch64); its figures compare with nothing."""


def measure(
    models: Sequence[Trained], test: Images, results: Path, settings: RobustnessSettings, running: Running
) -> dict[Recipe, Cell]:
    """The cells of these models, of which those that are there are not run again."""
    for model in models:
        model.recipe.check_fits(test)
    test = replace(test, images=test.images[: settings.images], labels=test.labels[: settings.images])
    corruptions = Corruptions(test, device_named(running.device), official=settings.official, frost=settings.frost)
    run = partial(_run, test, settings, corruptions, running)
    wanted = [
        CellOrder(
            cell_path(results, settings.folder, m.recipe), settings.recorded(m.digest, len(test)), partial(run, m)
        )
        for m in models
    ]
    cells = measured.measured(wanted, results, running, _settings_of)
    return {model.recipe: cell for model, cell in zip(models, cells, strict=True)}


def _settings_of(cell: Cell) -> dict[str, Any]:
    _figures(cell, [(attack, radius) for attack in ATTACKS for radius in cell["attacks"][attack]])
    return {"frost": OWN_FROST, **cell["settings"]}  # which earlier cells do not name


def _run(
    test: Images,
    settings: RobustnessSettings,
    corruptions: Corruptions,
    running: Running,
    model: Trained,
    cell: Cell | None,
) -> Cell:
    """What is missing of a cell, put together with what is there."""
    there = {attack: {} for attack in ATTACKS} if cell is None else cell["attacks"]
    missing = {attack: [r for r in settings.radii if shown_radius(r) not in there[attack]] for attack in ATTACKS}
    if cell is not None and not any(missing.values()):
        return cell
    recipe, device = model.recipe, corruptions.device
    network, _ = load_vit(model.path)
    fold_if_possible(network)  # the same function, quicker
    network.to(device)
    augment = augment_of(recipe).to(device)

    def attacked(attack: str, radii: Sequence[float]) -> dict[str, float]:
        progress = running.progress_of(f"{recipe.title}: {attack.upper()}")
        progress(0, len(radii) * len(test), f"ε {shown_radius(radii[0])}")  # the first batch may take minutes
        normalise = lambda pixels: augment.normalise(255 * pixels)  # noqa: E731
        how = AttackSettings(steps=settings.steps, restarts=settings.restarts)
        found = under_attack(network, normalise, test.images, test.labels, radii, attack, how, progress=progress)
        return {shown_radius(radius): share for radius, share in found.items()}

    if cell is None:
        progress = running.progress_of(f"{recipe.title}: corruptions")
        evaluator = Evaluator(recipe, network, device)
        by_kind = under_corruption(evaluator, corruptions, severities=settings.severities, on_message=progress)
        cell = {
            "table": settings.folder,
            "title": recipe.title,
            "accuracy": attacked("fgsm", [0.0])[shown_radius(0.0)],
            "seed": recipe.seed,
            "settings": settings.recorded(model.digest, len(test)),
            "attacks": {},
            "mean": by_severity(by_kind),
            "kinds": by_kind,
            "recipe": recipe.to_dict(),
        }
    new = {attack: attacked(attack, radii) if radii else {} for attack, radii in missing.items()}
    return {**cell, "attacks": {attack: {**there[attack], **new[attack]} for attack in ATTACKS}}


def standard_error(accuracy: float, images: int) -> float:
    """Of a share of independent images: binomial.

    >>> round(standard_error(0.5, 1000), 4)
    0.0158
    """
    return math.sqrt(accuracy * (1 - accuracy) / images)


def rows(cells: dict[Recipe, Cell], settings: RobustnessSettings) -> tuple[list[str], list[list[str]]]:
    """The heading, and a row per model: accuracies in %, ± their standard errors."""
    columns = [(attack, shown_radius(radius)) for attack in ATTACKS for radius in settings.radii]
    head = ["model", "clean", *(f"{attack.upper()} {radius}" for attack, radius in columns), "corrupted", "images"]
    return head, [[recipe.title, *_figures(cell, columns)] for recipe, cell in cells.items()]


def _figures(cell: Cell, columns: Sequence[tuple[str, str]]) -> list[str]:
    """Of a row. columns: attacks and radii."""
    attacked = (cell["attacks"][attack][radius] for attack, radius in columns)
    shares, images = [cell["accuracy"], *attacked, statistics.fmean(cell["mean"])], cell["settings"]["images"]
    return [*(f"{100 * share:.1f} ± {100 * standard_error(share, images):.1f}" for share in shares), f"{images:,}"]


def notes(settings: RobustnessSettings) -> list[str]:
    """Paragraphs under the table."""
    severities = ", ".join(map(str, settings.severities))
    made = corruptions_made(settings.official, settings.frost)
    frost = "official files" if settings.official is not None else f"made on the spot, frost by {made['frost']}"
    quick = "quick: a few images, to see that it runs; nothing to compare. " if settings.quick else ""
    return [
        f"{quick}Accuracy in % on the first images of the test set, ± the binomial standard error; where none is right "
        "the error reads 0, and up to 3 / images may be (95 %). FGSM and PGD: untargeted, L∞, ε in units of pixels in "
        f"[0, 1]; PGD with {settings.steps} steps of 2.5 ε / {settings.steps}, random starts, restarts: "
        f"{settings.restarts}. Corrupted: the mean over 15 kinds at severities {severities}, {frost}; its error is at "
        "most what is shown, as all are of the same images."
    ]
