"""The tasks: what they ask, how their scores are called, how long they are trained. Plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["classes", "number", "choice"]
"""Of the answer: one of some classes, a number, or which of several texts."""


@dataclass(frozen=True)
class TaskSettings:
    """One task of a benchmark."""

    benchmark: Literal["glue", "superglue", "own"]
    kind: Kind
    labels: tuple[str, ...]
    """Names of the classes in the order of their numbers; of a choice one per text; none for a number."""
    metrics: tuple[str, ...]
    """As published, the one to compare by first."""
    epochs: int
    chance: bool = False
    """Whether a model of this size is at chance level."""

    @property
    def outputs(self) -> int:
        return len(self.labels) if self.kind == "classes" else 1


_YES = ("not_entailment", "entailment")
_TRUE = ("false", "true")
TASKS = {
    "CB": TaskSettings(
        "superglue", "classes", ("contradiction", "entailment", "neutral"), ("macro_f1", "accuracy"), 30
    ),
    "RTE": TaskSettings("superglue", "classes", _YES, ("accuracy",), 10),
    "WiC": TaskSettings("superglue", "classes", _TRUE, ("accuracy",), 10),
    "CoLA": TaskSettings("glue", "classes", ("0", "1"), ("matthews",), 10),
    "SST-2": TaskSettings("glue", "classes", ("0", "1"), ("accuracy",), 1),
    "MRPC": TaskSettings("glue", "classes", ("0", "1"), ("f1", "accuracy"), 10),
    "STS-B": TaskSettings("glue", "number", (), ("pearson", "spearman"), 10),
    "COPA": TaskSettings("superglue", "choice", ("0", "1"), ("accuracy",), 20, chance=True),
    "WSC": TaskSettings("superglue", "classes", _TRUE, ("accuracy",), 20, chance=True),
    "MultiRC": TaskSettings("superglue", "classes", _TRUE, ("f1", "exact_match"), 3, chance=True),
    "following": TaskSettings("own", "classes", ("0", "1"), ("accuracy",), 3),
}
"""By the name of their folder. ``following`` is made of the package's prose: does the second line follow the first?"""
TOLD = ("CB", "RTE", "WiC", "CoLA", "MRPC", "STS-B", "SST-2")
"""Tasks that a small model can learn something of; the longest last."""
LONGEST = 5.0
"""The greatest similarity of STS-B."""
