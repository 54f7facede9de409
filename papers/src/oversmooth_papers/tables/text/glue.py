"""The masked models of `text masked`, fine-tuned on tasks of GLUE and SuperGLUE: medians of three seeds.

    oversmooth reproduce text glue --seeds 3               models of `text masked`, seed 0
    oversmooth reproduce text glue --quick                 with `text masked --quick`: does one line follow another?

A small model on a small budget is weak on these tasks. So each figure stands beside that of the most frequent answer;
and where the ranges over seeds of a forced model and the plain one meet, nothing can be told.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oversmooth_papers.engine.options import option
from oversmooth_papers.figures.table_charts import bars_side_by_side, point
from oversmooth_papers.tables import cells
from oversmooth_papers.tables.base import Column, Row, Rows, Table
from oversmooth_papers.tables.cells import Available, missing, model_path
from oversmooth_papers.tables.text.language_models import WARM, Masked
from oversmooth_papers.tasks.glue.recipe import TASKS, TOLD, Recipe
from oversmooth_papers.tasks.language.recipe import CAUSAL
from oversmooth_papers.tasks.language.recipe import Recipe as LanguageRecipe

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Running

NOTHING = "nothing can be told"
_NOTE = (
    "Published metrics in %, on the validation sets: {metrics}; the median over seeds of fine-tuning, and "
    "their range. Texts are cut at 128 tokens, which a quarter of RTE's and a fifth of CB's exceed. Majority: the most "
    "frequent training label. Pretraining: validation perplexity of the model that was fine-tuned (text masked). "
    "Told apart: where the range over seeds of a forced model lies wholly above (+) or below (−) the plain model's. "
    "Those of two equal models with three seeds each do so in one of ten comparisons; with two and three, in one of "
    "five."
)
_METRICS = {"macro_f1": "macro F1", "matthews": "Matthews' correlation", "f1": "F1", "pearson": "Pearson's correlation"}


@dataclass(frozen=True, kw_only=True)
class Glue(Table):
    """The models of text masked, fine-tuned on GLUE and SuperGLUE: medians of seeds, with majority and spread."""

    name = "glue"
    group = "text"
    full = small = CAUSAL
    """Of which cases differ; fine-tuning always begins from weights and has no start to tell by."""
    case_by_name = WARM
    label = "mean score, %"
    loads_data = False
    keeps_models = False
    cells_help = (
        "The cells to run: a variant (plain), a task (CB), or both (plain:CB); by default all a small model learns."
    )

    pretrained_seed: int = option(0, "Of the pretrained models.")
    chance: bool = option(False, "COPA, WSC and MultiRC too, where a model of this size is at chance level.")

    def __post_init__(self) -> None:
        from oversmooth.safety import arguments

        arguments.whole(self.pretrained_seed, "pretrained_seed", most=999)

    def tasks(self) -> list[str]:
        if self.quick:
            return ["following"]
        return [*TOLD, *(name for name, own in TASKS.items() if own.chance and self.chance)]

    def pretrained(self) -> dict[str, LanguageRecipe]:
        """Recipes of the models by variant."""
        own: dict[str, Any] = {name: Masked(quick=self.quick).recipe(name, self.pretrained_seed) for name in WARM}
        if self.quick:  # as it is fitted to the prose, whose bytes and one mask are its tokens
            own = {name: replace(one, shape=replace(one.shape, vocabulary=257)) for name, one in own.items()}
        return own

    def recipes(self) -> list[Any]:
        """Task by task and seed by seed, so that what is cut short compares all variants."""
        pretrained = self.pretrained().values()
        return [
            Recipe(
                data=task,
                pretrained=own.key,
                variant=own.variant,
                layers=own.layers,
                shape=own.shape,
                epochs=TASKS[task].epochs,
                seed=seed,
            )
            for seed in range(self.seeds)
            for task in self.tasks()
            for own in pretrained
        ]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": self.case_of(recipe), "task": recipe.data}

    def fill(self, recipes: Sequence[Any], _data: Any, results: Path, running: Running) -> str:
        """Task by task, each with its model's own tokens; models that are missing are named."""
        from oversmooth_papers.engine.result import WatchSettings
        from oversmooth_papers.tables.filling import NO_MODELS, fill
        from oversmooth_papers.tasks.glue.data import load_glue

        own = {recipe.key: (name, recipe) for name, recipe in self.pretrained().items()}
        lacking: dict[str, str] = {}
        watch = WatchSettings(evaluate=0, monitor=0)  # runs of seconds: looks would take longer than steps
        running = replace(running, keep_models=self.keeps_models, at_once=1, watch=watch)
        end = time.monotonic() + 60 * (running.minutes or 0.0)
        todo = missing(recipes, results, self.folder)
        for task, key in dict.fromkeys((recipe.data, recipe.pretrained) for recipe in todo):
            name, pretrained = own[key]
            path = model_path(results, pretrained)
            if not path.is_file():
                lacking[name] = pretrained.title
                continue
            same = [recipe for recipe in todo if (recipe.data, recipe.pretrained) == (task, key)]
            left = None if running.minutes is None else max(0.0, (end - time.monotonic()) / 60)
            why = fill(same, load_glue(task, path), results, self.folder, replace(running, minutes=left))
            if why != "finished":
                return why
        for name, title in lacking.items():
            quick = " --quick" if self.quick else ""
            made = f"oversmooth reproduce text masked --cells {name} --seeds {self.pretrained_seed + 1}{quick}"
            running.on_message(f"{title}: no model; {made} --results {shlex.quote(str(results))} makes it")
        return NO_MODELS if lacking else "finished"

    def columns(self) -> Mapping[str, Column]:
        of_tasks = {task: lambda row, task=task: _shown(scores(row.cells, task)) for task in self.tasks()}
        return {"pretraining": _pretraining, **of_tasks}

    def rows(self, available: Available) -> Rows:
        """The models, the most frequent answer, and whether forced models are told apart from the plain one."""
        head, rows = super().rows(available)
        found = {name: self.by_task(available, name).values() for name in WARM}
        majority = [_majority(available, task) for task in self.tasks()]
        shown = ["–" if value is None else f"{value:.1f}" for value in majority]
        rows.append(["majority", "–", *shown, self.whose()])
        for name in [*WARM][1:]:
            apart = map(separation, found[name], found["plain"])
            rows.append([f"{WARM[name].title}, told apart from plain", "–", *apart, self.whose()])
        return head, rows

    def by_task(self, available: Available, name: str) -> dict[str, list[float]]:
        cells = self.cells(available, name)
        return {task: scores(cells, task) for task in self.tasks()}

    def charted(self, available: Available, name: str) -> list[float]:
        """The mean of each task, if all are there."""
        found = self.by_task(available, name).values()
        return [*map(statistics.fmean, found)] if all(found) else []

    def chart(self, available: Available) -> Any:
        """A panel for each task: median and range over seeds, and the most frequent answer."""
        found = {case.title: self.by_task(available, name) for name, case in WARM.items()}
        panels = []
        for task in self.tasks():
            points = [
                point(title, self.whose(), statistics.median(values), None) | {"low": min(values), "high": max(values)}
                for title, by_task in found.items()
                if (values := by_task[task])
            ]
            if points and (majority := _majority(available, task)) is not None:
                points.append(point("majority", self.whose(), majority, None))
            panels += [(task, points)] if points else []
        there = {one["model"] for _, points in panels for one in points}
        return bars_side_by_side(panels, "score, %", [title for title in (*found, "majority") if title in there])

    def notes(self) -> list[str]:
        if self.quick:
            return [self.quick_note]
        of: dict[str, list[str]] = {}
        for task in self.tasks():
            metric = TASKS[task].metrics[0]
            of.setdefault(_METRICS.get(metric, metric), []).append(task)
        return [_NOTE.format(metrics=", ".join(f"{metric} ({', '.join(tasks)})" for metric, tasks in of.items()))]


def scores(available: Available, task: str) -> list[float]:
    """Of a variant's cells those of a task, over seeds, in %, by the metric to compare by."""
    of_task = {recipe: cell for recipe, cell in available.items() if recipe.data == task}
    return cells.scores(of_task, TASKS[task].metrics[0], 100)


def _majority(available: Available, task: str) -> float | None:
    """Of the most frequent answer, in %; None where no cell says it."""
    metric = TASKS[task].metrics[0]
    said = (cell.get("majority", {}).get(metric) for recipe, cell in available.items() if recipe.data == task)
    return next((100 * value for value in said if value is not None), None)


def _pretraining(row: Row) -> str:
    """Of one model, unless it was trained again between the cells."""
    found = {cell["pretraining_perplexity"] for cell in row.cells.values() if "pretraining_perplexity" in cell}
    return ", ".join(f"{perplexity:.2f}" for perplexity in sorted(found)) or "–"


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = "" if len(values) == 1 else f" [{min(values):.1f}, {max(values):.1f}]"
    return f"{statistics.median(values):.1f}{spread} ({len(values)})"


def separation(forced: Sequence[float], plain: Sequence[float]) -> str:
    """+ or − where the ranges over seeds do not meet; of fewer than two seeds each there is no range."""
    if min(len(forced), len(plain)) < 2:
        return "–"
    if min(forced) <= max(plain) and min(plain) <= max(forced):
        return NOTHING
    return f"{statistics.median(forced) - statistics.median(plain):+.1f}".replace("-", "−")
