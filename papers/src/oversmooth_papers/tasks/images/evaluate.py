"""Accuracy on a test set, clean or corrupted. One runner for both; on a GPU in a CUDA graph.

Never compiled: what is reported is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from oversmooth.inputs.preprocessing import LUMA
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode
from oversmooth_papers import cuda_graphs
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.tasks.images.build import augment_of
from oversmooth_papers.tasks.images.corruptions import KINDS, SEVERITIES, corrupt, read_frost, read_official
from oversmooth_papers.tasks.images.data import Images
from oversmooth_papers.tasks.images.recipe import Recipe

OWN_FROST, OFFICIAL_FROST = "textures of our own", "official pictures"
OnMessage = Callable[[int, int, str], None]  # told how many corruptions are done, of how many, and which is next


class Evaluator:
    """``evaluator.accuracy(images, labels)``: what the model gets right, as it is now; `predicted` says what it finds.

    On a GPU batches are all of one size, the last filled up with what lies in the buffer, so that one graph does for
    every set. test: of `scores`.
    """

    def __init__(
        self, recipe: Recipe, model: nn.Module, device: torch.device, *, batch: int = 0, test: Images | None = None
    ) -> None:
        self.recipe, self.model, self.device, self.test = recipe, model, device, test
        self.batch = batch or (1000 if device.type == "cuda" else 250)
        self.augment = augment_of(recipe).to(device)
        self._replay: Callable[[], None] | None = None
        if device.type == "cuda":
            size = (self.batch, recipe.shape.channels, recipe.shape.image, recipe.shape.image)
            self.images = torch.zeros(size, dtype=torch.uint8, device=device)
            self.answers = torch.zeros(self.batch, dtype=torch.int64, device=device)
            with in_eval_mode(model):
                self._replay = cuda_graphs.captured(lambda: self.answers.copy_(self._classes(self.images)))

    @torch.no_grad()
    def _classes(self, images: Tensor) -> Tensor:
        x = self.augment.normalise(images.float())
        with self.recipe.autocast(self.device):
            return self.model(x).argmax(1)

    def predicted(self, images: Tensor) -> Tensor:
        """``(n, c, h, w) uint8 -> (n,) int64``, on the evaluator's device."""
        out = []
        with in_eval_mode(self.model):
            for part in images.split(self.batch):
                if self._replay is None:
                    out.append(self._classes(part.to(self.device)))
                else:
                    self.images[: len(part)].copy_(part)
                    self._replay()
                    out.append(self.answers[: len(part)].clone())
        return torch.cat(out)

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        right = (self.predicted(images) == labels.to(self.device)).sum()
        return float(right) / len(labels)

    def scores(self, *, final: bool) -> Scores:  # noqa: ARG002 (one test set, tested alike at all times)
        assert self.test is not None
        return {"accuracy": self.accuracy(self.test.images, self.test.labels)}


class Corruptions:
    """``corruptions(kind, severity)``: a test set corrupted, images and labels on the device.

    Made on the spot, with frost from the official photographs (``frost``: their folder) or from textures made here; or
    read from the official files. On a GPU they are kept for the next model: all 75 of CIFAR-100 take 2.3 GB. Grey
    images are corrupted as coloured ones of three equal channels, and are grey again after it.
    """

    def __init__(
        self, test: Images, device: torch.device, *, official: Path | None = None, frost: Path | None = None
    ) -> None:
        corruptions_made(official, frost)  # not both
        self.frost = None if frost is None else read_frost(frost)
        self.test, self.device, self.official = test.to(device), device, official
        self._kept: dict[tuple[str, int], Tensor] = {}

    def __call__(self, kind: str, severity: int) -> tuple[Tensor, Tensor]:
        if (kind, severity) in self._kept:
            return self._kept[kind, severity], self.test.labels
        if self.official is None:
            images = corrupt(self.test.images.expand(-1, 3, -1, -1), kind, severity, frost_from=self.frost)
            if self.test.images.shape[1] == 1:
                weights = torch.tensor(LUMA, device=self.device).view(1, 3, 1, 1)
                images = (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
        else:
            read = read_official(self.official, kind, severity)
            images, labels = (x[: len(self.test)].to(self.device) for x in read)
            if images.shape != self.test.images.shape or not torch.equal(labels, self.test.labels):
                what = f"{self.official} holds other test images than {self.test.name}: sizes or labels differ"
                raise InputError(f"{what}; give the folder that belongs to this data set")
        if self.device.type == "cuda":
            self._kept[kind, severity] = images
        return images, self.test.labels


def corruptions_made(official: Path | None, frost: Path | None) -> dict[str, str]:
    """As result files record it; earlier ones do not name their frost, which was our own."""
    if official is not None and frost is not None:
        raise InputError(f"the official files in {official} have frost of their own; leave out --frost {frost}")
    if official is not None:
        return {"corruptions": "official files", "frost": "official files"}
    return {"corruptions": "made on the spot, seed 0", "frost": OWN_FROST if frost is None else OFFICIAL_FROST}


def under_corruption(
    evaluator: Evaluator,
    corruptions: Corruptions,
    *,
    severities: Sequence[int] = SEVERITIES,
    on_message: OnMessage = lambda *_: None,
) -> dict[str, list[float]]:
    """Accuracy by kind, one entry a severity."""
    table: dict[str, list[float]] = {kind: [] for kind in KINDS}
    pairs = [(kind, severity) for kind in KINDS for severity in severities]
    for done, (kind, severity) in enumerate(pairs):
        on_message(done, len(pairs), f"{kind} {severity}")
        table[kind].append(evaluator.accuracy(*corruptions(kind, severity)))
    return table


def by_severity(table: dict[str, list[float]]) -> list[float]:
    """The mean over kinds, one entry a severity: our reading of Dovonon et al.'s table 3."""
    return [sum(column) / len(column) for column in zip(*table.values(), strict=True)]
