"""Fine-tuning a masked model on a task of GLUE or SuperGLUE: every setting of a run, in one frozen object.

    oversmooth reproduce text glue --seeds 3

trains the models of `text masked` on each task that a small model can learn something of; docs/results.md says what
they reached.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.recipe import BaseRecipe, Scores, check_choices, check_layers, methods_of, ramp_option
from oversmooth_papers.tasks.glue.settings import TASKS
from oversmooth_papers.tasks.language.recipe import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from oversmooth.steering import Method
    from oversmooth_papers.tasks.glue.data import GlueData


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """``variant`` is what the model was pretrained with: it stays so constrained, from the weights it has.

    AdamW, a tenth of the steps of warm-up and then a line to 0, as BERT is fine-tuned; epochs are the task's.
    """

    task_name: ClassVar[str] = "glue"
    unit: ClassVar[str] = "examples"
    of_data: ClassVar[tuple[str, ...]] = ("data", "pretrained")
    shape_of_data: ClassVar[tuple[str, ...]] = ()

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
            raise InputError(f"data is {self.data!r}; choose {', '.join(TASKS)}")
        self.check_numbers(
            at_least_1=("epochs", "batch"),
            at_least_0=("seed", "weight_decay", "warmup"),
            bounded=("lr", "weight_decay", "clip"),
        )
        check_choices(self)
        if not self.warmup < 1:
            raise InputError(f"warmup is {self.warmup:g}; give a share of the steps, below 1")
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
        steered = self.with_variant
        steered += "" if self.layers == "all" or not steered else f" in layers {self.layers}"
        return f"masked language model{steered} on {self.data}"

    @property
    def parameters(self) -> int:
        return self.shape.parameters + (self.shape.width + 1) * TASKS[self.data].outputs

    def describe(self, scores: Scores) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {100 * scores[name]:.1f}" for name in TASKS[self.data].metrics)

    def methods(self) -> list[Method]:
        """Begun from weights, so that nothing of them is drawn: runs of several seeds share what is built."""
        return methods_of(self.variant, start="warm", seed=0)

    def changed(self, settings: dict[str, Any]) -> Recipe:
        """With these settings; None leaves one as it is."""
        return dataclasses.replace(self, **{name: value for name, value in settings.items() if value is not None})

    def fitted(self, data: GlueData) -> Recipe:
        """For this task and this model."""
        from oversmooth_papers.tasks.glue.data import language_recipe

        own = language_recipe(data.pretrained)
        return dataclasses.replace(
            self,
            data=data.task,
            pretrained=data.key,
            variant=own.variant,
            layers=own.layers,
            shape=own.shape,
            epochs=TASKS[data.task].epochs,
        )

    def check_fits(self, data: GlueData) -> None:
        """Refuse another task or another model."""
        if (data.task, data.key) != (self.data, self.pretrained):
            raise InputError(
                f"the recipe is for {self.data} with the model {self.pretrained}, and these are {data.task} with "
                f"{data.key}; fit it with recipe.fitted(data)"
            )
