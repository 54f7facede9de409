"""A diagnosis of a model whose blocks are read one at a time: every input passes through a block before the next."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oversmooth.diagnosis.observing import Reducers
from oversmooth.diagnosis.one_input import ExampleInput
from oversmooth.diagnosis.stream_state import Progress, States, Where
from oversmooth.inputs.batches import Batch
from oversmooth.models.on_disk import OnDisk
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import cache_folder
from oversmooth.safety.machine import free_memory, in_words
from oversmooth.trace.feed import Runner
from oversmooth.trace.plans import Plan, SampleBlock
from oversmooth.trace.reducers.base import PassFacts
from oversmooth.trace.streaming import OTHER_WAYS, Steps, StreamedTrace
from oversmooth.trace.study import Study, is_light
from oversmooth.trace.valid import LeftOut

_ARRAYS = 30  # of the size of a batch's residual stream, in float32, that a block and its trace hold at their peak
_SHARE = 0.8  # of free memory that hidden states may take
_NOTHING = torch.empty(0)
_PLACES = {"device": "on the device", "memory": "in memory", "disk": "on disk"}


@dataclass
class Placement:
    """Where everything is while blocks are streamed."""

    needed: int  # bytes of weights and of one batch on the device
    states: int  # bytes of what all inputs are between two blocks
    where: Where  # where that is kept
    words: str


def placement(disk: OnDisk, run: Runner, batches: Sequence[Batch | Tensor]) -> Placement:
    """What streaming these inputs needs; InputError where that is not there."""
    names = run.anatomy.order
    entering = Steps(dict(disk.model.named_modules(remove_duplicate=False)), names).entering(lambda: run(batches[0]))
    lengths = [len(batch) for batch in batches]
    states = entering.nbytes * sum(lengths) // max(1, lengths[0])
    batch = _ARRAYS * 4 * entering.numel() * max(lengths) // max(1, lengths[0])
    host = free_memory()
    device = torch.cuda.mem_get_info(disk.device)[0] if disk.device.type == "cuda" else host
    most, needed = device if disk.most is None else min(device, disk.most), disk.needed + batch
    if needed > most:
        raise InputError(
            f"{disk.name}: a block and the next one, what is outside blocks, and a batch need {in_words(needed)}, and "
            f"{in_words(most)} may be used; give fewer inputs per pass (--batch 1), or a smaller --dtype"
        )
    apart = disk.device.type != "cpu"
    folder = next(place for place in (cache_folder(), *cache_folder().absolute().parents) if place.exists())
    free = shutil.disk_usage(folder).free
    where: Where = "device" if needed + states < _SHARE * most else "memory"
    if where == "memory" and (not apart or states > _SHARE * host):
        where = "disk"
    if where == "disk" and states > _SHARE * free:
        raise InputError(
            f"{disk.name}: hidden states need {in_words(states)}, more than memory holds, and {folder} has "
            f"{in_words(free)} free; give fewer inputs, or set OVERSMOOTH_CACHE to a folder with more space"
        )
    kept = f"{in_words(needed)} at once; hidden states ({in_words(states)}) {_PLACES[where]}"
    words = f"{len(names)} blocks of {in_words(disk.largest)}, one at a time; {kept}"
    return Placement(needed, states, where, words)


OnBatch = Callable[[Batch | Tensor, Any], None]


@dataclass
class Streamed:
    """All blocks of a model, one at a time, over one input that shows their plan and over all batches.

    Progress is saved after each block; the same diagnosis goes on from there.
    """

    disk: OnDisk
    run: Runner
    one: Batch | Tensor
    batches: list[Batch | Tensor]
    reducers: Reducers
    example: ExampleInput | None
    plan: Plan
    study: Study
    left_out: LeftOut | None
    states: States
    on_output: OnBatch
    """Called with each batch and what the model returns for it."""
    on_progress: Callable[[int, int, int], None]
    """Called with (blocks done, of how many, inputs done in this one)."""
    facts: PassFacts = field(default_factory=PassFacts)
    progress: Progress = field(init=False)

    def blocks(self) -> Iterator[SampleBlock]:
        """What the one input showed of the last block with attention, while that is in memory."""
        order = self.run.anatomy.order
        last = max(i for i, name in enumerate(order) if self.run.anatomy.blocks[name] is not None)
        steps = Steps(self.study.modules, order)
        trace = StreamedTrace(self.disk.model, self.plan, self.reducers.all, self.left_out)
        holders = [*self.reducers.all, trace, self.study, steps, *filter(None, [self.example])]
        self.progress = Progress(self.states.folder, self.run.anatomy, holders)
        name = self.progress.resume(self.plan.blocks, self.states)
        self.study.blocks += [SampleBlock(plan, None, _NOTHING, _NOTHING, (), {}) for plan in self.plan.blocks]
        name = name or steps.first(lambda: self.run(self.one))
        try:
            while name is not None:
                call = self.states.done
                with self.disk.loaded(name, order[call + 1] if call + 1 < len(order) else None):
                    following = self._study(steps, call, name, call == last)
                    self._trace(steps, trace, call, following)
                    if self.example is not None:
                        self.example.add(self.study.blocks[call])
                    if call == last:
                        yield self.study.blocks[call]
                    if following is not None:
                        self.study.blocks[call] = SampleBlock(self.plan.blocks[call], None, _NOTHING, _NOTHING, (), {})
                        self.states.advance()
                        if call < last:  # what is found of the last one is not saved
                            self.progress.save(following, self.plan.blocks, self.states)
                name = following
        finally:
            self.disk.close()
        trace.finish()
        self.facts = trace.facts

    def _study(self, steps: Steps, call: int, name: str, last: bool) -> str | None:
        with self.study.watching(name), steps.at(call):
            left, _, following = steps.run(self.states[-1], lambda: self.run(self.one))
        if following is not None:
            self.states[-1] = left
        sample = self.study.blocks[call]
        if not last and not is_light(sample.A):
            sample.A = None  # as where all blocks are in memory
        self.plan.blocks.append(sample.plan)
        if self.study.apart and self.study.apart[0] and self.study.windows:
            raise InputError(f"{name} connects tokens that the first block keeps apart; {OTHER_WAYS}")
        return following

    def _trace(self, steps: Steps, trace: StreamedTrace, call: int, expected: str | None) -> None:
        done = 0
        with trace.block(call), steps.at(call):
            for number, batch in enumerate(self.batches):
                self.on_progress(call, len(self.run.anatomy.order), done)
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
