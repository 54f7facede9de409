"""Fine-tuning: examples lie on the device, and runs of a minute are not compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from oversmooth.safety.libraries import import_library
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import Scores
from oversmooth_papers.engine.saved_model import load_model
from oversmooth_papers.engine.task import Batch, Forward, Probe, Task
from oversmooth_papers.tasks.common import WATCHED, ShuffledFeed, begun, tested
from oversmooth_papers.tasks.glue.data import Encoded, GlueData
from oversmooth_papers.tasks.glue.recipe import TASKS, Recipe
from oversmooth_papers.tasks.language.model import LanguageModel
from oversmooth_papers.tasks.language.recipe import Shape

_HIGHEST = 5.0  # similarity of STS-B
_AT_ONCE = 256  # examples tested together
Numbers = NDArray[Any]


class GlueModel(nn.Module):
    """``(b, choices, n), (b, choices) -> (b, outputs)``; of several choices ``(b, choices)``.

    The mean of all tokens that are no padding answers: pretraining has no task for a first token to learn.
    """

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.encoder = LanguageModel(shape)
        self.dropout = nn.Dropout(shape.dropout)
        self.head = nn.Linear(shape.width, outputs)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """ids ``(b, choices, n)``; lengths ``(b, choices)``: tokens that are no padding."""
        rows, counts = ids.flatten(0, 1), lengths.flatten()
        counted = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
        # Through its call, not past it: what steers it prepares all weights as a pass begins.
        x = self.encoder(rows, seen=self.encoder.seen(counted), features=True)
        weight = counted.to(x.dtype)[..., None]
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        answers: Tensor = self.head(self.dropout(mean))
        return answers.view(ids.shape[:2]) if ids.shape[1] > 1 else answers


def plain_model_of(recipe: Recipe) -> GlueModel:
    return GlueModel(recipe.shape, TASKS[recipe.data].outputs)


class GlueTask(Task):
    """``loss`` is the cross-entropy, or of a number the squared distance; scores are the published metrics."""

    recipe: Recipe
    dataset: GlueData
    plain_model_of = model_of = staticmethod(plain_model_of)  # the weights are its data's
    compiles = False

    def model(self) -> GlueModel:
        def build() -> GlueModel:
            model = plain_model_of(self.recipe)
            pretrained, _ = load_model(self.dataset.pretrained, lambda _own: LanguageModel(self.recipe.shape))
            model.encoder.load_state_dict(pretrained.state_dict())
            return model

        return begun(self.recipe, build, ("encoder",), self.recipe.layers)

    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> GlueFeed:  # noqa: ARG002 (no kernels)
        return GlueFeed(self.recipe, self.dataset.train, device, ranks)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        ids, lengths, labels = batch
        answers = forward(ids, lengths).float()
        if TASKS[self.recipe.data].kind == "number":
            return F.mse_loss(answers[:, 0], labels / _HIGHEST)
        return F.cross_entropy(answers, labels.long())

    def blank(self, batch: int, device: torch.device) -> Batch:
        choices, length = self.dataset.train.ids.shape[1:]
        ids = torch.zeros(batch, choices, length, dtype=torch.int64, device=device)
        lengths = torch.full((batch, choices), length, device=device)
        return ids, lengths, torch.zeros(batch, device=device)

    def evaluation(self, model: nn.Module, device: torch.device) -> GlueEvaluation:
        return GlueEvaluation(self.recipe, model, self.dataset.dev, device)

    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """Whole examples, padding among their tokens."""
        dev = self.dataset.dev
        inputs = dev.ids[:WATCHED].to(device, torch.int64), dev.lengths[:WATCHED].to(device, torch.int64)
        return Probe(inputs, list(model.encoder.blocks))  # type: ignore[arg-type, union-attr]

    def data(self) -> Iterable[Tensor | str]:
        for part in (self.dataset.train, self.dataset.dev):
            yield from (part.ids, part.lengths, part.labels, part.groups)

    def facts(self) -> dict[str, Any]:
        given = self.dataset
        return {
            "train_examples": len(given.train),
            "dev_examples": len(given.dev),
            "majority": majority(self.recipe.data, given.train, given.dev),
            **({} if given.perplexity is None else {"pretraining_perplexity": given.perplexity}),
        }


class GlueEvaluation:
    """The task's metrics on its validation examples."""

    def __init__(self, recipe: Recipe, model: nn.Module, dev: Encoded, device: torch.device) -> None:
        self.recipe, self.model, self.dev, self.device = recipe, model, dev, device

    def scores(self, *, final: bool) -> Scores:  # noqa: ARG002 (one set, tested alike at all times)
        answers = []
        with tested(self.model, self.recipe, self.device):
            for ids, lengths in zip(self.dev.ids.split(_AT_ONCE), self.dev.lengths.split(_AT_ONCE), strict=True):
                part = self.model(ids.to(self.device, torch.int64), lengths.to(self.device, torch.int64))
                answers.append(part.float().cpu())
        found = torch.cat(answers)
        numbers = found[:, 0].tolist() if TASKS[self.recipe.data].kind == "number" else found.argmax(1).tolist()
        return scored(self.recipe.data, numbers, self.dev)


def scored(task: str, found: Sequence[float], dev: Encoded) -> dict[str, float]:
    """The published metrics of these answers."""
    right, groups = dev.labels.double().numpy(), dev.groups.numpy()
    return {name: metric(name, np.asarray(found), right, groups) for name in TASKS[task].metrics}


_SKLEARN, _SCIPY = "sklearn.metrics", "scipy.stats"
_METRICS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "accuracy": (_SKLEARN, "accuracy_score", {}),
    "f1": (_SKLEARN, "f1_score", dict(average="binary", zero_division=0)),
    "macro_f1": (_SKLEARN, "f1_score", dict(average="macro", zero_division=0)),
    "matthews": (_SKLEARN, "matthews_corrcoef", {}),
    "pearson": (_SCIPY, "pearsonr", {}),
    "spearman": (_SCIPY, "spearmanr", {}),
}
"""Where a metric is, what it is called there, and its settings."""


def metric(name: str, found: Numbers, right: Numbers, groups: Numbers) -> float:
    """A correlation with a constant is 0. exact_match: the share of questions all of whose answers are right."""
    if name == "exact_match":
        questions = len(np.unique(groups))
        return (questions - len(np.unique(groups[found != right]))) / questions
    if name in ("matthews", "pearson", "spearman") and (np.ptp(found) == 0 or np.ptp(right) == 0):
        return 0.0
    module, function, settings = _METRICS[name]
    library = import_library(module, "testing on GLUE", "oversmooth-papers[glue]")
    value = getattr(library, function)(right, found, **settings)
    return float(getattr(value, "statistic", value))


def majority(task: str, train: Encoded, dev: Encoded) -> dict[str, float]:
    """What the most frequent training label scores; of a number any constant, which correlates with nothing."""
    often = 0.0 if TASKS[task].kind == "number" else Counter(train.labels.tolist()).most_common(1)[0][0]
    return scored(task, [often] * len(dev), dev)


class GlueFeed(ShuffledFeed):
    """Examples on the device."""

    def __init__(self, recipe: Recipe, train: Encoded, device: torch.device, ranks: Ranks) -> None:
        super().__init__(recipe, len(train), device, ranks)
        self.ids, self.lengths = train.ids.to(device, torch.int64), train.lengths.to(device, torch.int64)
        self.labels = train.labels.to(device)

    def batch(self, step: Tensor) -> Batch:
        """ids ``(b, choices, n)``, lengths ``(b, choices)``, labels ``(b,)``."""
        rows = self.rows(step)
        return self.ids[rows], self.lengths[rows], self.labels[rows]
