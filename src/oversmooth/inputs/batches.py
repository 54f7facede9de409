"""The inputs of one forward pass, and of all passes with their description.

text.py and images.py make these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from oversmooth.safety import arguments

Kind = Literal["vision", "text"]


@dataclass(frozen=True)
class Batch:
    """The inputs of one forward pass.

    ``special`` (b, n) is True for tokens such as [CLS], [SEP] and the beginning of a text; None if unknown. Padding is
    not special: ``inputs["attention_mask"]`` is zero there.
    """

    inputs: dict[str, Tensor]
    special: Tensor | None = None
    labels: Tensor | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


@dataclass
class Inputs:
    """An iterable of batches with its description; can be iterated several times.

    ``count`` is the number of chosen inputs. Inputs that do not decode are found while reading, so each complete
    iteration refills ``skipped`` with a sentence for each of them, and sets ``count`` to the inputs of the model.
    """

    what: str
    kind: Kind
    count: int
    skipped: list[str]
    batches: Callable[[], Iterator[Batch]] = field(repr=False)

    def __iter__(self) -> Iterator[Batch]:
        given = 0
        for batch in self.batches():
            given += len(batch)
            yield batch
        self.count = given

    def kept(self) -> Inputs:
        """The same, read once and kept in memory, to be iterated many times."""
        held = list(self)
        return Inputs(self.what, self.kind, self.count, self.skipped, lambda: iter(held))


def spread(available: int, count: int) -> list[int]:
    """Indices of ``count`` of ``available`` things: all, or evenly spread, in order and deterministic.

    >>> spread(10, 4), spread(3, 4)
    ([1, 3, 6, 8], [0, 1, 2])
    """
    if count >= available:
        return list(range(available))
    # The middle of each of `count` equal intervals, so that neither end is favoured.
    return [(2 * i + 1) * available // (2 * count) for i in range(count)]


def check_positive(**settings: int) -> None:
    """Refuse a count, a length or a batch below one."""
    for name, value in settings.items():
        arguments.whole(value, name, least=1)
