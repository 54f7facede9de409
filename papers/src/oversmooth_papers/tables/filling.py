"""Fill a table: train its missing cells, one by one or several at once, or measure them on trained models.

A results directory has one writer at a time. An interrupted run resumes from its checkpoint next time.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import whole_file
from oversmooth.steering import steering_of
from oversmooth.steering.apply import fold_if_possible
from oversmooth.steering.methods.base import Part
from oversmooth_papers.engine import lock, loop
from oversmooth_papers.engine.parallel_runs import Job, run_many
from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.result import OnNan, Result
from oversmooth_papers.engine.saved_model import recipe_of, save_model
from oversmooth_papers.engine.task import Task
from oversmooth_papers.tables import cells
from oversmooth_papers.tables.cells import Cell, Folder, allowed
from oversmooth_papers.tables.provenance import data_hash, file_hash, provenance
from oversmooth_papers.tasks.registry import load_trained, task_of

NO_MODELS = "models are missing"
"""Why a table that tests trained models is incomplete."""
_SNAPSHOTS = 20  # of smoothing, kept of all
_STRENGTHS = 64  # numbers of one learned parameter that a cell holds; one per head, not one per channel


@dataclass(frozen=True)
class Running(loop.RunSettings):
    """How missing cells are run, trained or measured; nothing here changes a result."""

    device: str | None = None
    on_nan: OnNan = "retry"
    on_message: Callable[[str], None] = lambda _line: None
    on_progress: Callable[..., None] | None = None
    """Receives a training run's `Progress`; for tests of models (title, done, total, what is next)."""
    data: str = ""
    """The data's name or folder, for processes that load it themselves."""
    at_once: int = 1
    """The number of runs at once, each in its own process."""
    command: str = ""
    """The user's command, without paths, for cells to record."""
    keep_models: bool = True
    """Whether trained models are saved in results/models."""
    is_job: bool = False
    """Whether this process has one of many cells: then its launcher is the results' writer."""

    def progress_of(self, title: str) -> Callable[[int, int, str], None]:
        """`on_progress` for one model."""
        return (lambda *_: None) if self.on_progress is None else partial(self.on_progress, title)


def one_writer(results: Path, running: Running) -> AbstractContextManager[lock.Lock | None]:
    """A results directory, made if it is not there, with this process, or the one that launched it, as its writer."""
    if running.is_job:
        return nullcontext()
    return lock.held(results, force=running.force, on_message=running.on_message)


def fill(recipes: Sequence[BaseRecipe], data: Any, results: Path, folder: Folder, running: Running) -> str:
    """Run the cells that are missing; returns "finished", or why some still are: "out of time", "interrupted" or
    "preempted".
    """
    with one_writer(results, running):
        todo = cells.missing(recipes, results, folder)
        for recipe in recipes:
            if recipe not in todo:  # its run may still be there if a process was killed while removing it
                shutil.rmtree(cells.work_folder(results, recipe), ignore_errors=True)
        if not running.is_job:  # a job says how many share its machine
            running = replace(running, at_once=max(1, min(running.at_once, len(todo))))
        jobs = [Job(recipe, cells.work_folder(results, recipe)) for recipe in todo]
        fill_jobs = _fill_at_once if running.at_once > 1 and not running.is_job else _fill_one_by_one
        return fill_jobs(jobs, data, results, folder, running)


def _fill_one_by_one(jobs: Sequence[Job], data: Any, results: Path, folder: Folder, running: Running) -> str:
    """Returns why it ended."""
    end = None if running.minutes is None else time.monotonic() + 60 * running.minutes
    reuse = loop.Reuse()
    for job in jobs:
        title = job.recipe.title
        running.on_message(f"{title}: begins")
        minutes = None if end is None else max(0.0, (end - time.monotonic()) / 60)
        settings = replace(running, folder=job.folder, resume=True, minutes=minutes)
        result = loop.train(task_of(job.recipe, data), settings, reuse=reuse)
        for retry in result.retries:
            back = f"went back to step {retry['back_to_step']:,}, with other draws: {retry['said']}"
            running.on_message(f"{title}: {back}")
        if not result.finished:
            running.on_message(f"{title}: {result.why} after {result.step:,} of {result.steps:,} steps")
            return result.why
        _keep(job, data, results, folder, running)
        running.on_message(f"{title}: {job.recipe.describe(result.scores)}")
    return "finished"


def _fill_at_once(jobs: Sequence[Job], data: Any, results: Path, folder: Folder, running: Running) -> str:
    def keep(job: Job) -> None:
        _keep(job, data, results, folder, running)

    outcomes = run_many(jobs, running.data, running, at_once=running.at_once, on_finished=keep)
    if failed := [outcome for outcome in outcomes if outcome.failed]:
        first = failed[0]
        raise InputError(f"{len(failed)} of {len(jobs)} runs failed; {first.job.recipe.title} {first.message}")
    stopped = next((outcome.why for outcome in outcomes if outcome.why), "out of time")
    return stopped if cells.missing([job.recipe for job in jobs], results, folder) else "finished"


def measure_models(
    recipes: Sequence[BaseRecipe],
    results: Path,
    folder: Folder,
    running: Running,
    measure: Callable[[Any, Path], Cell],
    *,
    made_by: str,
    find: Callable[[Path, Any], Path] = cells.model_path,
) -> str:
    """Cells of trained models that are there and were not measured yet; models that are missing are named.

    measure: what a cell says of a recipe's model, by its file. made_by: the tables that train these models. find: where
    in the results a recipe's model is.
    """
    lacking = []
    with one_writer(results, running):
        for recipe in cells.missing(recipes, results, folder):
            path = find(results, recipe)
            if not path.is_file():
                lacking.append(recipe.title)
                continue
            own = recipe_of(path)
            if (differs := "it has none" if own is None else own.difference(recipe)) is not None:
                raise InputError(f"{path} is of another recipe: {differs}; remove it, or name another folder of models")
            measured = {**measure(recipe, path), "checkpoint_sha256": file_hash(path)}
            cells.write(cells.cell_path(results, folder, recipe), _cell(recipe, folder, running, measured))
    for title in lacking:
        running.on_message(f"{title}: no model; oversmooth reproduce {made_by} makes it")
    return NO_MODELS if lacking else "finished"


def _cell(recipe: BaseRecipe, folder: Folder, running: Running, found: Cell) -> Cell:
    """What was found, with what and where it was found."""
    return {
        "table": cells.folder_name(folder, recipe),
        "title": recipe.title,
        "seed": recipe.seed,
        **found,
        "recipe": recipe.to_dict(),
        **provenance(running.device),
        **({"command": running.command} if running.command else {}),
    }


def _keep(job: Job, data: Any, results: Path, folder: Folder, running: Running) -> None:
    """The finished run as a cell and a model, and no run any more."""
    recipe, task = job.recipe, task_of(job.recipe, data)
    finished = loop.RunSettings(folder=job.folder, device=running.device, resume=True)
    result = loop.train(task, finished)  # reads the files of the finished run
    model = keep_model(task, result, job.folder / loop.MODEL, results, running.device) if running.keep_models else {}
    for name, value in (*result.scores.items(), *model.get("rounded", {}).items()):
        if not math.isfinite(value):  # before a cell is written that nothing could read, and its run removed
            raise InputError(
                f"{recipe.title}: {name} is {value} after training, and no cell is made of that; the run stays in "
                f"{job.folder}: remove it to train again"
            )
    per_s = f"{recipe.unit}_per_s"
    speeds = [row[per_s] for row in result.epochs if per_s in row]
    step = max(1, math.ceil(len(result.smoothing) / _SNAPSHOTS))
    logged = ("epoch", "loss", "lr", "strength_share", *result.scores)
    found = {
        **result.scores,
        **task.facts(),
        **model,
        "data_sha256": data_hash(task.data()),
        "seconds": round(result.seconds, 1),
        "minutes": round(result.seconds / 60, 2),
        **({"at_once": running.at_once} if running.at_once > 1 else {}),
        per_s: round(statistics.median(speeds), 1) if speeds else None,
        **({"machines": result.machines} if result.machines else {}),
        **({"retries": result.retries} if result.retries else {}),
    }
    cell = _cell(recipe, folder, running, found) | {
        "epochs": [{k: row[k] for k in logged if k in row} for row in result.epochs],
        "smoothing": result.smoothing[::-1][::step][::-1],
    }
    images, rounded = cell.get("test_images", 0), cell.get("rounded", {})
    apart = {
        name: value
        for name, value in rounded.items()
        if name in cell and abs(cell[name] - value) > allowed(name, value, tested=images, rounded=True)
    }
    if apart:
        cell["remark"] = ", ".join(f"open: {value:.4g} by its kept file's {name}" for name, value in apart.items())
    cells.write(cells.cell_path(results, folder, recipe), cell)
    shutil.rmtree(job.folder, ignore_errors=True)
    for name, value in apart.items():
        running.on_message(
            f"{recipe.title}: {name} is {cell[name]:.4g} by the run's own test and {value:.4g} by that of its kept "
            "file, which is more than rounding explains; rely on neither before oversmooth reproduce verify has tested "
            "the file elsewhere"
        )


def _strengths(model: nn.Module) -> dict[str, list[float] | dict[str, float]]:
    """What a model's steering learned, by the parameter's name: the numbers, of many their mean and their ends.

    Wherever it was steered: a Segmenter's encoder and decoder each are.
    """
    found: dict[str, list[float] | dict[str, float]] = {}
    for where, part in model.named_modules():
        for name, parameter in part.named_parameters() if isinstance(part, Part) else ():
            values = parameter.detach().double().flatten().tolist()
            ends = {"mean": statistics.fmean(values), "least": min(values), "greatest": max(values)}
            found[f"{where}.{name}"] = values if len(values) <= _STRENGTHS else ends
    return found


def keep_model(task: Task, result: Result, file: Path, results: Path, device: str | None) -> dict[str, Any]:
    """The model for results/models, and what the cell says of it: strengths, how good the file is, and its hash.

    Constrained weights are folded before they are rounded to bf16: that moves H by 0.2 %, where rounding Θ moves it by
    up to 1 %. What no weight can do stays steered, and is copied as it is.
    """
    path = cells.model_path(results, task.recipe)
    model, _ = load_trained(file)
    learned = _strengths(model)
    if steering_of(model) is not None and fold_if_possible(model):
        save_model(model, task.recipe, path, notes={**result.scores, "seconds": result.seconds}, more=task.metadata())
        model, _ = load_trained(path)
    else:
        with whole_file(path) as temporary:
            shutil.copyfile(file, temporary)
    where = loop.device_named(device)
    with loop.float32_products(where):
        scores = task.evaluation(model.to(where), where).scores(final=False)
    found = {"strengths": learned} if learned else {}
    return {**found, "rounded": dict(scores), "checkpoint_sha256": file_hash(path)}
