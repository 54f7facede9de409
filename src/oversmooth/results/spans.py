"""What leaving out or repeating spans of blocks does to a model: part of a `Diagnosis`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from oversmooth.results.facts import Number
from oversmooth.results.parts import Change

Effect = Annotated[str, Literal["next token", "masked token", "labels", "KL", "cosine"]]
Vector = Annotated[str, Literal["last token", "first token", "mean token"]]
EFFECTS: dict[str, str] = {
    "next token": "increase of the next-token loss, in nats",
    "masked token": "increase of the masked-token loss, in nats",
    "labels": "increase of the cross-entropy of the labels, in nats",
    "KL": "KL divergence from the unchanged model, in nats",
    "cosine": "1 − cosine of the pooled vector to the unchanged model's",
}


@dataclass
class Span:
    """Blocks ``first`` to ``last``, counted from 1 as `Diagnosis.layers` are: means over inputs."""

    first: int
    last: int
    influence: Number  #: Block influence: 1 − mean cosine of a token before and after (Men et al., ShortGPT).
    angle: Number  #: Angular distance, arccos/π, of one vector of an input (Gromov et al.).
    changes: list[Change] = field(default_factory=list)  #: By part, summed over these blocks.
    drop: Number = None  #: The measured effect of leaving them out; None if that was not measured.
    drop_error: Number = None  #: Its standard error over inputs.
    repeat: Number = None  #: The same of running them twice.
    repeat_error: Number = None
    predicted_drop: Number = None
    """What ranks spans of one length by their effect, from the unchanged pass alone: the sum of the influences of these
    blocks, times the square root of the growth of HFC through the blocks after them.
    """
    predicted_repeat: Number = None  #: The same with the largest of their influences.

    @property
    def length(self) -> int:
        """Number of blocks."""
        return self.last - self.first + 1

    @property
    def blocks(self) -> str:
        """As tables show them."""
        return str(self.first) if self.length == 1 else f"{self.first}–{self.last}"


@dataclass
class Spans:
    """Every span of at most so many blocks, shorter ones first."""

    effect: Effect  #: What drop and repeat are; `EFFECTS` has the words.
    unchanged: Number  #: The loss of the unchanged model; None where the effect is no loss.
    vector: Vector  #: What the angle is of.
    inputs: int
    spans: list[Span] = field(repr=False)

    def by_length(self, way: str) -> dict[int, list[Span]]:
        """Measured spans by length, the least effect first. way: drop or repeat."""
        found: dict[int, list[Span]] = {}
        for span in sorted((s for s in self.spans if getattr(s, way) is not None), key=lambda s: getattr(s, way)):
            found.setdefault(span.length, []).append(span)
        return dict(sorted(found.items()))
