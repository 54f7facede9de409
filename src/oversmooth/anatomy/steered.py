"""What may be asked of a model that was steered, by those that look at models and know no method of steering.

`steering` notes on the module it was given what it did; these are the names it is found by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from oversmooth.anatomy.live import unwrapped
from oversmooth.theory.radii import AttentionChange

STEERED = "_oversmooth"
STEERING_PARTS = "oversmooth"
"""The name, inside an attention module, of what methods keep there."""
FOLDED = "with its norm and layer scale H has eigenvalues"
"""What the doubts say that are about H as the stream meets it; the others are about H alone."""


class SteeredLayer(Protocol):
    """Where methods act inside a layer."""

    def change(self, run: int) -> AttentionChange | None:
        """What is done to attention, where it is linear in A; None for nothing."""

    def formula(
        self, run: int, V: Tensor, attend: Callable[[Tensor], Tensor], mask: Tensor | None, V0: Tensor
    ) -> Tensor:
        """What the output projection gets. V, V⁰ ``(b, n, heads, k)``; attend: A."""

    def projected(self, Y: Tensor, mask: Tensor | None) -> Tensor:
        """What becomes of what the output projection gives."""


class SteeredModel(Protocol):
    """What was done to a model."""

    heads: int | None

    @property
    def methods(self) -> Sequence[Any]: ...

    def settings(self) -> dict[str, Any]:
        """As JSON takes it."""

    def report(self) -> dict[str, Any]:
        """For a diagnosis: what was done, how far it took the weights, and whether the promised spectrum holds."""

    def remarks(self) -> list[str]:
        """What a reader of a diagnosis should know."""

    def site(self, layer: str) -> SteeredLayer | None:
        """By the layer's name."""

    def hold(self) -> Any:
        """The pass that is running, for `resumed`."""

    def resumed(self, held: Any) -> AbstractContextManager[None]:
        """Blocks that run meanwhile are part of an earlier pass again: with its first values, mask and weights."""


def steered_module(model: nn.Module) -> nn.Module | None:
    """The module that was given to `steer`: this one or one inside it; None where nothing was steered."""
    return next((m for m in unwrapped(model).modules() if STEERED in m.__dict__), None)


def steered_as(model: nn.Module) -> SteeredModel | None:
    """What `steer` did to a model, or None."""
    module = steered_module(model)
    return None if module is None else module.__dict__[STEERED]
