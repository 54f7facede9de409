"""A diagnosis of a model whose blocks are read one at a time: every input passes through a block before the next."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from oversmooth.inputs.batches import Batch
from oversmooth.models.on_disk import OnDisk
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.machine import free_memory, in_words
from oversmooth.trace import Reducer
from oversmooth.trace.feed import Runner
from oversmooth.trace.plans import Plan, SampleBlock
from oversmooth.trace.reducers.base import PassFacts
from oversmooth.trace.streaming import OTHER_WAYS, Steps, StreamedTrace
from oversmooth.trace.study import Study
from oversmooth.trace.valid import LeftOut

_ARRAYS = 30  # of the size of a batch's residual stream, in float32, that a block and its trace hold at their peak
_SHARE = 0.8  # of free memory that hidden states may take
Where = Literal["device", "memory", "disk"]
_PLACES = {"device": "on the device", "memory": "in memory", "disk": "on disk"}


@dataclass
class Placement:
    """Where everything is while blocks are streamed."""

    blocks: int
    block: int
    """Bytes of the largest."""
    needed: int
    """Bytes of weights and of one batch on the device."""
    states: int
    """Bytes of what all inputs are between two blocks."""
    where: Where
    """Where that is kept."""

    def __str__(self) -> str:
        kept = f"hidden states ({in_words(self.states)}) {_PLACES[self.where]}"
        return f"{self.blocks} blocks of {in_words(self.block)}, one at a time; {in_words(self.needed)} at once; {kept}"


def placement(disk: OnDisk, run: Runner, batches: Sequence[Batch | Tensor]) -> Placement:
    """What streaming these inputs needs; InputError where that is not there."""
    names = [layer.block for layer in run.anatomy]
    entering = Steps(dict(disk.model.named_modules(remove_duplicate=False)), names).entering(lambda: run(batches[0]))
    lengths = [_inputs(batch) for batch in batches]
    states = entering.nbytes * sum(lengths) // max(1, lengths[0])
    batch = _ARRAYS * 4 * entering.numel() * max(lengths) // max(1, lengths[0])
    device, host = _free(disk.device), free_memory()
    most, needed = device if disk.most is None else min(device, disk.most), disk.needed + batch
    if needed > most:
        raise InputError(
            f"{disk.name}: a block and the next one, what is outside blocks, and a batch need {in_words(needed)}, and "
            f"{in_words(most)} may be used; give fewer inputs per pass (--batch 1), or a smaller --dtype"
        )
    apart = disk.device.type != "cpu"
    free = shutil.disk_usage(tempfile.gettempdir()).free
    where: Where = "device" if needed + states < _SHARE * most else "memory"
    if where == "memory" and (not apart or states > _SHARE * host):
        where = "disk"
    if where == "disk" and states > _SHARE * free:
        raise InputError(
            f"{disk.name}: hidden states need {in_words(states)}, more than memory holds, and {tempfile.gettempdir()} "
            f"has {in_words(free)} free; give fewer inputs, or a TMPDIR with more space"
        )
    return Placement(len(names), disk.largest, needed, states, where)


def _inputs(batch: Batch | Tensor) -> int:
    return len(batch)


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


class States:
    """What inputs are between two blocks, by the number of their batch."""

    def __init__(self, where: Where, device: torch.device) -> None:
        self.where, self.device = where, device
        self._held: dict[int, Tensor] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="oversmooth-") if where == "disk" else None

    def __getitem__(self, number: int) -> Tensor | None:
        if self._folder is not None and (path := self._path(number)).exists():
            return load_file(path)["y"].to(self.device)
        kept = self._held.get(number)
        return None if kept is None else kept.to(self.device)

    def __setitem__(self, number: int, y: Tensor) -> None:
        if self._folder is None:
            self._held[number] = y if self.where == "device" else y.cpu()
            return
        try:
            save_file({"y": y.contiguous().cpu()}, self._path(number))
        except Exception as error:  # safetensors has its own for a full disk
            with suppress(OSError):
                self._folder.cleanup()
            where = tempfile.gettempdir()
            raise InputError(
                f"hidden states cannot be written to {where} ({reason(error)}); free space, or set TMPDIR"
            ) from error

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, f"{number}.safetensors")

    def close(self) -> None:
        """Remove them."""
        self._held.clear()
        if self._folder is not None:
            self._folder.cleanup()


OnBatch = Callable[[Batch | Tensor, Any], None]


@dataclass
class Streamed:
    """All blocks of a model, one at a time, over one input that shows their plan and over all batches.

    `blocks` yields what the one input showed of each block, and `last` is that of the last, while it is in memory.
    """

    disk: OnDisk
    run: Runner
    attention: bool
    one: Batch | Tensor
    batches: list[Batch | Tensor]
    reducers: Sequence[Reducer]
    plan: Plan
    study: Study
    left_out: LeftOut | None
    states: States
    on_output: OnBatch
    """Called with each batch and what the model returns for it."""
    on_progress: Callable[[int, int, int], None]
    """Called with (blocks done, of how many, inputs done in this one)."""
    facts: PassFacts = field(default_factory=PassFacts)

    def blocks(self) -> Iterator[tuple[SampleBlock, bool]]:
        """What the one input showed of each block, and whether it is the last."""
        order = [layer.block for layer in self.run.anatomy]
        steps = Steps(self.study.modules, order)
        name: str | None = steps.first(lambda: self.run(self.one))
        trace: StreamedTrace | None = None
        call = 0
        try:
            while name is not None:
                with self.disk.loaded(name, order[call + 1] if call + 1 < len(order) else None):
                    following = self._study(steps, call, name)
                    trace = trace or StreamedTrace(self.disk.model, self.plan, self.reducers, self.left_out)
                    self._trace(steps, trace, call, following)
                    if call:
                        yield self._taken(call - 1), False
                    if following is None:
                        yield self.study.blocks[call], True
                name, call = following, call + 1
        finally:
            self.disk.close()
            self.states.close()
        assert trace is not None
        trace.finish()
        self.facts = trace.facts

    def _study(self, steps: Steps, call: int, name: str) -> str | None:
        with self.study.watching(name), steps.at(call):
            left, _, following = steps.run(self.states[-1], lambda: self.run(self.one))
        self.states[-1] = left
        self.plan.blocks.append(self.study.blocks[call].plan)
        if self.study.apart and self.study.apart[0] and self.study.windows:
            raise InputError(f"{name} connects tokens that the first block keeps apart; {OTHER_WAYS}")
        return following

    def _trace(self, steps: Steps, trace: StreamedTrace, call: int, expected: str | None) -> None:
        done = 0
        with trace.block(call), steps.at(call):
            for number, batch in enumerate(self.batches):
                self.on_progress(call, len(self.run.anatomy), done)
                special = batch.special if isinstance(batch, Batch) else None
                with trace.batch(call, number, special):
                    left, out, following = steps.run(self.states[number], lambda batch=batch: self.run(batch))  # type: ignore[misc]
                if following != expected:
                    raise InputError(f"block {call + 1} is not followed by {expected} for every input; give others")
                if following is not None:
                    self.states[number] = left
                else:
                    self.on_output(batch, out)
                done += trace.count(number)

    def _taken(self, call: int) -> SampleBlock:
        """What a block showed; its arrays are not kept any longer."""
        shown, nothing = self.study.blocks[call], torch.empty(0)
        self.study.blocks[call] = replace(shown, A=None, x=nothing, y=nothing, args=(), kwargs={})
        return shown
