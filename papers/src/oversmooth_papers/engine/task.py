"""The interface between the engine and a task: batches, a loss, an evaluation, and inputs for recording smoothing.

A task is a recipe with its data. Its `Feed` holds the training data on the device, where a CUDA graph reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import BaseRecipe, Scores

Batch = tuple[Tensor, ...]
Forward = Callable[..., Any]  # the model, compiled or not


class Feed(Protocol):
    """Training data on the device, one batch per step.

    Everything that changes from step to step is written in place, since a CUDA graph reads tensors by their address. A
    feed whose `draw` loads the next batch also has ``seek(step)``: the next `draw` then loads the batch of this step of
    the epoch, counted from 0.
    """

    units_per_step: int  # images or tokens, for the speed

    def reorder(self, generator: torch.Generator) -> None:
        """Draw the order of a new epoch."""

    def draw(self, generator: torch.Generator) -> None:
        """Draw a new step's random numbers, in place; outside the graph, so that the generator's state can be saved."""

    def batch(self, step: Tensor) -> Batch:
        """This process's part of a step's batch. step ``(1,)``: its number within the epoch."""


class Evaluation(Protocol):
    """Tests the model as it is now."""

    def scores(self, *, final: bool) -> Scores:
        """final: whether this is after the last epoch, when slower scores are computed too."""


@dataclass(frozen=True)
class Probe:
    """Fixed inputs on which smoothing is recorded, and the blocks between which tokens are measured."""

    inputs: tuple[Any, ...]  # the model's arguments, on the device
    blocks: Sequence[nn.Module]
    part: nn.Module | None = None  # holds the blocks and takes the same inputs, if it is not the whole model


class Task(ABC):
    """A recipe with data that it fits; `InputError` for others."""

    compiles: ClassVar[bool] = True  # whether compiling pays on a GPU; it does not for runs of a minute
    copies: ClassVar[int] = 4  # of the weights, while training: themselves, gradients and AdamW's two moments
    plain_model_of: ClassVar[staticmethod[[Any], nn.Module]]  # a recipe's model on the CPU, unsteered, random weights
    model_of: ClassVar[staticmethod[[Any], nn.Module]]  # and as training begins: its seed decides on any machine
    recipe: BaseRecipe
    dataset: Any

    def __init__(self, recipe: Any, dataset: Any) -> None:
        recipe.check_fits(dataset)
        self.recipe, self.dataset = recipe, dataset

    @property
    def examples(self) -> int:
        """The number of examples per epoch, including an incomplete batch."""
        return len(self.dataset.train)

    def model(self) -> nn.Module:
        return type(self).model_of(self.recipe)

    @abstractmethod
    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> Feed:
        """The training data, moved to the device."""

    @abstractmethod
    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        """The loss of one batch of the feed: a scalar, the mean over this process's part."""

    @abstractmethod
    def blank(self, batch: int, device: torch.device) -> Batch:
        """A batch of empty examples, to test whether its size fits into memory."""

    def has_data_of(self, other: Task) -> bool:
        """Whether a feed of the other task, whose recipe differs in the seed alone, could feed this one."""
        return type(other) is type(self) and other.dataset is self.dataset

    def beside(self, model: nn.Module) -> dict[str, Tensor]:  # noqa: ARG002 (most have none)
        """Tensors to save with the model, on the same device, such as an average of the weights.

        Called once, before the first step; `after_update` changes them in place.
        """
        return {}

    def after_update(self, model: nn.Module) -> None:  # noqa: B027 (most do nothing)
        """Called after every update of the weights; on a GPU inside the graph."""

    def save_beside(self, model: nn.Module, folder: Path) -> None:  # noqa: B027
        """Write further files of a finished run. The model is written last, as it marks the run as finished."""

    @abstractmethod
    def evaluation(self, model: nn.Module, device: torch.device) -> Evaluation:
        """The evaluation of the uncompiled model."""

    @abstractmethod
    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """The same probe for every snapshot, and in every run on these data."""

    def weight_metrics(self, model: nn.Module) -> dict[str, list[float]]:  # noqa: ARG002 (most have none)
        """Metrics of the weights by depth, for the default snapshots."""
        return {}

    def check_memory(self, device: torch.device) -> None:
        """Raise `InputError` if the model does not fit into memory, before building it."""
        self.recipe.shape.check_fits(self.copies, 4 * self.activations() if device.type == "cpu" else 0)

    def activations(self) -> int:
        """A lower bound on the numbers that a step stores for its backward pass, to check a CPU's memory."""
        shape = self.recipe.shape
        return 8 * min(self.recipe.batch, self.examples) * int(shape.tokens * shape.width * shape.depth)

    def metadata(self) -> dict[str, str]:
        """Metadata of the model's file besides the recipe, such as the tokenizer."""
        return {}

    def data(self) -> Iterable[Tensor | str]:
        """The training and test data, to be hashed."""
        return ()

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts about the data for a cell, such as the number of test images."""
