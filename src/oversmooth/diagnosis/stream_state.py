"""What a streamed diagnosis holds between two blocks: hidden states, and all that lets a stopped one resume there."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from oversmooth.anatomy.layer import Anatomy
from oversmooth.diagnosis.finished import question
from oversmooth.diagnosis.one_input import _Groups
from oversmooth.inputs.batches import Batch
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import cache_folder, whole_file
from oversmooth.theory.reasons import Reason
from oversmooth.trace.plans import BlockPlan, Branch, Stage
from oversmooth.trace.reducers.base import PassFacts
from oversmooth.trace.reducers.directions import Directions
from oversmooth.trace.reducers.heads import HeadNumbers
from oversmooth.trace.tracing import _Batch
from oversmooth.trace.valid import ValidTokens

Where = Literal["device", "memory", "disk"]
# All that a file may hold besides tensors and plain containers.
_CLASSES: list[Any] = [
    BlockPlan, Branch, Stage, PassFacts, Directions, HeadNumbers, ValidTokens, Reason, _Batch, _Groups,
]  # fmt: skip
_FORM = 2  # grows where a `STATE` changes: what another version began is begun anew
_OBSERVED = ("layer_scale", "on_branch", "factor", "keep", "feed")  # of a layer, as a plan has it


def folder_for(files: Iterable[Path], batches: Sequence[Batch | Tensor], *settings: object) -> Path:
    """The folder in the cache for these weight files, inputs and options."""
    digest = hashlib.sha256(question(files, _FORM, *settings))
    for batch in batches:
        for x in [batch] if isinstance(batch, Tensor) else [*batch.inputs.values(), batch.special]:
            if x is None:
                continue
            digest.update(str((tuple(x.shape), x.dtype)).encode())
            digest.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return cache_folder() / f"stream-{digest.hexdigest()[:24]}"


class States:
    """What inputs are between two blocks, by the number of their batch.

    where: they are kept; on disk in this folder, by the number of blocks done.
    """

    def __init__(self, where: Where, device: torch.device, folder: Path) -> None:
        self.where, self.device, self.folder, self.done = where, device, folder, 0
        self.held: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> Tensor | None:
        if self.where != "disk":
            return self.held[number].to(self.device) if number in self.held else None
        return load_file(self._path(self.done, number))["y"].to(self.device) if self.done else None

    def __setitem__(self, number: int, y: Tensor) -> None:
        """What a batch is after the next block."""
        if self.where != "disk":
            self.held[number] = y if self.where == "device" else y.cpu()
            return
        path = self._path(self.done + 1, number)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"y": y.contiguous().cpu()}, path)
        except Exception as error:  # safetensors has its own for a full disk
            path.unlink(missing_ok=True)
            raise InputError(
                f"hidden states cannot be written to {self.folder} ({reason(error)}); free space and run it again to "
                "resume, or set OVERSMOOTH_CACHE"
            ) from error

    def _path(self, done: int, number: int) -> Path:
        return self.folder / f"{done}" / f"{number}.safetensors"

    def advance(self) -> None:
        """All batches have passed through a block."""
        self.done += 1

    def drop(self) -> None:
        """What is not needed once progress is saved."""
        shutil.rmtree(self.folder / f"{self.done - 1}", ignore_errors=True)


class Progress:
    """What was found in the blocks that are done, saved after each: the attributes of these objects that their
    ``STATE`` names.
    """

    def __init__(self, folder: Path, anatomy: Anatomy, holders: list[Any]) -> None:
        self.path, self.holders = folder / "progress.pt", holders
        self.layers = {layer.name: layer for layer in anatomy}

    def save(self, following: str, plans: list[BlockPlan], states: States) -> None:
        """Save it, where that is possible: else those blocks are done again another time."""
        found = [_plain(holder) for holder in self.holders]
        kept = [dataclasses.replace(plan, layer=None) for plan in plans]  # type: ignore[arg-type]
        layers = [plan.layer for plan in plans]
        seen = [layer and (layer.name, {name: getattr(layer, name) for name in _OBSERVED}) for layer in layers]
        file = dict(following=following, found=found, plans=kept, layers=seen, done=states.done, held=states.held)
        with contextlib.suppress(InputError, OSError, RuntimeError):  # the last is torch's own of a full disk
            with whole_file(self.path) as temporary:
                torch.save(file, temporary)
            states.drop()

    def resume(self, plans: list[BlockPlan], states: States) -> str | None:
        """Put everything back; the name of the next block, None where there is nothing."""
        try:
            with torch.serialization.safe_globals(_CLASSES):
                file = torch.load(self.path, weights_only=True)
        except Exception:  # none, as a rule; a damaged one is as good as none
            return None
        for holder, found in zip(self.holders, file["found"], strict=True):
            _restore(holder, found)
        for plan, seen in zip(file["plans"], file["layers"], strict=True):
            layer = seen and dataclasses.replace(self.layers[seen[0]], **seen[1])
            plans.append(dataclasses.replace(plan, layer=layer))
        states.done, states.held = file["done"], file["held"]
        return file["following"]

    def forget(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path.parent, ignore_errors=True)


def _plain(value: Any) -> Any:
    """An object's state; a dictionary that makes its own entries, as one that does not."""
    if hasattr(value, "STATE"):
        return {name: _plain(getattr(value, name)) for name in value.STATE if hasattr(value, name)}
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _restore(holder: Any, found: dict[str, Any]) -> None:
    for name, value in found.items():
        current = getattr(holder, name, None)
        if hasattr(current, "STATE"):
            _restore(current, value)
        elif isinstance(current, dict):
            current.update(value)
        else:
            setattr(holder, name, value)
