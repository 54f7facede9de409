"""Where the stream of a block can be read, how attention enters it, and why it may have no H."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from oversmooth.anatomy.layer import NormPosition

BY_TOKEN = "gated per token"
NORMED = f"{BY_TOKEN}: a norm stands between attention and the stream"
CHANGED = "another module changes what attention gives before it is added to the stream"
BY_INPUT = "what multiplies attention's output varies from input to input"
BY_CHANNEL = "the stream is scaled channel by channel"
UNEXPLAINED = "what attention adds to the stream could not be told apart from the rest"


@dataclass(frozen=True)
class Stage:
    """A place where the stream can be read, and the part of the block that brought it there."""

    part: str
    where: Literal["input", "output", "sum", "end"]
    """What the module got, what it gave, ``keep`` times what entered plus ``factor`` times what it gave; or the block's
    end.
    """
    module: str = ""
    nth: int = 0
    """Which of the module's calls in this block."""
    keep: Tensor | None = field(default=None, compare=False)
    factor: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Branch:
    """The module whose output is what attention adds to the stream, and the factors that one input showed."""

    module: str
    nth: int
    factors: tuple[Tensor, ...]
    """Of what entered, of what runs beside attention if anything does, and of the branch."""
    beside: tuple[str, int] | None = None


@dataclass
class Account:
    """How attention enters the stream, and where the stream can be read."""

    stages: list[Stage]
    norm_position: NormPosition
    values_factor: float = 1.0
    """What multiplies tokens between the norm, or the stream, and the values."""
    keep: float = 1.0
    factor: Tensor | None = None
    undecided: str = ""
    """Why this block has no H, or none that acts on the stream alone."""
    branch: Branch | None = None
    """What the factors are compared with for other inputs."""

    @property
    def attention_stage(self) -> int | None:
        """The stage after attention, its norm included where that stands on the stream; None: it cannot be read."""
        attending = [index for index, stage in enumerate(self.stages) if stage.part == "attention"]
        if not attending:
            return None
        after = attending[0] + 1
        normed = after < len(self.stages) and self.stages[after].part == "norm" and self.norm_position == "post"
        return after if normed else attending[0]


@dataclass
class Event:
    """A module of the block ran; arrays are tokens ``(b, n, d)``, or None where they have another shape."""

    name: str
    nth: int
    given: Tensor | None
    gave: Tensor | None
    acts_on_features: bool
    """A norm or a scale: a leaf with nothing but one number per feature."""
    later: bool
    """Whether attention had returned when this module had run."""
