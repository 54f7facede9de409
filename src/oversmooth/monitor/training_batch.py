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
from oversmooth.monitor.config import MonitorConfig
from oversmooth.monitor.reduced import band_norms
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.precision import float32_products
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
from oversmooth.trace.reducers.base import fetch
from oversmooth.trace.valid import PassArguments

_RECORDERS: weakref.WeakValueDictionary[int, TrainingBatchRecorder] = weakref.WeakValueDictionary()
_PASS, _ENTER, _LEAVE = "pass", "enter", "leave"


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


@dataclass
class _Step:
    """What was seen since the step began."""

    depths: DepthMetrics = field(init=False)  # of the last pass
    ran: list[int] = field(init=False)  # its depths, as it reached them; 0 is what enters the first block
    left: Any = field(init=False)  # what the last block returned, where no call around the blocks says where they begin
    outer: int | None = None  # the outermost module around the blocks that was called: it begins a pass
    gradients: dict[int, Tensor] = field(default_factory=dict)  # by depth: (2,), the norm and the share of HFC
    autocast: bool = False  # whether a batch passed within autocast, with which a GradScaler is used
    troubles: list[str] = field(default_factory=list)  # what went wrong


class TrainingBatchRecorder:
    """Hooks on the blocks of a model that is going to be trained and is not compiled yet.

    Gradients are recorded only where the model runs eagerly; the scale of torch's GradScaler is divided out of them
    (False: none is used; None: not known).
    """

    def __init__(self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], config: MonitorConfig) -> None:
        self.model, self.names, self.key = model, [name for name, _ in blocks], id(self)
        self.config, self.inputs, self.scaler = config, _Inputs(model, blocks), config.scaler
        self.token = torch.zeros((), device=next(model.parameters()).device)  # what the operator claims to write to
        _RECORDERS[self.key] = self
        self.arm(False)
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
            if self.config.gradients and not compiling and y.requires_grad:
                self.step.autocast |= torch.is_autocast_enabled(y.device.type)
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
        step = self.step
        begins = not in_backward() and (step.outer is None or index <= step.outer)
        if begins:
            step.outer = index
            self._new_pass()
        return begins

    def _new_pass(self) -> None:
        absolute = "abs_cos" in self.config.tokens
        self.step.ran, self.step.left = [], None
        self.step.depths = DepthMetrics(ranks=self.config.ranked, absolute=absolute, ranks_at_end=True)

    @reducing
    @float32_products("highest")
    def measure(self, depth: int, x: Tensor, mask: Tensor | None) -> None:
        """Reduce the tokens of one depth to numbers, 0 for what enters the first block. mask: ``(batch, n)``: not 0 for
        valid ones.
        """
        if in_backward():  # checkpointing runs blocks a second time
            return
        if is_captured(x):
            raise InputError("a CUDA graph was captured, and its replays show nothing; give a probe")
        step = self.step
        if depth == 0 and step.ran:
            # No call around the blocks: a pass begins where one receives anything but what the last one returned.
            if step.outer is not None or torch.equal(x, step.left):
                return
            self._new_pass()
        step.depths.numbers.update(len(step.ran), x, None if mask is None else mask != 0)
        step.ran.append(depth)
        step.left = x if step.outer is None else None

    @torch.no_grad()
    def _see_gradient(self, depth: int, gradient: Tensor, mask: Tensor | None) -> None:
        """mask: of this pass, as others may follow before the backward pass."""
        try:
            norm, share = band_norms(self.inputs.batch_major(gradient), mask)
            scale = getattr(self.scaler, "_scale", None)  # on its device
            if scale is not None:
                norm = norm / scale.to(norm.device)
            self.step.gradients[depth] = torch.stack([norm, share])
        except Exception as error:
            self.note(error)

    def note(self, error: Exception) -> None:
        """Remember what went wrong, for the snapshot."""
        self.step.troubles.append(reason(error, 240))

    def arm(self, due: bool) -> None:
        """Say whether the next step is recorded; nothing waits. The model may have moved to another device."""
        device = next(self.model.parameters()).device
        if self.token.device != device:
            self.token = torch.zeros((), device=device)
        self.due, self.step = due, _Step()
        if due:
            self._new_pass()
        self.inputs.forget()

    def read(self, *, gradients: bool) -> tuple[dict[str, Any], list[str], list[str]]:
        """By metric: what the last step showed, by depth as blocks ran. The names of the blocks as they ran. What was
        not seen, in sentences. InputError where there was no batch, or not all of it was seen.
        """
        if not self.due:
            raise InputError(
                "no training batch was recorded since the last snapshot; wait for a due step, or give a probe"
            )
        step, notes = self.step, []
        if step.troubles:
            raise InputError(f"the training batch could not be recorded: {step.troubles[0]}")
        names = self._ran()
        step.depths.finish()  # here the device is waited for
        found: dict[str, Any] = step.depths.means(self.config.tokens)
        if gradients and not step.gradients:
            notes.append(
                "no block had a gradient in the training batch: it is not seen in compiled code (give a probe that "
                "comes with a loss), all before the loss is frozen, or there was no backward pass"
            )
        elif gradients:
            fetched = zip(step.gradients, fetch(list(step.gradients.values())), strict=True)
            known = {depth: pair.tolist() for depth, pair in fetched}
            pairs = [known.get(depth, (None, None)) for depth in step.ran[1:]]
            found["gradient_hfc"] = [share for _, share in pairs]
            if self.scaler is None and step.autocast:
                notes.append("a GradScaler may scale gradients, whose norm is left out; give scaler=scaler, or False")
            else:
                found["gradient_norm"] = [norm for norm, _ in pairs]
        return found, names, notes

    def _ran(self) -> list[str]:
        """The names of the blocks in the order in which they ran; InputError where not each ran once and was seen."""
        ran = self.step.ran
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
