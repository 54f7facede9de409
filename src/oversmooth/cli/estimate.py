"""Time and memory of a diagnosis, estimated from one timed forward pass of the first input.

The factors are measured on one core: total time over that of a forward pass, for DeiT-Tiny, MiniLM, stories15m and a
random model of GPT-2's shape. They hold within a factor of about three.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from oversmooth.anatomy import locate
from oversmooth.inputs.batches import Inputs
from oversmooth.models.loaded import DATA_COUNT, DEFAULT_COUNT, Loaded
from oversmooth.models.on_disk import OnDisk
from oversmooth.safety.machine import in_words
from oversmooth.safety.model_state import preserve_state
from oversmooth.trace.feed import Runner

_LARGE = 300_000_000  # parameters from which a CPU gets fewer inputs by default
_FEW = 4
_WORTH_SAYING = 20.0  # seconds of a diagnosis
_LIBRARIES = 500_000_000  # bytes of Python and its libraries
_ARRAYS = 30  # arrays of the size of a batch's residual stream, in float32, that a trace holds at its peak
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


def announcement(loaded: Loaded, inputs: Inputs, settings: Mapping[str, Any]) -> str:
    """One line on inputs, time and memory; empty if the diagnosis takes less than about 20 seconds, or runs on a GPU,
    where the factors were not measured. Where blocks are streamed, one line on where everything is kept, too.
    """
    if loaded.on_disk is not None:
        return _of_streaming(loaded, loaded.on_disk, inputs, settings)
    first = next(iter(inputs), None)
    if first is None or next(loaded.model.parameters()).device.type != "cpu":
        return ""
    try:
        one = {name: value[:1] for name, value in first.inputs.items()}
        one_pass, tokens, width = _timed(loaded, one, settings.get("stack"))
    except Exception:  # the diagnosis itself reports why the model does not run
        return ""
    seconds = _seconds(one_pass, inputs.count, settings)
    if seconds < _WORTH_SAYING:
        return ""
    weights = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
    memory = _LIBRARIES + 2 * weights + _ARRAYS * 4 * len(first) * tokens * width
    line = f"{loaded.name}: {inputs.count:,} input{'s' * (inputs.count > 1)} of {tokens:,} tokens: about "
    line += f"{_shown(seconds)}, {in_words(memory)}"
    fewer = max(1, inputs.count // 4)
    faster = {f"--inputs {fewer}": _seconds(one_pass, fewer, settings)}
    if settings.get("spectra", True):
        faster["--no-spectra"] = _seconds(one_pass, inputs.count, {**settings, "spectra": False})
    return line + "".join(f"; {how} takes {_shown(less)}" for how, less in faster.items() if less < 0.7 * seconds)


def _of_streaming(loaded: Loaded, disk: OnDisk, inputs: Inputs, settings: Mapping[str, Any]) -> str:
    """Time from the first block, which is read and run once on the first input; a GPU's work is not estimated."""
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


def _timed(loaded: Loaded, one: dict[str, torch.Tensor], stack: str | None) -> tuple[float, int, int]:
    """Seconds of a forward pass of one input, its tokens, and the width of the residual stream."""
    model = loaded.model
    layer = locate(model, stack=stack).layers[0]
    shapes: list[torch.Size] = []
    block = model.get_submodule(layer.block)
    dtype = next(model.parameters()).dtype
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in one.items()}
    handle = block.register_forward_pre_hook(lambda _, args: shapes.extend(a.shape for a in args[:1]))
    try:
        with torch.no_grad(), preserve_state(model):
            model(**given)  # the first pass also allocates
            started = time.perf_counter()
            model(**given)
            took = time.perf_counter() - started
    finally:
        handle.remove()
    return took, shapes[0][-2], layer.W_V.shape[1]


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
