"""The masked models of `text masked`, fine-tuned on tasks of GLUE and SuperGLUE: medians of three seeds.

    oversmooth reproduce text glue --seeds 3               models of `text masked`, seed 0
    oversmooth reproduce text glue --quick                 with `text masked --quick`: does one line follow another?

A small model on a small budget is weak on these tasks. So each figure stands beside that of the most frequent answer
and beside the pretraining perplexity, with the range over seeds; and a difference from the plain model that is within
the ranges is called none: nothing can be told.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oversmooth_papers.engine.options import option
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables.base import Rows, Table, register
from oversmooth_papers.tables.cells import Kept, missing, model_path
from oversmooth_papers.tables.text import variants
from oversmooth_papers.tables.text.masked import Masked
from oversmooth_papers.tables.text.variants import WARM
from oversmooth_papers.tasks.glue.recipe import TASKS, TOLD, Recipe
from oversmooth_papers.tasks.language.recipe import Recipe as LanguageRecipe

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Filled, Running

NOTHING = "nothing can be told"
_NOTE = (
    "Published metrics in %, on the validation sets: {metrics}; the median over seeds of fine-tuning, and "
    "their range. Texts are cut at 128 tokens, which a quarter of RTE's and a fifth of CB's exceed. Majority: the most "
    "frequent training label. Pretraining: validation perplexity of the model that was fine-tuned (text masked). "
    "Told apart: where the range over seeds of a forced model lies wholly above (+) or below (−) the plain model's. "
    "Those of two equal models with three seeds each do so in one of ten comparisons; with two and three, in one of "
    "five."
)
_METRICS = {
    "macro_f1": "macro F1",
    "accuracy": "accuracy",
    "matthews": "Matthews' correlation",
    "f1": "F1",
    "pearson": "Pearson's correlation",
}
_QUICK_NOTE = (
    "quick: the models of text masked --quick, asked whether a line of the package's prose follows another. These "
    "figures compare with each other and with nothing that is published."
)


@register
@dataclass(frozen=True, kw_only=True)
class Glue(Table):
    """The models of text masked, fine-tuned on GLUE and SuperGLUE: medians of seeds, with majority and spread."""

    name = "glue"
    group = "text"
    asks_unknowns = False
    loads_data = False
    at_once_allowed = False
    keeps_models = False
    cells_help = "Which: a variant (plain), a task (CB), or both (plain:CB); by default all that a small model learns."

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
        recipes = Masked(seeds=self.pretrained_seed + 1, quick=self.quick).recipes()
        own = [recipe for recipe in recipes if recipe.seed == self.pretrained_seed]
        if self.quick:  # as it is fitted to the prose, whose bytes and one mask are its tokens
            own = [replace(recipe, shape=replace(recipe.shape, vocabulary=257)) for recipe in own]
        named = {variants.name_of(recipe): recipe for recipe in own}
        return {name: named[name] for name in WARM}

    def recipes(self) -> list[Any]:
        """Task by task and seed by seed, so that what is cut short compares all variants."""
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
            for own in self.pretrained().values()
        ]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {"variant": variants.name_of(recipe), "task": recipe.data}

    def fill(self, recipes: Sequence[Any], _data: Any, results: Path, running: Running) -> Filled:
        """Task by task, each with its model's own tokens; models that are missing are named."""
        from oversmooth_papers.engine.result import WatchSettings
        from oversmooth_papers.tables.filling import NO_MODELS, Filled, fill
        from oversmooth_papers.tasks.glue.data import load_glue

        own = {recipe.key: recipe for recipe in self.pretrained().values()}
        lacking: dict[str, str] = {}
        todo: dict[tuple[str, str], list[Any]] = {}
        for recipe in missing(recipes, results, self.folder):
            todo.setdefault((recipe.data, recipe.pretrained), []).append(recipe)
        watch = WatchSettings(evaluate=0, monitor=0)  # runs of seconds: looks would take longer than steps
        running = replace(running, keep_models=self.keeps_models, at_once=1, watch=watch)
        end = None if running.minutes is None else time.monotonic() + 60 * running.minutes
        for (task, key), same in todo.items():
            path = model_path(results, own[key])
            if not path.is_file():
                lacking[own[key].title] = variants.name_of(own[key])
                continue
            left = None if end is None else max(0.0, (end - time.monotonic()) / 60)
            filled = fill(same, load_glue(task, path), results, self.folder, replace(running, minutes=left))
            if not filled:
                return filled
        for title, name in lacking.items():
            quick = " --quick" if self.quick else ""
            made = f"oversmooth reproduce text masked --cells {name} --seeds {self.pretrained_seed + 1}{quick}"
            running.on_message(f"{title}: no model; {made} --results {shlex.quote(str(results))} makes it")
        return Filled(NO_MODELS if lacking else "finished")

    def rows(self, kept: Kept) -> Rows:
        tasks, found = self.tasks(), {name: {t: scores(kept, name, t) for t in self.tasks()} for name in WARM}
        rows = [
            [title, _pretraining(kept, name), *map(_shown, found[name].values()), self.whose()]
            for name, title in WARM.items()
        ]
        majority = (_majority(kept, task) for task in tasks)
        rows.append(["majority", "–", *("–" if value is None else f"{value:.1f}" for value in majority), self.whose()])
        for name, title in list(WARM.items())[1:]:
            told = [told_apart(found[name][task], found["plain"][task]) for task in tasks]
            rows.append([f"{title}, told apart from plain", "–", *told, self.whose()])
        return ["", "pretraining", *tasks, "whose"], rows

    def chart(self, kept: Kept) -> Any:
        """A panel for each task: median and range over seeds, and the most frequent answer."""
        panels = []
        for task in self.tasks():
            points = []
            for name, title in WARM.items():
                if values := scores(kept, name, task):
                    point = table_charts.point(title, self.whose(), statistics.median(values), None)
                    points.append({**point, "low": min(values), "high": max(values)})
            if points and (majority := _majority(kept, task)) is not None:
                points.append(table_charts.point("majority", self.whose(), majority, None))
            if points:
                panels.append((task, points))
        there = {point["model"] for _, points in panels for point in points}
        models = [title for title in (*WARM.values(), "majority") if title in there]
        return table_charts.bars_side_by_side(panels, "score, %", models)

    def notes(self) -> list[str]:
        if self.quick:
            return [_QUICK_NOTE]
        own = {task: _METRICS[TASKS[task].metrics[0]] for task in self.tasks()}
        said = [f"{metric} ({', '.join(t for t in own if own[t] == metric)})" for metric in dict.fromkeys(own.values())]
        return [_NOTE.format(metrics=", ".join(said))]


def scores(kept: Kept, name: str, task: str) -> list[float]:
    """Of a variant on a task over seeds, in %, by the metric to compare by."""
    metric = TASKS[task].metrics[0]
    own = [cell for recipe, cell in kept.items() if (variants.name_of(recipe), recipe.data) == (name, task)]
    return [100 * float(cell[metric]) for cell in own]


def _majority(kept: Kept, task: str) -> float | None:
    """Of the most frequent answer, in %; None where no cell says it."""
    metric = TASKS[task].metrics[0]
    said = (cell.get("majority", {}).get(metric) for recipe, cell in kept.items() if recipe.data == task)
    return next((100 * value for value in said if value is not None), None)


def _pretraining(kept: Kept, name: str) -> str:
    """Of one model, unless it was trained again between the cells."""
    cells = variants.cells_of(kept, name)
    found = {cell["pretraining_perplexity"] for cell in cells if "pretraining_perplexity" in cell}
    return ", ".join(f"{perplexity:.2f}" for perplexity in sorted(found)) or "–"


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = "" if len(values) == 1 else f" [{min(values):.1f}, {max(values):.1f}]"
    return f"{statistics.median(values):.1f}{spread} ({len(values)})"


def told_apart(forced: Sequence[float], plain: Sequence[float]) -> str:
    """+ or − where the ranges over seeds do not meet; of fewer than two seeds each there is no range."""
    if min(len(forced), len(plain)) < 2:
        return "–"
    if min(forced) > max(plain):
        return f"+{statistics.median(forced) - statistics.median(plain):.1f}"
    if max(forced) < min(plain):
        return f"−{statistics.median(plain) - statistics.median(forced):.1f}"
    return NOTHING
