"""Table 3's cells: models that were trained before, tested on corrupted images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth.steering.apply import fold_if_possible
from oversmooth_papers.engine.loop import device_named
from oversmooth_papers.tables.cells import Folder, cell_path, folder_name, missing, write
from oversmooth_papers.tables.filling import NO_MODELS, Filled, Running, one_writer
from oversmooth_papers.tables.provenance import data_hash, file_hash, provenance
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


def find_model(recipe: Recipe, results: Path, models: Path | None = None) -> Path | None:
    """The trained model of a cell: where `cells` keeps it, or in a folder of the user's."""
    folder = results / "models" if models is None else models
    candidates = (folder / f"{recipe.key}.safetensors", folder / recipe.key / "model.safetensors")
    return next((path for path in candidates if path.is_file()), None)


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
    """Corrupt the images and test the models that are there and were not tested yet; says which models are missing."""
    lacking, device = [], device_named(running.device)
    corruptions = Corruptions(test, device, official=official, frost=frost)
    evaluator: Evaluator | None = None
    with one_writer(results, running):
        for recipe in missing(recipes, results, folder):
            path = find_model(recipe, results, models)
            if path is None:
                lacking.append(recipe)
                continue
            begin = time.monotonic()
            evaluator = _evaluator(recipe, path, device, evaluator)
            clean = evaluator.accuracy(test.images, test.labels)
            by_kind = under_corruption(evaluator, corruptions, kinds=KINDS, on_message=running.told(recipe.title))
            write(
                cell_path(results, folder, recipe),
                {
                    "table": folder_name(folder, recipe),
                    "title": recipe.title,
                    "accuracy": clean,
                    "seed": recipe.seed,
                    "test_images": len(test),
                    **corruptions_made(official, frost),
                    "mean": by_severity(by_kind),
                    "kinds": by_kind,
                    "data_sha256": data_hash((test.images, test.labels)),
                    "checkpoint_sha256": file_hash(path),
                    "minutes": round((time.monotonic() - begin) / 60, 2),
                    "recipe": recipe.to_dict(),
                    **provenance(running.device),
                    **({"command": running.command} if running.command else {}),
                },
            )
    for recipe in lacking:
        running.on_message(f"{recipe.title}: no model; oversmooth reproduce table2 makes it")
    return Filled(NO_MODELS if lacking else "finished")


def _evaluator(recipe: Recipe, path: Path, device: torch.device, before: Evaluator | None) -> Evaluator:
    """Of the model in this file. before: of another; folded, all are one function, and need one graph."""
    model, trained = load_vit(path)
    if (differs := trained.difference(recipe)) is not None:
        raise InputError(f"{path} is of another recipe: {differs}; name the folder with the models of this table")
    if fold_if_possible(model) and before is not None and steering_of(before.model) is None:
        before.model.load_state_dict(model.state_dict())
        return before
    return Evaluator(recipe, model.to(device), device)
