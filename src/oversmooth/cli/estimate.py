"""How many inputs a diagnosis takes by default; memory and time of a streamed one, from its first block.

The factors are measured on one core: total time over that of a forward pass, for DeiT-Tiny, MiniLM, stories15m and a
random model of GPT-2's shape. They hold within a factor of about three.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from oversmooth.inputs.batches import Inputs
from oversmooth.models.loaded import DATA_COUNT, DEFAULT_COUNT, Loaded
from oversmooth.models.on_disk import OnDisk
from oversmooth.trace.feed import Runner

_LARGE = 300_000_000  # parameters from which a CPU gets fewer inputs by default
_FEW = 4
_TOKENS_AT_ONCE = 4096  # in a batch of text by default


def default_count(loaded: Loaded, has_data: bool) -> int:
    """Number of inputs where none is given."""
    large = sum(p.numel() for p in loaded.model.parameters()) >= _LARGE
    if large and next(loaded.model.parameters()).device.type == "cpu":
        return _FEW
    return DATA_COUNT if has_data else DEFAULT_COUNT


def default_batch(loaded: Loaded, length: int | None) -> int:
    """Inputs per forward pass where none is given."""
    return max(1, min(16, _TOKENS_AT_ONCE // length)) if length and loaded.kind == "text" else 16


def announcement(loaded: Loaded, disk: OnDisk, inputs: Inputs, settings: Mapping[str, Any]) -> str:
    """One line on where everything is kept while blocks are streamed, and on the time that takes: the first block is
    read, and run once on the first input. A GPU's work is not estimated.
    """
    from oversmooth.diagnosis.streamed import placement
    from oversmooth.trace.streaming import Steps

    run = Runner(loaded.model, disk.anatomy(settings.get("stack")))
    order = run.anatomy.order
    with torch.no_grad():
        batches = list(run.batches(inputs))
        line, one = f"{loaded.name}: {placement(disk, run, batches).words}", run.first_input(batches[0])
        steps = Steps(dict(loaded.model.named_modules(remove_duplicate=False)), order)
        started = time.perf_counter()
        with disk.loaded(order[0], None), steps.at(0):
            read = time.perf_counter()
            steps.run(None, lambda: run(one))
            ran = time.perf_counter()
    reading, seconds = ((after - before) * len(order) for before, after in ((started, read), (read, ran)))
    line += f"; by its first block: about {_shown(reading)} of reading"
    if disk.device.type == "cpu":
        line += f", {_shown(_seconds(seconds, inputs.count, settings))} of computing meanwhile"
    return line


def _seconds(one_pass: float, inputs: int, settings: Mapping[str, Any]) -> float:
    """Of a diagnosis."""
    if not settings.get("spectra", True):
        return one_pass * (15 + 5 * inputs)
    joined = 40 * min(settings.get("joined", 1), inputs)
    return one_pass * (30 + 3 * min(settings.get("depth", 48), 48) + joined + 8 * inputs)


def _shown(seconds: float) -> str:
    """
    >>> _shown(41), _shown(340), _shown(9000)
    ('41 s', '6 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
