"""The training batch, recorded during training's own forward pass: no extra pass, no graph break, no recompilation.

Hooks are put on before anything is compiled, and stay. What they compute is one operator that compilers do not look
into, and leave out of CUDA graphs. Nothing waits for the device until a snapshot fetches the numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.metrics.moments import reducing
from oversmooth.monitor.config import RANKS
from oversmooth.monitor.reduced import band_norms, token_numbers
from oversmooth.safety.errors import InputError, reason
from oversmooth.steering.forward_state import in_backward
from oversmooth.steering.record import recompile
from oversmooth.trace import DepthMetrics
from oversmooth.trace.layout import (
    check_axes,
    declared_layout,
    first_tensor,
    layout_modules,
    results_like,
    says_batch_first,
    tensors_like,
)
from oversmooth.trace.valid import PassArguments

_RECORDERS: weakref.WeakValueDictionary[int, TrainingBatchRecorder] = weakref.WeakValueDictionary()
_PASS, _ENTER, _LEAVE = "pass", "enter", "leave"


@dataclass
class _Seen:
    """The tokens of one depth."""

    depth: int  # 0: what enters the first block
    address: int  # of the array in memory
    numbers: Tensor  # (2,), on its device: means of log HFC/LFC and of the cosine
    first: Tensor | None  # (inputs, n, d): those whose ranks are computed
    mask: Tensor | None  # (inputs, n)


class Hook:
    """What stands on a module and calls the recorder. On a copy of the module, or a saved one, it does nothing."""

    def __init__(self, recorder: Any = None, module: nn.Module | None = None, kind: str = "", index: int = 0) -> None:
        self.recorder, self.module, self.kind, self.index = recorder, module, kind, index

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None, out: Any = None) -> None:
        recorder = self.recorder
        if recorder is None or module is not self.module or not recorder.model.training:
            return
        if torch.compiler.is_compiling():
            recorder.receive(self.kind, self.index, args, kwargs, out)
        elif recorder.due:
            try:  # nothing that goes wrong here is the training's business
                recorder.receive(self.kind, self.index, args, kwargs, out)
            except Exception as error:
                recorder.note(error)

    def __reduce__(self) -> Any:
        return Hook, ()


class TrainingBatchRecorder:
    """Hooks on the blocks of a model that is going to be trained and is not compiled yet.

    Ranks are of the first so many inputs. Gradients are recorded only where the model runs eagerly; the scale of
    torch's GradScaler is divided out of them (False: none is used; None: not known).
    """

    def __init__(
        self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], ranks: int, gradients: bool, scaler: Any
    ) -> None:
        self.model, self.names, self.key, self.due = model, [name for name, _ in blocks], id(self), False
        self.inputs, self.ranks, self.gradients = _Inputs(model, blocks), ranks, _Gradients(gradients, scaler)
        self.outer: int | None = None  # the outermost module around the blocks since the step began: it begins a pass
        self.seen: list[_Seen] = []  # of the last pass, as it reached them
        self.troubles: list[str] = []  # what went wrong since the step began
        self.token = torch.zeros((), device=next(model.parameters()).device)  # what the operator claims to write to
        _RECORDERS[self.key] = self
        _operator()
        recompile()  # code compiled for another model of this class, without hooks, would be taken for this one's
        self.handles = []
        for kind, modules in ((_PASS, self.inputs.modules), (_ENTER, [block for _, block in blocks])):
            for index, module in enumerate(modules):
                hook = Hook(self, module, kind, index)
                self.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        for index, (_, block) in enumerate(blocks):
            self.handles.append(block.register_forward_hook(Hook(self, block, _LEAVE, index), with_kwargs=True))

    def receive(self, kind: str, index: int, args: Any, kwargs: Any, out: Any) -> None:
        """Something happened in a module that is hooked: the index-th around the blocks, or of the blocks. Raises
        nothing where it is compiled.
        """
        compiling = torch.compiler.is_compiling()
        if kind == _PASS:
            begins = index == 0 if compiling else self.begin(index)
            if compiling and not begins:  # a compiled module's own hooks are no part of its graph, and would become one
                torch.ops.oversmooth.observe(self.token, None, self.token, self.key, -1 - index)
            self.inputs.receive(index, args, kwargs, begins=begins)
            return
        x = first_tensor(args, kwargs, needed=False)
        if kind == _ENTER:
            if index == 0 or not compiling:  # compiled code shows the first block alone
                self._see(0, x)
        elif x is not None and (alike := tensors_like(x, out)):
            y = alike[0]
            mask = self._see(index + 1, y)
            if self.gradients.wanted and not compiling and y.requires_grad:
                self.gradients.autocast |= torch.is_autocast_enabled(y.device.type)
                y.register_hook(lambda gradient: self._see_gradient(index + 1, gradient, mask))
        elif not compiling:
            results_like(first_tensor((x,), {}), out, self.names[index])  # says why

    def _see(self, depth: int, x: Tensor | None) -> Tensor | None:
        """Record the tokens of a depth; which of them are valid."""
        name, compiling = self.names[max(depth - 1, 0)], torch.compiler.is_compiling()
        if x is None or x.ndim != 3:
            if compiling:
                return None
            shape = "no tensor" if x is None else f"an array of shape {tuple(x.shape)}"
            raise InputError(f"{name} receives {shape}; tokens must be (batch, n, d)")
        if depth == 0 and self.inputs.axes_unknown and not compiling:
            check_axes(name, self.inputs.shapes, x.shape)
        x = self.inputs.batch_major(x.detach())
        mask = self.inputs.mask(x, readable=not (compiling or is_captured(x)))
        if compiling:
            torch.ops.oversmooth.observe(x, mask, self.token, self.key, depth)
        else:
            self.measure(depth, x, mask)
        return mask

    def begin(self, index: int) -> bool:
        """A module around the blocks is called, 0 for the outermost: whether a pass begins with it."""
        begins = not in_backward() and (self.outer is None or index <= self.outer)
        if begins:
            self.outer, self.seen = index, []
        return begins

    @torch.no_grad()
    def measure(self, depth: int, x: Tensor, mask: Tensor | None) -> None:
        """Reduce the tokens of one depth to numbers, 0 for what enters the first block. mask: ``(batch, n)``: not 0 for
        valid ones.
        """
        if in_backward():  # checkpointing runs blocks a second time
            return
        if is_captured(x):
            raise InputError("a CUDA graph was captured, and its replays show nothing; give a probe")
        numbers = torch.stack(token_numbers(x, mask))
        if depth == 0 and self.outer is None and not self._goes_on(x, numbers):
            self.seen = []  # no call around the blocks began this pass
        if depth == 0 and self.seen:  # not the first block of this pass
            return
        first = x[: self.ranks].to(torch.float32, copy=True) if self.ranks else None
        valid = None if mask is None else mask[: self.ranks] != 0
        self.seen.append(_Seen(depth, x.data_ptr(), numbers, first, valid))

    def _goes_on(self, x: Tensor, numbers: Tensor) -> bool:
        """Whether what enters the first block is what the last one returned: then it runs again in the same pass."""
        # Memory is used again: the address alone may be that of another array.
        last = self.seen[-1] if self.seen else None
        return last is not None and last.address == x.data_ptr() and torch.equal(numbers, last.numbers)

    @torch.no_grad()
    def _see_gradient(self, depth: int, gradient: Tensor, mask: Tensor | None) -> None:
        """mask: of this pass, as others may follow before the backward pass."""
        try:
            norm, share = band_norms(self.inputs.batch_major(gradient), mask)
            scale = getattr(self.gradients.scaler, "_scale", None)  # on its device
            if scale is not None:
                norm = norm / scale.to(norm.device)
            self.gradients.seen[depth] = torch.stack([norm, share])
        except Exception as error:
            self.note(error)

    def note(self, error: Exception) -> None:
        """Remember what went wrong, for the snapshot."""
        self.troubles.append(reason(error, 240))

    def arm(self, due: bool) -> None:
        """Say whether the next step is recorded; nothing waits. The model may have moved to another device."""
        device = next(self.model.parameters()).device
        if self.token.device != device:
            self.token = torch.zeros((), device=device)
        self.due, self.outer, self.seen, self.troubles = due, None, [], []
        self.gradients.seen.clear()
        self.inputs.forget()

    @reducing
    def read(self, tokens: Sequence[str], *, gradients: bool) -> tuple[dict[str, Any], list[str], list[str]]:
        """By metric: what the last step showed, by depth as blocks ran. The names of the blocks as they ran. What was
        not seen, in sentences. InputError where there was no batch, or not all of it was seen.
        """
        if not self.due:
            raise InputError(
                "no training batch was recorded since the last snapshot; wait for a due step, or give a probe"
            )
        if self.troubles:
            raise InputError(f"the training batch could not be recorded: {self.troubles[0]}")
        names = self._ran()
        table = _fetched([one.numbers for one in self.seen])  # here the device is waited for
        log_ratios = torch.tensor([row[0] for row in table], dtype=torch.float64)
        found: dict[str, Any] = {"hfc_lfc": log_ratios.exp().tolist(), "cos": [row[1] for row in table]}
        found = {name: found[name] for name in tokens if name in found}
        if ranks := [name for name in tokens if name in RANKS]:
            depths = DepthMetrics(ranks=self.ranks, absolute=False)
            for place, one in enumerate(self.seen):
                assert one.first is not None
                depths.numbers.update(place, one.first, one.mask)
            depths.finish()
            found |= depths.means(ranks)
        notes = []
        if gradients and not self.gradients.seen:
            notes.append(
                "no block had a gradient in the training batch: it is not seen in compiled code (give a probe that "
                "comes with a loss), all before the loss is frozen, or there was no backward pass"
            )
        elif gradients:
            seen = self.gradients.seen
            fetched = dict(zip(seen, _fetched(list(seen.values())), strict=True))
            pairs = [fetched.get(one.depth, (None, None)) for one in self.seen[1:]]
            found["gradient_hfc"] = [share for _, share in pairs]
            if self.gradients.scaler is None and self.gradients.autocast:
                notes.append("a GradScaler may scale gradients, whose norm is left out; give scaler=scaler, or False")
            else:
                found["gradient_norm"] = [norm for norm, _ in pairs]
        return found, names, notes

    def _ran(self) -> list[str]:
        """The names of the blocks in the order in which they ran; InputError where not each ran once and was seen."""
        ran = [one.depth for one in self.seen]
        if not ran:
            mode = "" if self.model.training else " while the model was in train mode, which it is not now"
            raise InputError(
                f"no batch was seen{mode}; train the model that the monitor was made for, make the monitor before it "
                "is compiled or replaced, and give a probe where the training replays a CUDA graph of its own"
            )
        depths = ["what enters the first block", *self.names]
        if silent := [name for depth, name in enumerate(depths) if depth not in ran]:
            raise InputError(
                f"{len(silent)} of {len(depths)} depths did not report from the training batch, {silent[0]} first; "
                "give a probe where a pass leaves blocks out or compiled code runs them in another order, or make the "
                "monitor before they are compiled or replaced"
            )
        if again := [depth for place, depth in enumerate(ran) if depth in ran[:place]]:
            raise InputError(
                f"{depths[again[0]]} runs several times in a pass, and the training batch shows one run of each "
                "block; give a probe, which tells runs apart"
            )
        return [depths[depth] for depth in ran[1:]]

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


class _Inputs(PassArguments):
    """What the modules around the blocks are called with, and which axis of the stream is the batch."""

    def __init__(self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__(model, [name for name, _ in blocks])
        name, first = blocks[0]
        says = says_batch_first(first)
        if says is None:
            raise InputError(
                f"{name} holds a module with batch_first=False and may transpose for it, so that its own axes are not "
                "known; say it on every block, block.batch_first = True or False, or give a probe"
            )
        self.batch_first, self.axes_unknown = says, declared_layout(first) is None and not layout_modules(first)

    def batch_major(self, x: Tensor) -> Tensor:
        return x if self.batch_first else x.transpose(0, 1)


@dataclass
class _Gradients:
    """Whether gradients are recorded, whether their norm is known, and those of the step."""

    wanted: bool
    scaler: Any
    autocast: bool = False  # whether a batch passed within autocast, with which a GradScaler is used
    seen: dict[int, Tensor] = field(default_factory=dict)  # by depth: (2,), the norm and the share of HFC


def check_not_compiled(model: nn.Module) -> None:
    """Refuse a model whose compiled code would not call hooks that are put on now."""
    for module in (model, *model.modules()):
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise InputError(
                "the training batch cannot be recorded in a model that is compiled already; make the monitor before "
                "torch.compile, or give a probe"
            )


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being made."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _fetched(numbers: list[Tensor]) -> list[list[float]]:
    """From their devices, all at once where there is one."""
    fetched: list[list[float]] = torch.stack([one.to(numbers[0].device) for one in numbers]).tolist()
    return fetched


@cache
def _operator() -> Any:
    """The operator that compiled code calls; what it does is none of the compiler's business."""

    @torch.library.custom_op("oversmooth::observe", mutates_args=("token",), tags=(torch.Tag.cudagraph_unsafe,))
    def observe(
        x: Tensor,
        mask: Tensor | None,
        token: Tensor,  # noqa: ARG001  (claimed to be written to: what changes nothing would be left out)
        key: int,
        depth: int,  # below 0: −1 − the index of a module around the blocks, which is called
    ) -> None:
        recorder = _RECORDERS.get(key)
        if recorder is None or not recorder.due:
            return
        try:
            if depth < 0:
                recorder.begin(-1 - depth)
            else:
                recorder.measure(depth, x, mask)
        except Exception as error:  # nothing that goes wrong here is the training's business
            recorder.note(error)

    @observe.register_fake
    def _(x: Tensor, mask: Tensor | None, token: Tensor, key: int, depth: int) -> None:  # noqa: ARG001
        return None

    return observe
