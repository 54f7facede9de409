"""A sweep of the user's own: methods × strengths × seeds of one recipe, named in a TOML file (docs/clusters.md).

A cell is named by its recipe, so that sweeps which overlap share cells.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_text
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.tables.base import Case, Table, last_snapshot, minutes
from oversmooth_papers.tables.cells import Available, scores
from oversmooth_papers.tables.table_text import counted

_SCORES = {
    "language": ("test_perplexity_sliding", 1.0, "test perplexity"),
    "segmentation": ("miou", 100.0, "mIoU, %"),
}
_ACCURACY = ("accuracy", 100.0, "accuracy, %")
_MOST = 10_000  # cells


class SweepFile(TypedDict, total=False):
    """What a sweep's file holds; methods are needed."""

    task: str
    quick: bool
    data: str
    methods: list[str]
    strengths: list[float]
    seeds: int
    recipe: dict[str, Any]


def read_sweep(path: Path) -> SweepFile:
    """The file; raises `InputError` for what no sweep can be."""
    remedy = "give task, methods, strengths, seeds and [recipe]"
    try:
        found: SweepFile = typed(SweepFile, tomllib.loads(read_text(path, remedy)))
        if unknown := sorted(found.keys() - SweepFile.__annotations__.keys()):
            raise ValueError(f"it has {unknown[0]!r}, which is not known")
        if not found.get("methods"):
            raise ValueError("it has no methods")
        if not 0 < found.get("seeds", 1) * len(found["methods"]) * max(1, len(found.get("strengths", []))) <= _MOST:
            raise ValueError(f"it has no cells, or more than {_MOST:,}")
    except ValueError as error:
        raise error if isinstance(error, InputError) else InputError(f"{path}: {reason(error)}; {remedy}") from error
    return found


def variants(methods: list[str], strengths: list[float]) -> dict[str, str]:
    """Variants of recipes by their titles: methods that have a strength, and name none, with each."""
    from oversmooth.steering.methods.base import MethodWithStrength
    from oversmooth_papers.engine.recipe import methods_of

    found: dict[str, str] = {}
    for method in methods:
        has_strength = any(isinstance(one, MethodWithStrength) for one in methods_of(method, seed=0))
        if has_strength and strengths and ":" not in method:
            found |= {f"{method}, {value:g}": f"{method}:strength={value:g}" for value in strengths}
        else:
            found[method] = method
    return found


@dataclass(frozen=True, kw_only=True)
class Sweep(Table):
    """The cells of a sweep and their table."""

    name = "sweep"
    fits_data = True
    default_data = ""
    rows_are = "method, strength"
    title = quick_title = "sweep"
    begun: BaseRecipe
    variant_by_title: Mapping[str, str] = field(default_factory=dict)

    def base(self) -> Any:
        return self.begun

    def cases(self) -> Mapping[str, Case]:
        return {title: Case(title, {"variant": variant}) for title, variant in self.variant_by_title.items()}

    def folder(self, _recipe: Any) -> str:
        return "sweep-quick" if self.quick else "sweep"

    def columns(self) -> Mapping[str, Any]:
        name, factor, heading = self._score()
        return {
            heading: lambda row: counted(scores(row.cells, name, factor)),
            "HFC/LFC, last": last_snapshot(1),
            "mean |cos|, last": last_snapshot(2),
            "minutes": minutes,
        }

    def charted(self, available: Available, name: str) -> list[float]:
        return scores(self.cells(available, name), *self._score()[:2])

    def _score(self) -> tuple[str, float, str]:
        return _SCORES.get(self.begun.task_name, _ACCURACY)

    def conclusion(self, _available: Available) -> str:
        return ""

    def notes(self) -> list[str]:
        what = f"Every row has the same recipe (epochs: {self.begun.total_epochs}); none was tuned"
        return [f"Mean ± standard deviation over seeds (their number). {what}. Last: of what leaves the last block."]
