"""A cell of a table of trained models: a recipe and the file that keeps what came of it, named by the recipe's key.

results/table2/<key>.json is a cell, results/work/<key>/ a run on its way, results/models/<key>.safetensors its model in
the end. Machines that fill different cells of one table need only put their files together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import read_json, write_text
from oversmooth.safety.foreign import json_text
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe

Folder = str | Callable[[Any], str]
"""The folder of the results that keeps cells: one for all, or one that the recipe decides, where tables share cells."""
Cell = dict[str, Any]
Available = dict[Any, Cell]
"""The cells that are there by their recipe, in the order of their table's recipes."""


class _Snapshot(TypedDict):
    hfc_lfc: list[float]
    abs_cos: list[float]


class _Epoch(TypedDict):
    loss: float


class _Counts(TypedDict):
    smooth: int
    rough: int
    tie: int
    undecided: int


class _Prediction(TypedDict):
    agree: int
    apart: list[int]


_NEEDED = {"": ("title", "hardware", "day", "recipe"), "rules": ("rules", "notions", "prediction")}
"""Keys that every cell must have, and those of one table."""
_PERPLEXITIES = [f"{split}_perplexity{how}" for split in ("valid", "test") for how in ("", "_sliding")]
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("title", "hardware", "day", "table", "remark", "checkpoint_sha256", "data_sha256"), str),
    **dict.fromkeys(("accuracy", "miou", "miou_multiscale", "pixel_accuracy", "seconds"), float),
    **dict.fromkeys((*_PERPLEXITIES, "pretraining_perplexity"), float),
    **dict.fromkeys(("rounded", "majority"), dict[str, float]),  # scores of the bf16 file; of the most frequent answer
    "recipe": dict[str, Any],
    "at_once": int,
    "machines": list[dict[str, Any]],
    "smoothing": list[_Snapshot],
    "epochs": list[_Epoch],
    "mean": list[float],  # of table 3: by intensity of corruption
    "rules": dict[str, _Counts],
    "notions": dict[str, list[float | None]],
    "prediction": _Prediction,
}
"""What is read of a cell; its file may hold more."""


def check_there(results: Path) -> None:
    """Refuse to show cells of a folder that is not there: a table of nothing says that nothing was run."""
    if not results.is_dir():
        kind = "is no folder" if results.exists() else "is not there"
        raise InputError(f"{results} {kind}, so there are no cells to show; give the folder that keeps them, --results")


def folder_name(folder: Folder, recipe: BaseRecipe) -> str:
    return folder if isinstance(folder, str) else folder(recipe)


def cell_path(results: Path, folder: Folder, recipe: BaseRecipe) -> Path:
    return results / folder_name(folder, recipe) / f"{recipe.key}.json"


def model_path(results: Path, recipe: BaseRecipe) -> Path:
    return results / "models" / f"{recipe.key}.safetensors"


def work_folder(results: Path, recipe: BaseRecipe) -> Path:
    return results / "work" / recipe.key


def read(path: Path) -> Cell | None:
    """A cell, if it is there."""
    if not path.is_file():
        return None
    remedy = "remove it to run it again"
    content = read_json(path, remedy)
    try:
        cell: Cell = {key: typed(_TYPES.get(key, Any), value, key) for key, value in typed(Cell, content).items()}
        for key in (*_NEEDED[""], *_NEEDED.get(cell.get("table", ""), ())):
            if not cell.get(key):
                raise ValueError(f"it has no {key}")
        recipe = read_recipe(cell["recipe"], "its recipe")
        if not 0 <= cell.get("accuracy", 0) <= 1:
            raise ValueError(f"accuracy is {cell['accuracy']:g}, not a share")
        if cell.get("at_once", 1) < 1:
            raise ValueError(f"at_once is {cell['at_once']}, not a number of runs")
        if not all(snapshot["hfc_lfc"] and snapshot["abs_cos"] for snapshot in cell.get("smoothing", [])):
            raise ValueError("smoothing has a look without numbers")
        try:
            recipe.describe(cell)
        except (KeyError, TypeError) as error:
            raise ValueError(f"it has no score {error}") from error
    except ValueError as error:
        raise InputError(f"{path} is no cell of ours or is damaged ({reason(error)}); {remedy}") from error
    if recipe.key != path.stem:
        raise InputError(f"{path} holds the recipe {recipe.key}, not the one it is named by; name it {recipe.key}.json")
    return {**cell, "recipe": recipe.to_dict()}


def read_folder(folder: Path, damaged: list[str] | None = None) -> list[Cell]:
    """Every cell of a folder, whatever its recipe. damaged: receives a sentence for each that cannot be read, in place
    of the first one's error.
    """
    cells = []
    for path in sorted(folder.glob("*.json")):
        try:
            if (cell := read(path)) is not None:
                cells.append(cell)
        except InputError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
    return cells


def read_cells(recipes: Iterable[BaseRecipe], results: Path, folder: Folder) -> Available:
    cells = {recipe: read(cell_path(results, folder, recipe)) for recipe in recipes}
    return {recipe: cell for recipe, cell in cells.items() if cell is not None}


def by_seed(cells: Available, name: str, factor: float = 1.0) -> dict[int, float]:
    """A score of a case's cells; cells without it are left out."""
    return {recipe.seed: factor * cell[name] for recipe, cell in cells.items() if cell.get(name) is not None}


def scores(cells: Available, name: str, factor: float = 1.0) -> list[float]:
    """Over seeds."""
    return [*by_seed(cells, name, factor).values()]


def paired(these: Available, those: Available, name: str, factor: float = 1.0) -> list[float]:
    """Differences of a score by seed, where both are there."""
    ours, theirs = by_seed(these, name, factor), by_seed(those, name, factor)
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def allowed(score: str, value: float, *, share: float = 1.0, tested: int = 0, rounded: bool = False) -> float:
    """How far a score may lie from the same score again, of the same file on another device.

    share: of the images that it was of, where only some are tested: three standard errors are allowed for that. tested:
    the number of images now; 0 where it is none of images. rounded: whether one of the two is of the weights before
    they were rounded to bf16; of few images, two may change sides.
    """
    if "perplexity" in score:
        return (0.03 if rounded else 0.01) * value
    sampling = 3 * math.sqrt(max(value * (1 - value), 1e-4) * (1 - share) / max(1, tested))
    return 0.003 + sampling + (max(0.005, 2 / tested if tested else 0.0) if rounded else 0.0)


def missing(recipes: Sequence[BaseRecipe], results: Path, folder: Folder) -> list[Any]:
    there = read_cells(recipes, results, folder)
    return [recipe for recipe in recipes if recipe not in there]


def write(path: Path, cell: Cell) -> None:
    write_text(path, json_text(cell, indent=1) + "\n")


Names = Callable[[Any], Mapping[str, str]]
"""What a recipe's cell is called, by what the names are of: ``{"variant": "plain", "share": "10%"}``."""


def names_of(recipe: Any) -> dict[str, str]:
    """Of a cell whose model sees images."""
    return {"variant": recipe.variant, "share": f"{100 * recipe.share:g}%", "depth": f"depth{recipe.shape.depth}"}


def chosen(recipes: Sequence[Any], words: Sequence[str], names: Names = names_of) -> list[Any]:
    """Those that the words name: a variant (plain), a share (10%), a depth (depth24), or several of them
    (plain:10%); all if there are no words.
    """
    if not words:
        return list(recipes)
    named = {recipe: names(recipe) for recipe in recipes}
    known = {
        recipe: {*own.values(), *(name.removesuffix("%") for name in own.values())} for recipe, own in named.items()
    }
    wanted: dict[Any, None] = {}
    for word in (part for text in words for part in text.replace(",", " ").split()):
        fits = [recipe for recipe in recipes if known[recipe].issuperset(word.split(":"))]
        if not fits:
            kinds = {kind: list(dict.fromkeys(own[kind] for own in named.values())) for kind in named[recipes[0]]}
            kinds = {kind: choices for kind, choices in kinds.items() if len(choices) > 1 or kind == "variant"}
            listed = ", ".join(f"{kind}s ({', '.join(choices)})" for kind, choices in kinds.items())
            example = ":".join(choices[-1] for choices in kinds.values())
            raise InputError(f"no cell is called {word!r}; name {listed}, or several of them, such as {example}")
        wanted |= dict.fromkeys(fits)
    return list(wanted)


def fitted_to_cells(recipes: Sequence[Any], results: Path, folder: Folder) -> list[Any]:
    """Quick recipes fitted to the data set of the cells that are there: without its images, only they know it."""
    cells = read_folder(results / folder_name(folder, recipes[0]))
    like = read_recipe(cells[0]["recipe"]) if cells else None
    return [recipe if like is None else recipe.fitted_like(like) for recipe in recipes]
