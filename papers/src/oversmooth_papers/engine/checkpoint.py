"""The checkpoint of a run: one file, written under another name and then renamed.

If the process is killed, the old file or the new one is there; if the disk is full, the old one. The file,
``RUN/checkpoint.safetensors``, holds the model, the optimiser's moments, the number of the step and the states of the
generators: 65 MB for ViT-Ti. Its metadata hold the recipe, further facts of the run, and a checksum, so that a damaged
copy raises `InputError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain, parse_json, whole_file
from oversmooth.safety.machine import check_fits
from oversmooth.safety.signals import delay_signals
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe

NAME = "checkpoint.safetensors"
_REMEDY = "copy the run again, or remove it to start over"


class Retry(TypedDict):
    """One return to a checkpoint: its number, from which step, to which, and why."""

    retry: int
    failed_at_step: int
    back_to_step: int
    said: str


class Facts(TypedDict, total=False):
    """What a checkpoint holds besides arrays."""

    seconds: float
    epoch_seconds: float
    scores: dict[str, float]
    logs: dict[str, int]  # bytes of each log that belong to it
    retries: list[Retry]


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    arrays: dict[str, Tensor]
    facts: Facts


def save(folder: Path, recipe: BaseRecipe, arrays: dict[str, Tensor], facts: Facts) -> None:
    """Write the run's checkpoint in place of the one before, which stays until this one is on the disk."""
    arrays = {**arrays, "generator.torch": torch.get_rng_state()}
    words = {"recipe": json.dumps(recipe.to_dict()), "facts": json.dumps(facts)}
    with whole_file(folder / NAME) as temporary:
        save_file(arrays, temporary, {**words, "sha256": checksum(arrays, words)})


def load(folder: Path, recipe: BaseRecipe) -> Checkpoint | None:
    """The checkpoint of the run in this folder, if it has one; raises `InputError` for one of another recipe."""
    if (path := newest(folder)) is None:
        return None
    check_fits(path.stat().st_size, f"reading {path}", "free some")
    with _opened(path) as file:
        words, own = file.metadata() or {}, _recipe(file)
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if words.pop("sha256", "") != checksum(arrays, words):
            raise ValueError("its checksum differs")
        facts = typed(Facts, parse_json(words["facts"], "its facts", "write it again"))
    if (differs := own.difference(recipe)) is not None:
        remedy = "give the same settings to resume it, or another directory"
        raise InputError(f"{path} is of another recipe: {differs}; {remedy}")
    return Checkpoint(path, arrays, facts)


def newest(folder: Path) -> Path | None:
    path = folder / NAME
    return path if path.exists() else None


def recipe_of(folder: Path) -> BaseRecipe | None:
    if (path := newest(folder)) is None:
        return None
    with _opened(path) as file:
        return _recipe(file)


def how_far(folder: Path) -> str:
    if (path := newest(folder)) is None:
        return ""
    with _opened(path) as file:
        epoch = int(file.get_tensor("position")) // max(1, len(file.get_tensor("losses")))
        return f"epoch {epoch} of {_recipe(file).total_epochs}"


def remove(folder: Path) -> None:
    """The checkpoint, and what a process that was killed on another machine was writing."""
    (folder / NAME).unlink(missing_ok=True)
    for left in folder.glob(f".{Path(NAME).stem}.*"):
        left.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, or one sentence for whatever is wrong with it."""
    check_plain(path, _REMEDY)
    try:
        with delay_signals(), safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, LookupError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is damaged or no checkpoint ({reason(error, 80)}); {_REMEDY}") from error


def _recipe(file: Any) -> BaseRecipe:
    return read_recipe(parse_json((file.metadata() or {})["recipe"], "its recipe", "write it again"), "its recipe")


def checksum(arrays: dict[str, Tensor], words: dict[str, str]) -> str:
    """Of every name, type, shape and bit."""
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {tuple(arrays[name].shape)}".encode())
        digest.update(arrays[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
