"""Which depth to embed with: measures by depth with their errors, and what they say, in words."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oversmooth.results.facts import Number
from oversmooth.safety import arguments
from oversmooth.safety.files import check_writable, write_text


@dataclass(frozen=True)
class Measure:
    """What is measured at every depth, and which end of it is taken for the better one."""

    label: str
    heading: str  # of its column in the terminal
    higher: bool | None  # whether a depth with a higher value is preferred; None: it ranks nothing
    decimals: int = 2


MEASURES = {
    "anisotropy_tokens": Measure("mean cosine of tokens of different inputs", "cos\ntokens", False),
    "anisotropy_tokens_centred": Measure("the same without their mean", "\ncentred", None),
    "anisotropy": Measure("mean cosine of pooled vectors", "cos\npooled", False),
    "anisotropy_centred": Measure("the same without their mean", "\ncentred", None),
    "rankme": Measure("RankMe of pooled vectors", "RankMe", True, 1),
    "token_entropy": Measure("entropy of an input's tokens", "entropy", True, 3),
    "curvature": Measure("curvature, in degrees", "curv.", False, 1),
    "cka_previous": Measure("CKA with the depth before", "CKA\nprev.", None),
    "probe": Measure("accuracy of a linear probe", "probe", True, 3),
    "similarity": Measure("rank correlation with the given similarities", "STS", True, 3),
}
"""In the order in which they are shown."""
LABELLED = ("probe", "similarity")


@dataclass
class Column:
    """One measure by depth."""

    values: list[Number]
    errors: list[Number]  #: Standard errors by a delete-a-group jackknife.
    best: int | None = None  #: The depth that it ranks first; None if it ranks none.
    as_good: list[int] = field(default_factory=list)
    """Depths that cannot be told from the best one: their paired difference to it is within its 95% interval."""


@dataclass
class Agreement:
    """What a measure is worth where labels say which depth is best."""

    correlation: Number  #: Spearman, over depths, between the measure (as it ranks) and the labelled score.
    loss: float  #: Score of the best depth by labels, less that of the best depth by the measure.
    error: Number  #: Standard error of the loss, by the same jackknife.


@dataclass(repr=False)
class LayerRanking:
    """What `oversmooth.layers` returns."""

    model: str
    data: str
    inputs: int
    width: int
    pool: str
    depths: list[str]  #: Names: "embedding", then of every block.
    measures: dict[str, Column]  #: By the names in `MEASURES`; depth 0 is what enters the first block.
    cka: list[list[Number]]  #: Debiased linear CKA of pooled vectors between all depths.
    largest_feature: list[Number]  #: Share of the pooled mean cosine that one feature of the width makes, by depth.
    groups: int  #: Of the jackknife.
    agreement: dict[str, Agreement] = field(default_factory=dict)  #: By measure; empty without labels.
    remarks: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<LayerRanking of {self.model}: {len(self.depths)} depths, {self.inputs} inputs>"

    @property
    def score(self) -> str | None:
        """The measure that labels give; None without labels."""
        return next((name for name in LABELLED if name in self.measures), None)

    @property
    def verdict(self) -> list[str]:
        """In plain words: why cosines are high, which depths rank first, and which measure to trust."""
        return [_cosines(self), *_labelled(self), *_unlabelled(self)]

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, dicts and numbers."""
        return {"schema": "oversmooth/layers", "version": 1, **dataclasses.asdict(self), "verdict": self.verdict}

    def save(self, path: str | Path) -> None:
        """Write a JSON file, whole or not at all.

        Args:
            path: of a .json file.

        Raises:
            InputError: it cannot be written.
        """
        file = arguments.path(path, remedy="give the path of a .json file")
        check_writable(file, (".json",))
        write_text(file, json.dumps(self.to_dict(), indent=1, allow_nan=False))


def _cosines(ranking: LayerRanking) -> str:
    """Where pooled vectors are most alike, and what of it is their mean or a single feature."""
    values, centred = (ranking.measures[name].values for name in ("anisotropy", "anisotropy_centred"))
    known = [depth for depth, value in enumerate(values) if value is not None]
    if not known:
        return "Pooled vectors have no cosines."
    depth = max(known, key=lambda one: values[one] or 0.0)
    feature = ranking.largest_feature[depth]
    one = f"; one of {ranking.width:,} features makes {feature:.0%} of it" if feature is not None else ""
    return (
        f"Pooled vectors of different inputs have a mean cosine of up to {values[depth]:.2f} (depth {depth}), and of "
        f"{centred[depth] or 0.0:.2f} without their common mean{one}."
    )


def _labelled(ranking: LayerRanking) -> list[str]:
    if (score := ranking.score) is None or ranking.measures[score].best is None:
        return []
    column, shown = ranking.measures[score], MEASURES[score]
    assert column.best is not None
    best, error = column.values[column.best], column.errors[column.best]
    said = f"By the {shown.label}, depth {column.best} is best ({best:.3f} ± {error or 0.0:.3f}){_as_good(column)}."
    losses = sorted(ranking.agreement.items(), key=lambda one: one[1].loss)
    listed = [
        f"{MEASURES[name].label} (depth {ranking.measures[name].best}) loses {one.loss:.3f} ± {one.error or 0.0:.3f}"
        for name, one in losses
    ]
    return [said, f"Choosing without labels: {'; '.join(listed)}."] if listed else [said]


def _unlabelled(ranking: LayerRanking) -> list[str]:
    if ranking.score is not None:
        return []
    ranked = [(MEASURES[name], column) for name, column in ranking.measures.items() if column.best is not None]
    listed = [f"depth {column.best} by {shown.label}{_as_good(column)}" for shown, column in ranked]
    first = "; ".join(listed)
    return [f"Ranked first: {first}. Without labels nothing shows which measure to trust."] if listed else []


def _as_good(column: Column) -> str:
    others = [str(depth) for depth in column.as_good if depth != column.best]
    if not others:
        return ""
    if len(others) > 4 and len(others) == len(column.values) - 1:
        return ", but no depth can be told from it"
    return f"; depth{'s' if len(others) > 1 else ''} {', '.join(others)} cannot be told from it"
