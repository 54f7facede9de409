"""Where the numbers of a diagnosis come from: facts of the model, versions, settings, and notes about them."""

from __future__ import annotations

import datetime
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from oversmooth._version import __version__
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.results.facts import Provenance
from oversmooth.results.notes import MOST_NAMES, Note
from oversmooth.trace.plans import Plan
from oversmooth.trace.valid import LeftOut

_MOST_SKIPPED = 8  # skipped inputs that are named one by one


def mode(model: nn.Module) -> tuple[dict[str, bool], list[Note]]:
    """Whether the model is in train mode and drops anything: by a module, or by a function that a module hands its
    share to.
    """
    if not model.training:
        return {"training": False}, []
    shares = [m.p for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    shares += [v for m in model.modules() for k, v in vars(m).items() if "drop" in k and isinstance(v, float)]
    dropout = any(share > 0 for share in shares)
    note = Note("train_mode_with_dropout" if dropout else "train_mode")
    return {"training": True, "dropout": dropout}, [note]


def model_name(model: nn.Module) -> str:
    """The model's own name, or that of its class."""
    path = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    return Path(path).name or type(model).__name__


def input_kind(inputs: Any, first: Batch | Tensor) -> str:
    """Whether the model runs on images, on text, or on something else."""
    if isinstance(inputs, Inputs):
        return "image" if inputs.kind == "vision" else "text"
    given: Mapping[str, Tensor] = {"input_ids": first} if isinstance(first, Tensor) else first.inputs
    if any(is_image(x) for x in given.values()):
        return "image"
    ids = given.get("input_ids")
    return "text" if ids is not None and ids.ndim == 2 and not ids.is_floating_point() else "other"


def is_image(x: Tensor) -> bool:
    """Whether an array ``(b, channels, height, width)`` looks like images."""
    return x.ndim == 4 and x.is_floating_point() and x.shape[1] in (1, 3)


def provenance(
    started: float, device: torch.device | str, inputs: Any, tokens: list[int], ranks: int, left_out: LeftOut | None
) -> Provenance:
    """When, where and on what. started: `time.perf_counter` at the beginning; tokens: valid ones of every input; ranks:
    inputs whose ranks were asked for.
    """
    made: dict[str, Any] = {
        "oversmooth": __version__,
        "platform": platform.platform(),
        "device": str(device),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 2),
        "data": inputs.what if isinstance(inputs, Inputs) else "your own inputs",
        "inputs": len(tokens),
        "tokens": [min(tokens), max(tokens)],
        "rank_inputs": min(ranks, len(tokens)),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if left_out is not None:
        made["left_out"] = list(left_out.positions)
    for library in ("transformers", "timm"):
        if library in sys.modules:
            made[library] = str(getattr(sys.modules[library], "__version__", "unknown"))
    return cast("Provenance", made)


def input_notes(inputs: Any, tokens: list[int]) -> list[Note]:
    """Inputs that are too short, and those that could not be read."""
    short = sum(length < 2 for length in tokens)
    skipped = inputs.skipped if isinstance(inputs, Inputs) else []
    notes = [Note("short_inputs", short, len(tokens))] if short else []
    notes += [Note("skipped_input", text=text) for text in skipped[:_MOST_SKIPPED]]
    more = len(skipped) - _MOST_SKIPPED
    return [*notes, Note("more_skipped_inputs", more)] if more > 0 else notes


def plan_notes(plan: Plan) -> list[Note]:
    """Layers that did not run, norms that are not where names suggest, and layers that theory does not cover."""
    blocks = [block for block in plan.blocks if block.layer is not None]
    notes, ran = [], {block.layer.name for block in blocks}
    if idle := [layer.name for layer in plan.anatomy or () if layer.name not in ran]:
        notes.append(Note("idle_layers", len(idle), names=idle[:MOST_NAMES]))
    if differs := [b for b in blocks if b.layer.norm is not None and b.norm_position != b.layer.norm_position]:
        names = [block.layer.name for block in differs[:MOST_NAMES]]
        notes.append(Note("norm_elsewhere", len(differs), names=names, what=differs[0].norm_position))
    for why in dict.fromkeys(block.why_undecided for block in blocks if block.why_undecided):
        names = [block.layer.name for block in blocks if block.why_undecided == why]
        notes.append(Note("undecided_layers", len(names), len(blocks), names=names[:MOST_NAMES], reason=why))
    without = [block for block in blocks if block.norm_position == "pre" and not block.norm_agrees]
    for kind, known in (("norm_of_another_kind", True), ("norm_not_found", False)):
        if names := [block.layer.name for block in without if (block.layer.norm is not None) == known]:
            notes.append(Note(kind, len(names), len(blocks), names=names[:MOST_NAMES]))
    return notes
