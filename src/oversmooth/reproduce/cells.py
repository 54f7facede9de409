"""The cells of a table of trained models: run one by one or several at once, kept as JSON, merged by copying files.

A cell is a recipe, and its file is named by the recipe's key: results/table2/<key>.json. A run on its way lives in
results/work/<key>/, its model in the end in results/models/<key>.safetensors. Machines that fill different cells of one
table need only put their files together. A results directory has one writer at a time.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

import oversmooth
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_json, whole_file
from oversmooth.safety.foreign import json_text
from oversmooth.safety.typed import typed
from oversmooth.train.engine import checkpoint, lock, loop
from oversmooth.train.engine.parallel_runs import Job, run_many
from oversmooth.train.engine.result import OnNan, Progress, Splits, Watch
from oversmooth.train.tasks.images.recipe import Recipe

Told = Callable[[str], None]
Home = str | Callable[[Recipe], str]
"""The table that keeps cells: one for all, or one that the recipe decides, where tables share cells."""
_LOOKS = 20  # times that smoothing was looked at, kept of all


class _Look(TypedDict):
    hfc_lfc: list[float]
    abs_cos: list[float]


class _Always(TypedDict):
    title: str
    accuracy: float
    hardware: str
    day: str
    recipe: dict[str, Any]


class _Cell(_Always, total=False):
    """What is taken from a cell; more may stand beside it."""

    smoothing: list[_Look]
    mean: list[float]
    """Of table 3: by intensity of corruption."""


@dataclass(frozen=True)
class Filled:
    """Whether all cells are there, which is its truth; or why not: out of time, interrupted, preempted."""

    why: str

    def __bool__(self) -> bool:
        return self.why == "finished"


def cell_path(results: Path, table: Home, recipe: Recipe) -> Path:
    return results / _kept_in(table, recipe) / f"{recipe.key}.json"


def _kept_in(table: Home, recipe: Recipe) -> str:
    return table if isinstance(table, str) else table(recipe)


def model_path(results: Path, recipe: Recipe) -> Path:
    return results / "models" / f"{recipe.key}.safetensors"


def work_folder(results: Path, recipe: Recipe) -> Path:
    return results / "work" / recipe.key


def read(path: Path) -> dict[str, Any] | None:
    """A cell, if it is there."""
    if not path.is_file():
        return None
    remedy = "remove it to run it again"
    found = read_json(path, remedy)
    try:
        cell: dict[str, Any] = typed(_Cell, found)
        recipe = Recipe.from_dict(cell["recipe"], "its recipe")
        if not 0 <= cell["accuracy"] <= 1:
            raise ValueError(f"accuracy is {cell['accuracy']:g}, not a share")
        if not all(look["hfc_lfc"] and look["abs_cos"] for look in cell.get("smoothing", [])):
            raise ValueError("smoothing has a look without numbers")
    except ValueError as error:
        raise InputError(f"{path} is no cell of ours or is damaged ({reason(error)}); {remedy}") from error
    if recipe.key != path.stem:
        raise InputError(f"{path} holds the recipe {recipe.key}, not the one it is named by; name it {recipe.key}.json")
    return {**cell, "recipe": recipe.to_dict()}


def write(path: Path, found: dict[str, Any]) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json_text(found, indent=1) + "\n", encoding="utf-8")


def all_cells(results: Path, table: str) -> list[dict[str, Any]]:
    """Every cell of a table that is there, whatever its recipe."""
    found = (read(path) for path in sorted((results / table).glob("*.json")))
    return [cell for cell in found if cell is not None]


def missing(recipes: Iterable[Recipe], results: Path, table: Home) -> list[Recipe]:
    return [recipe for recipe in recipes if read(cell_path(results, table, recipe)) is None]


def fill(
    recipes: Sequence[Recipe],
    splits: Splits,
    results: Path,
    table: Home,
    *,
    data: str = "",
    at_once: int = 1,
    minutes: float | None = None,
    device: str | None = None,
    on_nan: OnNan = "retry",
    force: bool = False,
    told: Told | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Filled:
    """Run the cells that are missing; whether all are there now, or why not.

    at_once: so many together, each in a process of its own, which loads `data` itself. force: even where another
    process fills cells of this directory.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    say = told or (lambda _line: None)
    with written(results, force, say):
        _tidy(recipes, results, table)
        jobs = [Job(recipe, work_folder(results, recipe)) for recipe in missing(recipes, results, table)]
        if at_once > 1 and len(jobs) > 1:
            outcomes = run_many(
                jobs, data, at_once=at_once, minutes=minutes, device=device, on_nan=on_nan, force=force, told=say
            )
            for outcome in outcomes:
                if outcome.job.finished:
                    _keep(outcome.job, splits, results, table, device)
            if failed := [outcome for outcome in outcomes if outcome.failed]:
                first = failed[0]
                raise InputError(f"{len(failed)} of {len(jobs)} runs failed; {first.job.recipe.title} {first.said}")
            stopped = next((outcome.why for outcome in outcomes if outcome.why), "out of time")
            return Filled(stopped if missing(recipes, results, table) else "finished")
        for job in jobs:
            say(f"{job.recipe.title}: begins")
            left = None if end is None else max(0.0, (end - time.monotonic()) / 60)
            result = loop.train(
                job.recipe,
                splits,
                device=device,
                folder=job.folder,
                resume=True,
                minutes=left,
                watch=Watch(),
                progress=progress,
                on_nan=on_nan,
                force=force,
                told=say,
            )
            for retry in result.retries:
                back = f"went back to step {retry['back_to_step']:,}, with other draws: {retry['said']}"
                say(f"{job.recipe.title}: {back}")
            if not result.finished:
                say(f"{job.recipe.title}: {result.why} after {result.step:,} of {result.steps:,} steps")
                return Filled(result.why)
            _keep(job, splits, results, table, device)
            say(f"{job.recipe.title}: accuracy {result.accuracy:.2%}")
    return Filled("finished")


@contextmanager
def written(results: Path, force: bool = False, told: Told | None = None) -> Iterator[None]:
    """A results directory, made if it is not there, with this process as its one writer."""
    with lock.held(results, force=force, told=told):
        yield


def _tidy(recipes: Iterable[Recipe], results: Path, table: Home) -> None:
    """Remove what a killed process left: of the files it was writing, and runs whose cells are there."""
    for recipe in recipes:
        cell = cell_path(results, table, recipe)
        for final in (cell, model_path(results, recipe)):
            for left in final.parent.glob(f".{final.stem}*{final.suffix}"):
                left.unlink(missing_ok=True)
        if cell.is_file():
            shutil.rmtree(work_folder(results, recipe), ignore_errors=True)


def _keep(job: Job, splits: Splits, results: Path, table: Home, device: str | None) -> None:
    """The finished run as a cell and a model, and no run any more."""
    result = loop.train(job.recipe, splits, folder=job.folder, device=device, resume=True)  # over: read from its files
    model = model_path(results, job.recipe)
    with whole_file(model) as temporary:
        shutil.copyfile(job.folder / loop.MODEL, temporary)
    speeds = [row["images_per_s"] for row in result.epochs]
    step = max(1, math.ceil(len(result.smoothing) / _LOOKS))
    cell = {
        "table": _kept_in(table, job.recipe),
        "title": job.recipe.title,
        "accuracy": result.accuracy,
        "seed": job.recipe.seed,
        "test_images": len(splits.test),
        "seconds": round(result.seconds, 1),
        "images_per_s": round(statistics.median(speeds), 1) if speeds else None,
        "recipe": job.recipe.to_dict(),
        **provenance(device),
        **({"retries": result.retries} if result.retries else {}),
        "epochs": [{k: row[k] for k in ("epoch", "loss", "lr", "accuracy") if k in row} for row in result.epochs],
        "smoothing": result.smoothing[::-1][::step][::-1],
    }
    write(cell_path(results, table, job.recipe), cell)
    shutil.rmtree(job.folder, ignore_errors=True)


def provenance(device: str | None = None) -> dict[str, Any]:
    """Versions, hardware and the day."""
    place = loop.device_named(device)
    on_gpu = place.type == "cuda"
    hardware = torch.cuda.get_device_name(place) if on_gpu else f"{_processor()}, {os.cpu_count()} cores"
    versions = {"oversmooth": oversmooth.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"hardware": hardware, "versions": versions, "day": time.strftime("%Y-%m-%d", time.gmtime())}


def _processor() -> str:
    return platform.processor() or platform.machine()


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation over seeds (n − 1), which one seed has not."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def shown(values: Sequence[float], digits: int = 2) -> str:
    """Shares as ``32.47 ± 0.9 (3)``, in %, with the number of seeds; a dash for none."""
    if not values:
        return "–"
    mean, spread = mean_and_spread([100 * value for value in values])
    return f"{mean:.{digits}f}{'' if spread is None else f' ± {spread:.2f}'} ({len(values)})"


def chosen(recipes: Sequence[Recipe], words: Sequence[str]) -> list[Recipe]:
    """Those that the words name: a variant (plain), a share (10%), a depth (depth24), or several of them
    (plain:10%); all if there are no words.
    """
    if not words:
        return list(recipes)
    found: list[Recipe] = []
    for word in (part for text in words for part in text.replace(",", " ").split()):
        fits = [recipe for recipe in recipes if _fits(recipe, word)]
        if not fits:
            variants, shares = sorted({r.variant for r in recipes}), sorted({f"{100 * r.share:g}%" for r in recipes})
            depths = [f"depth{depth}" for depth in sorted({r.shape.depth for r in recipes})]
            more = f", depths ({', '.join(depths)})" if len(depths) > 1 else ""
            raise InputError(
                f"no cell is called {word!r}; name variants ({', '.join(variants)}), shares ({', '.join(shares)}){more}"
                f", or several of them, such as {recipes[0].variant}:{depths[-1] if more else shares[0]}"
            )
        found += [recipe for recipe in fits if recipe not in found]
    return found


def _fits(recipe: Recipe, word: str) -> bool:
    share = f"{100 * recipe.share:g}"
    own = (recipe.variant, share, f"{share}%", f"depth{recipe.shape.depth}")
    return all(part in own for part in word.split(":"))


def like_those_there(recipes: Sequence[Recipe], results: Path, table: str) -> list[Recipe]:
    """Quick recipes fitted to the data set of the cells that are there: without its images, only they know it."""
    kept = [Recipe.from_dict(cell["recipe"]) for cell in all_cells(results, table)]
    if not kept or not table.endswith("quick"):
        return list(recipes)
    one, sizes = kept[0], ("image", "channels", "classes")
    fitted = {name: getattr(one.shape, name) for name in sizes}
    return [
        dataclasses.replace(
            recipe, data=one.data, mean=one.mean, std=one.std, shape=dataclasses.replace(recipe.shape, **fitted)
        )
        for recipe in recipes
    ]


def status(results: Path) -> list[tuple[str, str, str, str, str]]:
    """What is there: table, cell, accuracy, where it was run, when; runs on their way too."""
    rows = []
    tables = [path for name in ("table*", "depth*") for path in sorted(results.glob(name)) if path.is_dir()]
    for folder in tables:
        for cell in sorted(all_cells(results, folder.name), key=lambda c: (c["title"], c["recipe"]["seed"])):
            accuracy = f"{100 * cell['accuracy']:.2f} %"
            rows.append((folder.name, cell["title"], accuracy, cell["hardware"], cell["day"]))
    for folder in sorted(path for path in (results / "work").glob("*") if path.is_dir()):
        try:
            recipe = checkpoint.recipe_of(folder)
        except InputError:  # who goes on with it is told what is wrong
            rows.append(("on its way", folder.name, "damaged", "–", "–"))
            continue
        if recipe is not None:
            rows.append(("on its way", recipe.title, checkpoint.how_far(folder), "–", "–"))
    return rows


def with_options(recipes: Sequence[Recipe], **changes: Any) -> list[Recipe]:
    """The same cells with named options of the recipe's unknowns: wiring, initialisation; None leaves one as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    return [dataclasses.replace(recipe, **given) for recipe in recipes]
