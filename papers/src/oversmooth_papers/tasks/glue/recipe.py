"""Fine-tuning a masked model on a task of GLUE or SuperGLUE: the tasks, and every setting of a run.

    oversmooth reproduce text glue --seeds 3

trains the models of `text masked` on each task that a small model can learn something of; docs/results.md says what
they reached.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.options import limited
from oversmooth_papers.engine.recipe import BaseRecipe, Scores, methods_of, ramp_option
from oversmooth_papers.tasks.language.recipe import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from oversmooth.steering import Method


class TaskSettings(NamedTuple):
    benchmark: Literal["glue", "superglue", "own"]
    labels: tuple[str, ...]  # names of the classes in their order; of a choice one per text; none for a number
    metrics: tuple[str, ...]  # as published, the one to compare by first
    epochs: int
    kind: Literal["classes", "number", "choice"] = "classes"  # of the answer; choice: which of several texts
    chance: bool = False  # whether a model of this size is at chance level

    @property
    def outputs(self) -> int:
        return len(self.labels) if self.kind == "classes" else 1


_YES, _TRUE, _ONE = ("not_entailment", "entailment"), ("false", "true"), ("0", "1")
TASKS = {
    "CB": TaskSettings("superglue", ("contradiction", "entailment", "neutral"), ("macro_f1", "accuracy"), 30),
    "RTE": TaskSettings("superglue", _YES, ("accuracy",), 10),
    "WiC": TaskSettings("superglue", _TRUE, ("accuracy",), 10),
    "CoLA": TaskSettings("glue", _ONE, ("matthews",), 10),
    "SST-2": TaskSettings("glue", _ONE, ("accuracy",), 1),
    "MRPC": TaskSettings("glue", _ONE, ("f1", "accuracy"), 10),
    "STS-B": TaskSettings("glue", (), ("pearson", "spearman"), 10, "number"),
    "COPA": TaskSettings("superglue", _ONE, ("accuracy",), 20, "choice", chance=True),
    "WSC": TaskSettings("superglue", _TRUE, ("accuracy",), 20, chance=True),
    "MultiRC": TaskSettings("superglue", _TRUE, ("f1", "exact_match"), 3, chance=True),
    "following": TaskSettings("own", _ONE, ("accuracy",), 3),
}
"""By the name of their folder. ``following`` is made of the package's prose: does the second line follow the first?"""
TOLD = ("CB", "RTE", "WiC", "CoLA", "MRPC", "STS-B", "SST-2")
"""Tasks that a small model can learn something of; the longest last."""


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """``variant`` is what the model was pretrained with: it stays so constrained, from the weights it has.

    AdamW, a tenth of the steps of warm-up and then a line to 0, as BERT is fine-tuned; epochs are the task's.
    """

    task_name: ClassVar[str] = "glue"
    unit: ClassVar[str] = "examples"
    of_data: ClassVar[tuple[str, ...]] = ("data", "pretrained")

    data: str = "CB"  # the task
    pretrained: str = ""  # the key of the recipe that the model was pretrained by
    variant: str = "plain"
    ramp: float = ramp_option()
    layers: str = "all"
    shape: Shape = field(default_factory=lambda: Shape(causal=False))
    epochs: int = limited(10, least=1)
    warmup: float = limited(0.1, least=0)
    lr: float = limited(2e-4, above=0)
    weight_decay: float = limited(0.01, least=0)
    batch: int = limited(32, least=1)
    clip: float | None = limited(1.0, above=0)
    seed: int = limited(0, least=0)  # of the answer's first weights, of order and dropout
    precision: Literal["bf16", "float32"] = "bf16"

    def check(self) -> None:
        if self.data not in TASKS:
            raise InputError(f"there is no task {self.data!r}; choose {', '.join(TASKS)}")

    def learning_rates(self, steps_per_epoch: int) -> Tensor:
        import torch

        from oversmooth_papers.engine.schedule import learning_rates, polynomial

        steps = self.epochs * steps_per_epoch
        rising = round(self.warmup * steps)
        return torch.cat([learning_rates(self.lr, rising, 0), polynomial(self.lr, steps - rising, 1.0)])

    @property
    def label(self) -> str:
        """``masked language model with sharpen on CB``."""
        return f"masked language model{self.with_variant} on {self.data}"

    @property
    def parameters(self) -> int:
        return self.shape.parameters + (self.shape.width + 1) * TASKS[self.data].outputs

    def describe(self, scores: Scores) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {100 * scores[name]:.1f}" for name in TASKS[self.data].metrics)

    def methods(self) -> list[Method]:
        """Begun from weights, so that nothing of them is drawn: runs of several seeds share what is built."""
        return methods_of(self.variant, start="warm", seed=0)

    def decided_by(self, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"data": data.task, "pretrained": data.language.key}, {}

    def fitted(self, data: Any, **more: Any) -> Self:
        own, epochs = data.language, TASKS[data.task].epochs
        model = dict(pretrained=own.key, variant=own.variant, layers=own.layers, shape=own.shape)
        return dataclasses.replace(self, data=data.task, epochs=epochs, **model, **more)
