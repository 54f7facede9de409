"""Dovonon et al.'s table 3: CIFAR-100 accuracy against the intensity of corruption, CIFAR-100-C.

    oversmooth reproduce table2 --cells 100%                           the models
    oversmooth reproduce table3 --share 1                              their corruptions

A figure is the mean over the 15 standard types, which is our reading; intensity 0 is the clean test set. Corruptions
are made on the spot with the published constants (`tasks.images.corruptions` says what differs: random numbers,
and textures of frost of our own, unless --frost names the official pictures), or read from the official files with
--official. The published figures are of models that were trained with all of the data; models of a smaller share are
ours alone, and said to be. What was reached is in docs/first-paper.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables.base import Rows
from oversmooth_papers.tables.cells import Available, Cell
from oversmooth_papers.tables.table2 import Table2, column
from oversmooth_papers.tasks.images.recipe import Recipe, percent

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Running
    from oversmooth_papers.tasks.images.data import Splits

INTENSITIES = (0, 1, 2, 3, 4, 5)
"""Of corruption; 0 is the clean test set."""


def _by_intensity(*figures: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(map(str, INTENSITIES), figures, strict=True))


_NOTE = (
    "Accuracy in %, the mean over the 15 standard corruptions; mean ± standard deviation over seeds (their number). "
    "Intensity 0 is not table 2's figure to the last image: that was tested at the end of training, with the weights "
    "in float32; this is of the file that training left, whose weights are in bf16, with ViT⁺ and ViT⁻ folded."
)


@dataclass(frozen=True, kw_only=True)
class Table3(Table2):
    """Make table 3 of Dovonon et al.: accuracy of table 2's models against the intensity of corruption."""

    name = "table3"
    trains = False
    progress_unit = "corruptions"
    published: ClassVar = {
        "plain": _by_intensity((66.78, 0.1), (61.59, 0.2), (57.75, 0.2), (53.12, 0.1), (49.32, 0.1), (39.17, 0.2)),
        "smooth": _by_intensity((64.34, 0.3), (58.36, 0.4), (53.83, 0.5), (49.03, 0.6), (45.15, 0.6), (35.86, 0.6)),
        "sharpen": _by_intensity((66.62, 0.3), (61.62, 0.2), (58.00, 0.3), (53.56, 0.2), (49.70, 0.3), (40.07, 0.2)),
    }
    published_by = "published, 100 % of the data"
    rows_are = "intensity"

    share: float = option(1.0, "Of which of table 2's models: 1, 0.5 or 0.1.")
    models: Path | None = option(None, "Folder of models, by default the results' own.")
    frost: Path | None = option(
        None, "Folder of ImageNet-C's pictures of frost, or imagenet-c-frost where OVERSMOOTH_DATA has it."
    )
    official: Path | None = option(None, "Folder of CIFAR-100-C's official files.")

    def recipes(self) -> list[Recipe]:
        return column(self.share, seeds=self.seeds, quick=self.quick)

    def folder(self, recipe: Recipe) -> str:
        official = "" if self.official is None else "-official"  # other pictures, and so other cells
        frost = "" if self.frost is None else "-frost"
        return super().folder(recipe) + official + frost

    def fill(self, recipes: Sequence[Recipe], splits: Splits, results: Path, running: Running) -> str:
        """Nothing is trained: models of table 2 that were not tested yet are."""
        from oversmooth.steering.apply import fold_if_possible
        from oversmooth_papers.engine.loop import MODEL, device_named
        from oversmooth_papers.tables.filling import measure_models
        from oversmooth_papers.tables.provenance import data_hash
        from oversmooth_papers.tasks.images import evaluate
        from oversmooth_papers.tasks.images.build import load_vit

        test, device = splits.test, device_named(running.device)
        corrupted = evaluate.Corruptions(test, device, official=self.official, frost=self.frost)
        evaluators: list[evaluate.Evaluator] = []  # one, whose graph serves all models

        def find(results: Path, recipe: Recipe) -> Path:
            """Named by its key, or as `oversmooth train` leaves them."""
            home = self.models or results / "models"
            run = home / recipe.key / MODEL
            return run if run.is_file() else home / f"{recipe.key}.safetensors"

        def measure(recipe: Recipe, path: Path) -> Cell:
            begin = time.monotonic()
            model, _ = load_vit(path)
            fold_if_possible(model)  # so that all are one function, and need one graph
            if evaluators:
                evaluators[0].model.load_state_dict(model.state_dict())
            else:
                evaluators.append(evaluate.Evaluator(recipe, model.to(device), device))
            clean = evaluators[0].accuracy(test.images, test.labels)
            told = running.progress_of(recipe.title)
            by_kind = evaluate.under_corruption(evaluators[0], corrupted, on_message=told)
            return {
                "accuracy": clean,
                "test_images": len(test),
                **evaluate.corruptions_made(self.official, self.frost),
                "mean": evaluate.by_severity(by_kind),
                "kinds": by_kind,
                "data_sha256": data_hash((test.images, test.labels)),
                "minutes": round((time.monotonic() - begin) / 60, 2),
            }

        return measure_models(recipes, results, self.folder, running, measure, made_by="table2", find=find)

    def places(self) -> Mapping[str, int]:
        return dict(zip(map(str, INTENSITIES), INTENSITIES, strict=True))

    def accuracies(self, cells: Available, place: int) -> list[float]:
        for recipe, cell in cells.items():
            if len(cell.get("mean", ())) != len(INTENSITIES) - 1:
                raise InputError(
                    f"{self.folder(recipe)}/{recipe.key}.json has no mean of each of {len(INTENSITIES) - 1} "
                    "intensities; remove it to run it again"
                )
        return [100 * [cell["accuracy"], *cell["mean"]][place] for cell in cells.values()]

    def terminal_rows(self, available: Available) -> Rows:
        head, rows = self.rows(available)
        return head, [[*row[:-1], row[-1].removesuffix(" of the data")] for row in rows]  # figures leave no room for it

    def chart(self, available: Available) -> Any:
        """Ours and the published in one panel where they are of the same data; else apart, each with its own scale."""
        points = [point for intensity in self.places() for point in self.points(available, intensity)]
        panels = [("100 % of the data", points)]
        if self.quick or self.share != 1:
            whose = (self.whose(), self.published_by)
            panels = [(name, [point for point in points if point["whose"] == name]) for name in whose]
        return table_charts.lines([(*panel, self.label) for panel in panels], "intensity of corruption")

    def notes(self) -> list[str]:
        quick = "quick: small models, trained for minutes, nothing to compare with published figures. "
        frost = "textures of our own" if self.frost is None else "the official pictures"
        made = f"made on the spot, frost by {frost}" if self.official is None else "the official files"
        return [f"{quick if self.quick else ''}{_NOTE} Corruptions: {made}."]

    def terminal_note(self) -> str:
        return ""

    def whose(self) -> str:
        return "ours, quick" if self.quick else f"ours, {percent(self.share)} of the data"
