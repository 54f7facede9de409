"""A run on disk, whole at every moment, and light enough to travel: the last two checkpoints, each a folder of pieces.

``RUN/checkpoint/000007/`` has the bytes of a safetensors file cut into ``part-000``, ``part-001``, ... of 15 MB at
most, and a ``manifest.json`` with their sizes and checksums, the recipe, and what a run knows beside its arrays. It
gets its name in one rename, after all of it is on the disk. A run goes on on another machine from a copy of its folder;
a copy that lacks a byte is told by its checksums, and the checkpoint before it is taken.

The arrays are the model, AdamW's moments, the number of the step (which is the schedule's position) and the generators'
states: 65 MB for ViT-Ti. ``RUN/checkpoint.safetensors``, as earlier versions wrote it, is read too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import parse_json, read_json, whole_folder
from oversmooth.safety.machine import check_fits
from oversmooth.safety.signals import held_back
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.recipe import BaseRecipe, read_recipe

FOLDER, MANIFEST = "checkpoint", "manifest.json"
SINGLE = "checkpoint.safetensors"
"""What earlier versions wrote."""
PIECE = 15_000_000
"""Bytes of a piece at most: what goes through most doors, a mail or a repository among them."""
_KEPT = 2
_VERSION = 2
_ALWAYS = ("position", "losses", "failed", "generator.order", "generator.augment", "generator.torch")


class _Damaged(Exception):
    """What is wrong with a checkpoint, in words."""


class Retry(TypedDict):
    """Each time a run went back: which of them, from where, to where, and why."""

    retry: int
    failed_at_step: int
    back_to_step: int
    said: str


class Facts(TypedDict, total=False):
    """What a run knows beside its arrays."""

    seconds: float
    epoch_seconds: float
    accuracy: float | None
    """As earlier versions wrote it."""
    scores: dict[str, float]
    logs: dict[str, int]
    """Bytes of each log that belong to it."""
    retries: list[Retry]


class _Piece(TypedDict):
    name: str
    bytes: int
    sha256: str


class _Manifest(TypedDict):
    step: int
    steps_per_epoch: int
    recipe: dict[str, Any]
    facts: Facts
    pieces: list[_Piece]


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from."""

    path: Path
    recipe: BaseRecipe
    arrays: dict[str, Tensor] = field(repr=False)
    facts: Facts
    damaged: tuple[str, ...] = ()
    """What is wrong with those that were written after it."""


def save(folder: Path, recipe: BaseRecipe, arrays: dict[str, Tensor], facts: Facts, piece: int = PIECE) -> Path:
    """Write the run's next checkpoint; those before stay until it is whole, and the last of them after that too."""
    arrays = {**arrays, "generator.torch": torch.get_rng_state()}
    data = memoryview(safetensors.torch.save(arrays))
    parts = [data[first : first + piece] for first in range(0, len(data), piece)]
    pieces = [
        _Piece(name=f"part-{number:03d}", bytes=len(part), sha256=hashlib.sha256(part).hexdigest())
        for number, part in enumerate(parts)
    ]
    body = {
        "version": _VERSION,
        "step": int(arrays["position"]),
        "steps_per_epoch": len(arrays["losses"]),
        "recipe": recipe.to_dict(),
        "facts": facts,
        "pieces": pieces,
    }
    there = _folders(folder)
    path = folder / FOLDER / f"{1 + (_number(there[0]) if there else 0):06d}"
    with whole_folder(path) as temporary:
        for named, part in zip(pieces, parts, strict=True):
            _write(temporary / named["name"], part)
        _write(temporary / MANIFEST, json.dumps({**body, "sha256": _sum(body)}, indent=1, ensure_ascii=False).encode())
    for old in _all(folder)[_KEPT:]:
        _remove(old)
    return path


def load(folder: Path, recipe: BaseRecipe) -> Checkpoint | None:
    """The newest whole checkpoint of the run in this folder, if it has any; one of another recipe is refused."""
    damaged: list[str] = []
    for path in _all(folder):
        try:
            contents = _read(path)
        except _Damaged as error:
            damaged.append(str(error))
            continue
        if (differs := contents.recipe.difference(recipe)) is not None:
            raise InputError(
                f"{path} is of another recipe: {differs}; give the same settings to resume it, or another directory"
            )
        return Checkpoint(path, contents.recipe, contents.arrays, contents.facts, tuple(damaged))
    if damaged:
        raise _none_is_whole(damaged)
    return None


def is_there(folder: Path) -> bool:
    """Whether a run in this folder is on its way."""
    return bool(_all(folder))


def newest(folder: Path) -> Path | None:
    """The last checkpoint that was written."""
    return next(iter(_all(folder)), None)


def recipe_of(folder: Path) -> BaseRecipe | None:
    """The recipe of the run in this folder, if it has a checkpoint."""
    outline = _outline(folder)
    return None if outline is None else outline[0]


def how_far(folder: Path) -> str:
    """In words, for a folder with a checkpoint."""
    outline = _outline(folder)
    return "" if outline is None else f"epoch {outline[1]} of {outline[0].total_epochs}"


def tidy(folder: Path) -> None:
    """Remove what a killed process was writing, or removing."""
    for directory, pattern in ((folder, f".{FOLDER}-*"), (folder, ".model*.safetensors"), (folder / FOLDER, ".*")):
        for left in directory.glob(pattern):
            _remove(left)
    with contextlib.suppress(OSError):  # there is none, or it holds some
        (folder / FOLDER).rmdir()


def remove(folder: Path) -> None:
    """All checkpoints, in one rename: a run is on its way or it is not, whenever this is killed."""
    _sync(folder)  # what takes their place must be on the disk first
    (folder / SINGLE).unlink(missing_ok=True)
    if (folder / FOLDER).is_dir():
        aside = folder / f".{FOLDER}-gone"
        _remove(aside)
        (folder / FOLDER).rename(aside)
        _remove(aside)


def _folders(folder: Path) -> list[Path]:
    """Those in pieces, the newest first."""
    there = [path for path in (folder / FOLDER).glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]
    return sorted(there, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name)


def _all(folder: Path) -> list[Path]:
    """Every checkpoint, the newest first; an earlier version's is older than any in pieces."""
    single = folder / SINGLE
    return [*_folders(folder), *([single] if single.is_file() else [])]


def _none_is_whole(damaged: list[str]) -> InputError:
    others = f", and the {len(damaged) - 1} before it too" if len(damaged) > 1 else ""
    return InputError(f"{damaged[0]}{others}; copy the run again, or remove its checkpoints to start over")


def _outline(folder: Path) -> tuple[BaseRecipe, int] | None:
    """Recipe and whole epochs of the newest checkpoint whose outline can be read, without its arrays."""
    damaged: list[str] = []
    for path in _all(folder):
        try:
            if path.name == SINGLE:
                single = _read_single(path)
                return single.recipe, int(single.arrays["position"]) // len(single.arrays["losses"])
            manifest = _manifest(path)
            return _recipe(path, manifest["recipe"]), manifest["step"] // max(1, manifest["steps_per_epoch"])
        except _Damaged as error:
            damaged.append(str(error))
    if damaged:
        raise _none_is_whole(damaged)
    return None


def _read(path: Path) -> Checkpoint:
    if path.name == SINGLE:
        return _read_single(path)
    manifest = _manifest(path)
    recipe = _recipe(path, manifest["recipe"])
    needed = 3 * sum(piece["bytes"] for piece in manifest["pieces"])  # the pieces, joined, and the arrays
    check_fits(needed, f"reading {path}", "free some")
    data = b"".join(_read_piece(path, piece) for piece in manifest["pieces"])
    try:
        arrays = safetensors.torch.load(data)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise _Damaged(f"{path} is damaged ({reason(error, 80)})") from error
    return Checkpoint(path, recipe, _checked(path, arrays), manifest["facts"])


def _manifest(path: Path) -> _Manifest:
    """What the manifest says, if it is all there."""
    file = path / MANIFEST
    if not file.is_file():
        raise _Damaged(f"{file} is missing")
    try:
        body = typed(dict[str, Any], read_json(file, "copy it again"))
        if body.pop("sha256", None) != _sum(body):
            raise ValueError("its checksum differs")
        version = body.get("version")
        manifest: _Manifest | None = typed(_Manifest, body) if version == _VERSION else None
    except ValueError as error:
        raise _Damaged(f"{file} is damaged ({reason(error, 80)})") from error
    if manifest is None:
        raise InputError(f"{path} is of version {version} and this oversmooth reads version {_VERSION}; update it")
    return manifest


def _read_piece(path: Path, piece: _Piece) -> bytes:
    file = path / piece["name"]
    if not re.fullmatch(r"part-[0-9]+", piece["name"]) or not file.is_file():
        raise _Damaged(f"{file} is missing")
    try:
        size = file.stat().st_size
        if size != piece["bytes"]:
            raise _Damaged(f"{file} is damaged (it has {size:,} bytes of {piece['bytes']:,})")
        data = file.read_bytes()
    except OSError as error:
        raise _Damaged(f"{file} cannot be read ({error.strerror or error})") from error
    if hashlib.sha256(data).hexdigest() != piece["sha256"]:
        raise _Damaged(f"{file} is damaged (its checksum differs)")
    return data


def _read_single(path: Path) -> Checkpoint:
    try:
        with held_back(), safe_open(path, framework="pt") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
        recipe, facts = (parse_json(metadata[name], name, "write it again") for name in ("recipe", "facts"))
        checked: Facts = typed(Facts, facts)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise _Damaged(f"{path} is no checkpoint of ours or is damaged ({reason(error, 80)})") from error
    return Checkpoint(path, _recipe(path, recipe), _checked(path, arrays), checked)


def _recipe(path: Path, fields: Any) -> BaseRecipe:
    try:
        return read_recipe(fields, "its recipe")
    except InputError as error:
        raise _Damaged(f"{path} is damaged: {str(error).partition(';')[0]}") from error


def _checked(path: Path, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Refuse what is no state of a run; whether it is this run's is seen when its model is there."""
    for name in _ALWAYS:
        if name not in arrays:
            raise _Damaged(f"{path} is damaged (it has no array {name})")
    if arrays["position"].numel() != 1 or arrays["losses"].dim() != 1 or not len(arrays["losses"]):
        raise _Damaged(f"{path} is damaged (its position or its losses have another shape)")
    return arrays


def _sum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _write(path: Path, data: bytes | memoryview) -> None:
    path.write_bytes(data)


def _sync(folder: Path) -> None:
    """The names in a directory, which are on the disk when it is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
