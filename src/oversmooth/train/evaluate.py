"""Accuracy on a test set, clean or corrupted. One runner for both; on a GPU compiled, in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from oversmooth.train import graphs
from oversmooth.train.build import augment_of
from oversmooth.train.corruptions import KINDS, SEVERITIES, corrupt, read_official
from oversmooth.train.data import Images
from oversmooth.train.recipe import Recipe
from oversmooth.train.step import autocasts

_AT_ONCE = {"cuda": 1000, "cpu": 250}
Told = Callable[[int, int, str], None]
"""Told how many corruptions are done, of how many, and which is next."""


class Evaluator:
    """``evaluator.correct(images)``: counts what the model gets right, as the model is now.

    Batches are all of one size, the last filled up with what lies in the buffer, so that one graph does for every set.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        device: torch.device,
        *,
        batch: int | None = None,
        compiled: bool | None = None,
    ) -> None:
        self.recipe, self.model, self.device = recipe, model, device
        on_gpu = device.type == "cuda"
        self.batch = batch or _AT_ONCE.get(device.type, 250)
        self.augment = augment_of(recipe).to(device)
        shape = recipe.shape
        self.images = torch.zeros(
            self.batch, shape.channels, shape.image, shape.image, dtype=torch.uint8, device=device
        )
        self.found = torch.zeros(self.batch, dtype=torch.int64, device=device)
        compiled = on_gpu if compiled is None else compiled
        self._forward = graphs.compiled(model) if compiled else model
        training = model.training
        model.eval()
        self._run: Callable[[], None] = graphs.captured(self._body) if on_gpu else self._body
        model.train(training)

    @torch.no_grad()
    def _body(self) -> None:
        x = self.augment.normalise(self.images.float())
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocasts(self.recipe, self.device)):
            self.found.copy_(self._forward(x).argmax(1))

    def predicted(self, images: Tensor) -> Tensor:
        """``(n, c, h, w) uint8 -> (n,) int64``, on the evaluator's device."""
        out = []
        training = self.model.training
        self.model.eval()
        for part in images.split(self.batch):
            self.images[: len(part)].copy_(part)
            self._run()
            out.append(self.found[: len(part)].clone())
        self.model.train(training)
        return torch.cat(out)

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Share of images whose class is found."""
        right = (self.predicted(images) == labels.to(self.device)).sum()
        return float(right) / len(labels)


def under_corruption(
    evaluator: Evaluator,
    test: Images,
    *,
    kinds: Sequence[str] = KINDS,
    severities: Sequence[int] = SEVERITIES,
    official: Path | None = None,
    seed: int = 0,
    told: Told | None = None,
) -> dict[str, list[float]]:
    """Accuracy by kind, one entry a severity; corruptions are made on the spot, or read from the official files."""
    table: dict[str, list[float]] = {}
    here = test.to(evaluator.device)
    total = len(kinds) * len(severities)
    for kind in kinds:
        row: list[float] = []
        for severity in severities:
            if told is not None:
                told(len(table) * len(severities) + len(row), total, f"{kind} {severity}")
            if official is not None:
                images, labels = read_official(official, kind, severity)
            else:
                images, labels = corrupt(here.images, kind, severity, seed=seed), here.labels
            row.append(evaluator.accuracy(images, labels))
        table[kind] = row
    return table


def by_severity(table: dict[str, list[float]]) -> list[float]:
    """The mean over kinds, one entry a severity: our reading of the first paper's table 3."""
    rows = list(table.values())
    return [sum(row[place] for row in rows) / len(rows) for place in range(len(rows[0]))]
