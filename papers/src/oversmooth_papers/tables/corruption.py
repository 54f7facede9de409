"""Table 3's cells: models that were trained before, tested on corrupted images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from oversmooth.steering import steering_of
from oversmooth.steering.apply import fold_if_possible
from oversmooth_papers.engine.loop import MODEL, device_named
from oversmooth_papers.tables.cells import Folder
from oversmooth_papers.tables.filling import Filled, Running, measure_models
from oversmooth_papers.tables.provenance import data_hash
from oversmooth_papers.tasks.images.build import load_vit
from oversmooth_papers.tasks.images.corruptions import KINDS
from oversmooth_papers.tasks.images.data import Images
from oversmooth_papers.tasks.images.evaluate import (
    Corruptions,
    Evaluator,
    by_severity,
    corruptions_made,
    under_corruption,
)
from oversmooth_papers.tasks.images.recipe import Recipe


def corrupt_and_test(
    recipes: Sequence[Recipe],
    test: Images,
    results: Path,
    folder: Folder,
    running: Running,
    models: Path | None = None,
    official: Path | None = None,
    frost: Path | None = None,
) -> Filled:
    """Test the models that are there and were not tested yet; says which models are missing.

    models: their folder, by default the results' own. official, frost: as of `Corruptions`.
    """
    device = device_named(running.device)
    corruptions = Corruptions(test, device, official=official, frost=frost)
    evaluator: Evaluator | None = None

    def find(results: Path, recipe: Recipe) -> Path:
        """Named by its key, or as `oversmooth train` leaves them."""
        home = models or results / "models"
        run = home / recipe.key / MODEL
        return run if run.is_file() else home / f"{recipe.key}.safetensors"

    def measure(recipe: Recipe, path: Path) -> dict[str, Any]:
        nonlocal evaluator
        begin = time.monotonic()
        evaluator = _evaluator(recipe, path, device, evaluator)
        clean = evaluator.accuracy(test.images, test.labels)
        by_kind = under_corruption(evaluator, corruptions, kinds=KINDS, on_message=running.told(recipe.title))
        return {
            "accuracy": clean,
            "test_images": len(test),
            **corruptions_made(official, frost),
            "mean": by_severity(by_kind),
            "kinds": by_kind,
            "data_sha256": data_hash((test.images, test.labels)),
            "minutes": round((time.monotonic() - begin) / 60, 2),
        }

    return measure_models(recipes, results, folder, running, measure, made_by="table2", find=find)


def _evaluator(recipe: Recipe, path: Path, device: torch.device, before: Evaluator | None) -> Evaluator:
    """Of the model in this file. before: of another; folded, all are one function, and need one graph."""
    model, _ = load_vit(path)
    if fold_if_possible(model) and before is not None and steering_of(before.model) is None:
        before.model.load_state_dict(model.state_dict())
        return before
    return Evaluator(recipe, model.to(device), device)
