"""A run's random numbers: all follow from its seed, and a checkpoint holds what it takes to go on with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from oversmooth_papers.engine.recipe import BaseRecipe


class Draws:
    """The order of the data, what the feed draws for a step, and what the model draws itself."""

    def __init__(self, recipe: BaseRecipe, device: torch.device, rank: int) -> None:
        self.recipe, self.device, self.rank = recipe, device, rank
        self.attempt = 0
        """How often the run went back to a checkpoint to try other random numbers."""
        self.order, self.augment = (torch.Generator(device).manual_seed(seed) for seed in self._seeds())
        self.before_epoch = self.order.get_state()
        """The order's state before this epoch's order was drawn."""

    def _seeds(self) -> tuple[int, int]:
        """Apart, so that the two do not repeat each other's numbers.

        Attempts above 0 have numbers that no likely seed has; a CPU's generator looks at the lowest 32 bits alone.
        """
        first = 2 * self.recipe.seed + self.attempt * 2_654_435_768
        return first, first + 1

    def seed(self, attempt: int) -> None:
        """Begin with the numbers of the recipe's seed, or of another attempt."""
        self.attempt = attempt
        for generator, seed in zip((self.order, self.augment), self._seeds(), strict=True):
            generator.manual_seed(seed)

    def state(self, *, inside: bool) -> dict[str, Tensor]:
        """inside: an epoch, whose order is drawn again; between two of them the next one's comes."""
        order = self.before_epoch if inside else self.order.get_state()
        return {"generator.order": order, "generator.augment": self.augment.get_state()}

    def load(self, arrays: dict[str, Tensor]) -> None:
        self.order.set_state(arrays["generator.order"])
        self.augment.set_state(arrays["generator.augment"])

    @contextmanager
    def of_model(self, step: int) -> Iterator[None]:
        """What the model itself draws is decided by the seed, the step and the process: there is no state to save."""
        if not self.recipe.draws_in_forward:
            yield
            return
        words = f"{self._seeds()[1]} {step} {self.rank}"
        seed = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=7).digest(), "little")
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng([self.device] if on_gpu else []):
            own = torch.cuda.default_generators[self.device.index or 0] if on_gpu else torch.default_generator
            own.manual_seed(seed)
            yield
