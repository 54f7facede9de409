"""What one call of a model gets, and the description of all calls together.

Not for reading anything: text.py and images.py make these, and whoever runs a model takes them.
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
    """What one call of the model gets, and which tokens count.

    ``special`` (b, n) is True for tokens such as [CLS], [SEP] and the beginning of a text. Padding is not special: that
    is what ``inputs["attention_mask"]`` has at zero. None where it is not known.
    """

    inputs: dict[str, Tensor]
    special: Tensor | None = None
    labels: Tensor | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


@dataclass
class Inputs:
    """An iterable of batches with its description; can be iterated again.

    ``count`` is how many inputs were chosen. What does not decode is only known once it is read, so each complete
    iteration refills ``skipped`` with a sentence for each of those, and sets ``count`` to what the model really got.
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
        """The same, read once and held in memory: for whoever goes through them many times."""
        held = list(self)
        return Inputs(self.what, self.kind, self.count, self.skipped, lambda: iter(held))


def spread(available: int, count: int) -> list[int]:
    """Which ``count`` of ``available`` things to take: all, or evenly spread, in order and without chance.

    >>> spread(10, 4), spread(3, 4)
    ([1, 3, 6, 8], [0, 1, 2])
    """
    if count >= available:
        return list(range(available))
    # The middle of each of `count` equal stretches, so that neither end is favoured.
    return [(2 * i + 1) * available // (2 * count) for i in range(count)]


def check_positive(**settings: int) -> None:
    """Refuse a count, a length or a batch below one, by its name."""
    for name, value in settings.items():
        arguments.whole(value, name, least=1)
