"""What the engine asks of a task: batches, a loss, an evaluation, and something to watch smoothing on.

The engine knows nothing else of what is trained. A task is a recipe with its data; `Feed` is the part of it that lives
on the device and that a CUDA graph reads.
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
Forward = Callable[..., Any]
"""The model, compiled or not."""


class Feed(Protocol):
    """Training data on the device, one batch per step.

    All that changes from step to step is written into tensors that stay where they are. A feed whose `draw` fetches one
    batch after the other also has ``seek(step)``: the next `draw` is that of this step of the epoch, counted from 0.
    """

    units_per_step: int
    """For speed: images, tokens."""

    def reorder(self, generator: torch.Generator) -> None:
        """A new epoch's order."""

    def draw(self, generator: torch.Generator) -> None:
        """A new step's random numbers, in place; outside the graph, so that the generator's state can be saved."""

    def batch(self, step: Tensor) -> Batch:
        """This process's part of a step's batch. step ``(1,)``: its number within the epoch."""


class Evaluation(Protocol):
    """``evaluation.scores(final=True)``: how good the model is, as it is now."""

    def scores(self, *, final: bool) -> Scores:
        """final: after the last epoch, where what takes longer is measured too."""


@dataclass(frozen=True)
class Probe:
    """Fixed inputs on which smoothing is watched, and the blocks between which tokens are taken."""

    inputs: tuple[Any, ...]
    """The model's arguments, on the device."""
    blocks: Sequence[nn.Module]
    part: nn.Module | None = None
    """What holds the blocks and takes the same inputs, where that is a part of the model, steered by itself."""


class Task(ABC):
    """A recipe with its data."""

    recipe: BaseRecipe
    examples_are: ClassVar[str]
    """What a batch is counted in: images, windows."""
    compiles: ClassVar[bool] = True
    """Whether compiling pays on a GPU; runs of a minute are over before it would."""

    @property
    @abstractmethod
    def examples(self) -> int:
        """Of an epoch, whole batches or not."""

    @abstractmethod
    def plain_model(self) -> nn.Module:
        """As files are read into it: unsteered, on the CPU, with any weights."""

    @abstractmethod
    def model(self) -> nn.Module:
        """As training begins, steered as the variant says, on the CPU, with the weights that the seed gives on any
        machine; the caller's random state is left alone.
        """

    @abstractmethod
    def feed(self, device: torch.device, ranks: Ranks, *, compiled: bool) -> Feed:
        """The training data, moved to the device."""

    @abstractmethod
    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        """Of one batch of the feed: a scalar, the mean over this process's part."""

    @abstractmethod
    def blank(self, batch: int, device: torch.device) -> Batch:
        """As many empty examples, to see whether a batch of that size fits into memory."""

    def has_data_of(self, other: Task) -> bool:  # noqa: ARG002 (unless a task says so)
        """Whether a feed of the other task, whose recipe differs in the seed alone, could feed this one."""
        return False

    def beside(self, model: nn.Module) -> dict[str, Tensor]:  # noqa: ARG002 (most keep nothing)
        """What a run keeps beside its model, on the same device, and saves with it, such as an average of the weights.

        Asked for once, before the first step; `after_update` changes it in place.
        """
        return {}

    def after_update(self, model: nn.Module) -> None:  # noqa: B027 (most do nothing)
        """Called after every update of the weights, on a GPU within the graph."""

    def save_beside(self, model: nn.Module, folder: Path) -> None:  # noqa: B027
        """Further files of a finished run, before the model's, which says that it is finished."""

    @abstractmethod
    def evaluation(self, model: nn.Module, device: torch.device) -> Evaluation:
        """Always of the uncompiled model."""

    @abstractmethod
    def probe(self, model: nn.Module, device: torch.device) -> Probe:
        """The same at every look of a run, and in every run on these data."""

    def weight_metrics(self, model: nn.Module) -> dict[str, list[float]]:  # noqa: ARG002 (most have none)
        """What is logged of the weights, by depth, in the looks that are made by default."""
        return {}

    @abstractmethod
    def check_memory(self, device: torch.device) -> None:
        """Refuse what the machine cannot hold, before it is made."""

    def metadata(self) -> dict[str, str]:
        """What a model's file says beside its recipe, such as its tokenizer."""
        return {}

    def data(self) -> Iterable[Tensor | str]:
        """What is trained and tested on, for its hash."""
        return ()

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a cell says of the data beside the recipe, such as how many test images there were."""
