"""A sweep of the user's own: methods × strengths × seeds of one recipe, named in a TOML file (docs/clusters.md).

A cell is named by its recipe, so that sweeps which overlap share cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oversmooth.safety.typed import read_toml
from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.tables.base import Case, Table, last_snapshot, minutes
from oversmooth_papers.tables.cells import Available, scores
from oversmooth_papers.tables.table_text import counted

_SCORES = {"language": ("test_perplexity_sliding", 1.0, "test perplexity"), "segmentation": ("miou", 100.0, "mIoU, %")}
_ACCURACY = ("accuracy", 100.0, "accuracy, %")
_MOST = 10_000  # cells


@dataclass(frozen=True)
class SweepFile:
    """What a sweep's file holds."""

    methods: list[str]
    strengths: list[float] = field(default_factory=list)
    seeds: int = 1
    task: str = "images"
    quick: bool = False
    data: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.seeds * len(self.methods) * max(1, len(self.strengths)) <= _MOST:
            raise ValueError(f"it has no cells, or more than {_MOST:,}")
        if given := sorted({"data", "seed", "variant"} & self.recipe.keys()):
            raise ValueError(f"[recipe] has {given[0]}, which data, seeds and methods are for")


def read_sweep(path: Path) -> SweepFile:
    return read_toml(SweepFile, path, "give task, methods, strengths, seeds and [recipe]")


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
    title = "sweep"
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

    def notes(self) -> list[str]:
        what = f"Every row has the same recipe (epochs: {self.begun.total_epochs}); none was tuned"
        return [f"Mean ± standard deviation over seeds (their number). {what}. Last: of what leaves the last block."]
