"""What the learned strengths of four methods are worth to DeiT-Tiny, whose weights stay as they are.

    oversmooth reproduce neutreno adaptation --data IMAGENET-VALIDATION -o adaptation.md

The paper trains with its method from the start; that takes the whole of ImageNet. This asks the smaller question: does
a trained model gain by a method that is put on afterwards, if only its strengths are learned? One cell per method,
results/neutreno/adaptation/<method>-<key>.json, the key of what was measured: weights, images, method and settings.
Cells that are there are not run again, so the same command goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import nn

from oversmooth.models import Loaded
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder
from oversmooth.steering import Method
from oversmooth_papers.tables.cells import Cell
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.neutreno.measured import CellOrder, measured
from oversmooth_papers.tuning import Answers, Labelled, TuningSettings, baseline, cross_validate, report

FOLDER = Path("neutreno") / "adaptation"
DATA, WEIGHTS, HUB = "imagenet-val-1k", "deit-tiny", "facebook/deit-tiny-patch16-224"


def default_model() -> str:
    """DeiT-Tiny where OVERSMOOTH_DATA has it, else on the hub."""
    there = data_folder(WEIGHTS)
    return HUB if there is None else str(there)


def default_data() -> Path:
    """The validation images where OVERSMOOTH_DATA has them."""
    there = data_folder(DATA)
    if there is None:
        raise InputError(f"no labelled images were named; give --data, or set OVERSMOOTH_DATA to a folder with {DATA}")
    return there


def digest(model: nn.Module, data: Labelled) -> dict[str, str]:
    """Of all weights, and of all images and labels: what else would be another measurement."""
    weights = hashlib.sha256()
    for name, array in sorted(model.state_dict().items()):
        weights.update(name.encode() + array.detach().cpu().contiguous().numpy().tobytes())
    images = hashlib.sha256(data.labels.numpy().tobytes())
    for image in data.images:
        images.update(image.numpy().tobytes())
    return {"weights": weights.hexdigest()[:16], "images": images.hexdigest()[:16]}


def cell_path(results: Path, digests: dict[str, str], method: Method, settings: TuningSettings) -> Path:
    """Where a method's cell is kept."""
    measured = json.dumps([digests, method.settings(), settings.to_dict()], sort_keys=True)
    key = hashlib.sha256(measured.encode()).hexdigest()[:12]
    return results / FOLDER / f"{type(method).__name__.lower()}-{key}.json"


def measure(
    loaded: Loaded, data: Labelled, methods: Sequence[Method], settings: TuningSettings, results: Path, running: Running
) -> list[Cell]:
    """The cells of these methods, of which those that are there are not run again."""
    digests = digest(loaded.model, data)

    @cache
    def before() -> Answers:
        return baseline(loaded.model, data, settings.batch, running.progress_of(loaded.name))

    def tuned(method: Method, there: Cell | None) -> Cell:
        if there is not None:
            return there
        progress = running.progress_of(str(method))
        outcome = cross_validate(loaded.model, method, data, before(), settings, progress).to_dict()
        running.on_message(f"{method}: {100 * outcome['accuracy']['difference']:+.1f} points")
        return {
            "table": FOLDER.as_posix(),
            "model": loaded.name,
            "data": data.what.rpartition("/")[2],
            "digests": digests,
            "settings": settings.to_dict(),
            **outcome,
        }

    def settings_of(cell: Cell) -> Any:
        table([cell])
        return cell["settings"]

    chosen = settings.to_dict()
    paths = [cell_path(results, digests, method, settings) for method in methods]
    wanted = [CellOrder(path, chosen, partial(tuned, method)) for path, method in zip(paths, methods, strict=True)]
    return measured(wanted, results, running, settings_of)


def table(cells: Sequence[Cell]) -> tuple[Sequence[str], list[Sequence[str]], list[str]]:
    """The heading, a row per cell, and the notes under them."""
    return report.HEAD, [report.row(cell) for cell in cells], report.notes(cells[0]["images"], cells[0]["settings"])
