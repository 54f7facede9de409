"""What a steered model offers to code that inspects models and knows no method of steering.

`steering` keeps a record on the module that was steered; these are the names under which it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from oversmooth.anatomy.live import unwrapped
from oversmooth.theory.radii import AttentionChange

STEERED = "_oversmooth"
STEERING_PARTS = "oversmooth"
"""The name, inside an attention module, under which methods keep their parts."""


class SteeredLayer(Protocol):
    """A layer in which methods act.

    `run` says how many blocks ran before. Shapes: V and V0, the first layer's values, ``(b, n, heads, k)``; x, what
    enters the value projection, Y, what the output projection gives, and stream, what enters the block, ``(b, n, d)``;
    mask, the valid tokens, ``(b, n)``, or None for all.
    """

    def change(self, run: int) -> AttentionChange | None:
        """What is done to attention in this run of the layer, where it is linear in A; None: nothing."""

    def why_undecided(self) -> str:
        """Why spectra do not decide about this layer, steered as it is; empty where they do."""

    def formula(
        self, run: int, V: Tensor, attend: Callable[[Tensor], Tensor], mask: Tensor | None, V0: Tensor, x: Tensor
    ) -> Tensor:
        """The input of the output projection; `attend` is the product with A."""

    def projected(self, Y: Tensor, mask: Tensor | None, stream: Tensor) -> Tensor:
        """The output of the output projection, after what methods do to it."""


class SteeredModel(Protocol):
    """What was done to a model."""

    heads: int | None
    states: Any
    """The forward passes: ``hold()`` is the current one, and blocks that run inside ``resumed(held)`` belong to it."""

    @property
    def methods(self) -> Sequence[Any]:
        """The methods that were applied."""

    def settings(self) -> dict[str, Any]:
        """The settings, as JSON takes them."""

    def report(self) -> dict[str, Any]:
        """For a diagnosis: what was done, how far it moved the weights, and whether the spectral constraints hold."""

    def remarks(self) -> list[str]:
        """What a reader of a diagnosis should know."""

    def steered_layer(self, name: str) -> SteeredLayer | None:
        """The layer of this name, where methods act in it."""


def steered_module(model: nn.Module) -> nn.Module | None:
    """The module that `steer` was called with, this one or one inside it; None where nothing was steered."""
    return next((m for m in unwrapped(model).modules() if STEERED in m.__dict__), None)


def steered_as(model: nn.Module) -> SteeredModel | None:
    """What `steer` did to a model, or None."""
    module = steered_module(model)
    return None if module is None else module.__dict__[STEERED]
