"""Fine-tuning a masked model on a task of GLUE or SuperGLUE: the tasks, and every setting of a run.

    oversmooth reproduce text glue --seeds 3

trains the models of `text masked` on each task that a small model can learn something of; docs/results.md says what
they reached.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.recipe import BaseRecipe, Scores, check_choices, check_layers, methods_of, ramp_option
from oversmooth_papers.tasks.language.recipe import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from oversmooth.steering import Method


class TaskSettings(NamedTuple):
    """One task of a benchmark."""

    benchmark: Literal["glue", "superglue", "own"]
    labels: tuple[str, ...]
    """Names of the classes in the order of their numbers; of a choice one per text; none for a number."""
    metrics: tuple[str, ...]
    """As published, the one to compare by first."""
    epochs: int
    kind: Literal["classes", "number", "choice"] = "classes"
    """Of the answer: one of some classes, a number, or which of several texts."""
    chance: bool = False
    """Whether a model of this size is at chance level."""

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

    data: str = "CB"
    """The task."""
    pretrained: str = ""
    """The key of the recipe that the model was pretrained by."""
    variant: str = "plain"
    ramp: float = ramp_option()
    layers: str = "all"
    shape: Shape = field(default_factory=lambda: Shape(causal=False))
    epochs: int = 10
    warmup: float = 0.1
    lr: float = 2e-4
    weight_decay: float = 0.01
    batch: int = 32
    clip: float | None = 1.0
    seed: int = 0
    """Of the answer's first weights, of order and dropout."""
    precision: Literal["bf16", "float32"] = "bf16"

    def __post_init__(self) -> None:
        if self.data not in TASKS:
            raise InputError(f"there is no task {self.data!r}; choose {', '.join(TASKS)}")
        self.check_numbers(
            at_least_1=("epochs", "batch"),
            at_least_0=("seed", "weight_decay", "warmup"),
            bounded=("lr", "weight_decay", "clip"),
        )
        check_choices(self)
        check_layers(self.layers, self.shape.depth)
        self.check_variant()

    def learning_rates(self, steps_per_epoch: int) -> Tensor:
        import torch

        steps = self.epochs * steps_per_epoch
        rising = round(self.warmup * steps)
        up = torch.arange(rising, dtype=torch.float64) / max(1, rising)
        down = 1 - torch.arange(steps - rising, dtype=torch.float64) / max(1, steps - rising)
        return self.lr * torch.cat([up, down])

    @property
    def draws_in_forward(self) -> bool:
        return self.shape.dropout > 0

    @property
    def label(self) -> str:
        """``masked language model with sharpen on CB``."""
        where = "" if self.layers == "all" or not self.with_variant else f" in layers {self.layers}"
        return f"masked language model{self.with_variant}{where} on {self.data}"

    @property
    def parameters(self) -> int:
        return self.shape.parameters + (self.shape.width + 1) * TASKS[self.data].outputs

    def describe(self, scores: Scores) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {100 * scores[name]:.1f}" for name in TASKS[self.data].metrics)

    def methods(self) -> list[Method]:
        """Begun from weights, so that nothing of them is drawn: runs of several seeds share what is built."""
        return methods_of(self.variant, start="warm", seed=0)

    def fitted(self, data: Any) -> Recipe:
        """For the task and the model of a `GlueData`."""
        own = data.language
        model = dataclasses.replace(self, pretrained=own.key, variant=own.variant, layers=own.layers, shape=own.shape)
        return dataclasses.replace(model, data=data.task, epochs=TASKS[data.task].epochs)

    def check_fits(self, data: Any) -> None:
        """Raise InputError for another task or another model."""
        if (data.task, data.language.key) != (self.data, self.pretrained):
            raise InputError(
                f"the recipe is for {self.data} with the model {self.pretrained}, and these are {data.task} with "
                f"{data.language.key}; fit it with recipe.fitted(data)"
            )
