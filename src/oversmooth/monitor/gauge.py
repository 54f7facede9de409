"""The training batch watched as it passes: no pass of its own, no graph break, no second compilation.

Hooks are put on before anything is compiled, and stay. What they compute is one operator that compilers do not look
into, so that the code around it is compiled as without it. It writes into buffers that stay where they are; whether a
step is looked at is a flag in one of them, so that a captured CUDA graph obeys it too, and nothing waits for a device
until the numbers are fetched.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.monitor.hooks import (
    ENTER,
    LEAVE,
    PASS,
    Hook,
    check_not_compiled,
    in_backward,
    is_captured,
    result_like,
)
from oversmooth.monitor.reduced import band_norms, token_numbers
from oversmooth.monitor.rooms import Room
from oversmooth.monitor.scalers import OtherScalers
from oversmooth.safety.errors import InputError, reason
from oversmooth.trace.axes import around, check_axes, says_nothing, shapes_of
from oversmooth.trace.layout import says_batch_first
from oversmooth.trace.padding import Padding, decodes, mask_of, sizes_of_masks
from oversmooth.trace.reducers.exact import ranks_together
from oversmooth.trace.reducers.packing import has_pairs, mean_of_counted
from oversmooth.trace.watch import first_tensor, results_like

_GAUGES: weakref.WeakValueDictionary[int, Gauge] = weakref.WeakValueDictionary()
_COLUMNS = ("seen", "hfc_lfc", "cos", "room", "gradient_norm", "gradient_hfc")
"""Room: the number of the one that the first inputs of the batch were written to; 0: none."""
_RANKS = ("effective_rank", "stable_rank", "sigma_ratio", "rank_one_distance")


class Gauge:
    """Hooks on the blocks of a model that is going to be trained.

    Args:
        model: the module itself; not compiled yet.
        blocks: by name, each once per pass.
        ranks: inputs whose ranks are computed, the first ones of the batch; 0 for none.
        gradients: whether to look at the gradient after each block too; only where the model runs eagerly.
        scaler: torch's GradScaler, whose scale is divided out of gradients; False: none is used; None: not known.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[tuple[str, nn.Module]],
        *,
        ranks: int = 4,
        gradients: bool = False,
        scaler: Any = None,
    ) -> None:
        check_not_compiled(model)
        self.model, self.names, self.ranks, self.gradients = model, [name for name, _ in blocks], ranks, gradients
        self.scaler = scaler
        self.other_scalers = OtherScalers()
        self.depths = len(blocks) + 1
        self.due = False
        first = says_batch_first(blocks[0][1])
        if first is None:
            raise InputError(
                f"{blocks[0][0]} holds a module with batch_first=False and may transpose for it, so that its own axes "
                "are not known; say it on every block, block.batch_first = True or False, or give a probe"
            )
        self.batch_first = first
        self.given: list[torch.Size] | None = [] if says_nothing(blocks[0][1]) else None
        """The shapes of what the model was given in this pass, where they alone show which axis is the batch."""
        self.buffer, self.flag = self._buffers(next(model.parameters()).device)
        self.rooms: dict[int, list[Room]] = {}
        """By depth: where the first inputs of the batch are kept, the one that was used last at the end."""
        self.numbers = itertools.count(1)
        """Of rooms."""
        self.mask: Tensor | None = None
        self.told = False
        """Whether the innermost of the modules around the blocks was given a mask."""
        self.sizes: set[int] = set()
        """Of what may be its masks, under other names."""
        self.troubles: list[str] = []
        """What went wrong since it was armed."""
        self.order: list[int] = []
        """Depths in the order in which the last pass reached them."""
        self.outer: int | None = None
        """The outermost of the modules around the blocks that ran since it was armed: a pass begins with it."""
        self.graded: set[int] = set()
        """Depths whose gradient was heard since it was armed, or is written anew by a CUDA graph."""
        self.replayed: set[int] = set()
        self.ranked = False
        """Whether the last look found inputs to compute ranks of, at every depth."""
        self.compiled = False
        """Whether compiled code has called: it hears no gradients."""
        self.last = 0
        """Where the last array lay in memory."""
        self.number = id(self)
        _GAUGES[self.number] = self
        _operator()
        if "torch._dynamo" in sys.modules:
            # Code that was compiled for another model of this class, without hooks, would be taken for this one's.
            torch.compiler.reset()
        outside = around(model, self.names)
        self.padding = [Padding(module, decodes(self.names)) for module in outside]
        self.handles = [
            *(module.register_forward_pre_hook(Hook(self, module, PASS, index), with_kwargs=True)
              for index, module in enumerate(outside)),
            *(block.register_forward_pre_hook(Hook(self, block, ENTER, index), with_kwargs=True)
              for index, (_, block) in enumerate(blocks)),
            *(block.register_forward_hook(Hook(self, block, LEAVE, index), with_kwargs=True)
              for index, (_, block) in enumerate(blocks)),
        ]  # fmt: skip

    def _buffers(self, device: torch.device) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False):
            buffer = torch.zeros(self.depths, len(_COLUMNS), device=device)
            flag = torch.zeros((), dtype=torch.bool, device=device)
        if device.type == "cuda":  # so that CUDA graphs of the compiler take them as they are
            from torch import _dynamo  # heavy, and a CPU does without

            _dynamo.mark_static_address(buffer)
            _dynamo.mark_static_address(flag)
        return buffer, flag

    def hear(self, kind: str, index: int, args: Any, kwargs: Any, out: Any) -> None:
        """Something happened in a module that is watched; raises nothing where it is compiled.

        Args:
            kind: what.
            index: of the module around the blocks, or of the block.
            args: of its forward.
            kwargs: of its forward.
            out: what it gave.
        """
        if kind == PASS:
            self._hear_pass(index, args, kwargs)
        elif kind == ENTER:
            # Compiled code says it of the first block alone, and whether that is the first to run is seen later.
            if index == 0 or not torch.compiler.is_compiling():
                self._see(0, first_tensor(args, kwargs, needed=False))
        else:
            self._hear_leave(index, first_tensor(args, kwargs, needed=False), out)

    def _hear_pass(self, index: int, args: Any, kwargs: Any) -> None:
        mask = self.padding[index].of(args, kwargs)
        if torch.compiler.is_compiling():
            begins = index == 0
            if not begins:  # a compiled module's own hooks are no part of its graph, and would become another one
                torch.ops.oversmooth.gauge(self.flag, None, self.buffer, self.flag, self.number, -1 - index)
        else:
            begins = self.begin(index)
            if begins and self.given is not None:
                self.given = shapes_of(args, kwargs)
        if begins or mask is not None:  # the innermost that is given one knows best
            self.mask = mask
        self.told, self.sizes = mask is not None, sizes_of_masks(args, kwargs)

    def begin(self, index: int) -> bool:
        """A module around the blocks is called: whether a pass begins with it.

        Args:
            index: of the module, 0 for the outermost.
        """
        begins = not in_backward() and (self.outer is None or index <= self.outer)
        if begins:
            self.outer, self.order = index, []
        return begins

    def _hear_leave(self, index: int, x: Tensor | None, out: Any) -> None:
        y = None if x is None else result_like(x, out)
        if y is None:
            if not torch.compiler.is_compiling():
                results_like(first_tensor((x,), {}), out, self.names[index])  # says why
            return
        self._see(index + 1, y)
        if self.gradients and not torch.compiler.is_compiling() and self.due and y.requires_grad:
            mask = self.mask  # of this pass: others may follow before the backward pass
            y.register_hook(lambda gradient: self._hear_gradient(index + 1, gradient, mask))

    def _see(self, depth: int, x: Tensor | None) -> None:
        if x is None or x.ndim != 3:
            if torch.compiler.is_compiling():
                return
            shape = "no tensor" if x is None else f"an array of shape {tuple(x.shape)}"
            raise InputError(f"{self.names[max(depth - 1, 0)]} gets {shape}; tokens must be (batch, n, d)")
        if depth == 0 and self.given and not torch.compiler.is_compiling():
            check_axes(self.names[0], self.given, x.shape)
        if not self.batch_first:
            x = x.transpose(0, 1)
        mask = self._fitting(x, self.mask)
        if torch.compiler.is_compiling():
            torch.ops.oversmooth.gauge(x.detach(), mask, self.buffer, self.flag, self.number, depth)
        else:
            self.measure(depth, x.detach(), mask, self.buffer)

    def _fitting(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask of these tokens. Where it is that of others and hides something, and no value can be read here, no
        token counts, which gives NaN.
        """
        if mask is None or mask.shape == x.shape[:2]:
            return mask_of(x, mask)
        if not self.told and x.shape[1] not in self.sizes:
            return None  # of other tokens, such as a text's where these are a picture's
        if not (torch.compiler.is_compiling() or is_captured(x)):
            return mask_of(x, mask)
        return (mask != 0).all().expand(x.shape[:2]).to(x.device)

    @torch.no_grad()
    def measure(self, depth: int, x: Tensor, mask: Tensor | None, buffer: Tensor) -> None:
        """Reduce the tokens of one depth into the buffer.

        Args:
            depth: 0 for what enters the first block.
            x: ``(batch, n, d)``: tokens.
            mask: ``(batch, n)``: not 0 for tokens that count; None: all.
            buffer: where the numbers go; compilers may pass a copy, and write it back.
        """
        if in_backward():  # checkpointing runs blocks a second time
            return
        if depth == 0 and self.outer is None and not self._goes_on(x):  # nobody has said that a pass begins
            self.order = []
        if depth == 0 and self.order:  # not the first block of this pass
            return
        self.order.append(depth)
        self.last = x.data_ptr()
        with torch.autocast(x.device.type, enabled=False):
            log_ratio, cos = token_numbers(x, mask)
        captured = is_captured(x)
        first = x[: self.ranks], None if mask is None else mask[: self.ranks] != 0
        room = self._keep(depth, *first, captured) if self.ranks else 0
        new = torch.stack([torch.ones_like(cos), log_ratio, cos, torch.full_like(cos, room)])
        row = buffer[depth, : len(new)]
        row.copy_(torch.where(self.flag, new, row) if captured else new)

    def _goes_on(self, x: Tensor) -> bool:
        """Whether what enters the first block is what the last one gave: then it runs again in the same pass."""
        if not self.order or self.last != x.data_ptr():
            return False
        kept = self.rooms.get(self.order[-1])  # memory is used again: the address alone may be that of another array
        return not kept or is_captured(x) or torch.equal(kept[-1].tokens, x[: self.ranks].float())

    def _keep(self, depth: int, x: Tensor, mask: Tensor | None, captured: bool) -> int:
        """The number of the room that it is written to; 0 where there is none and none can be made."""
        rooms = self.rooms.setdefault(depth, [])
        room = next((one for one in rooms if one.fits(x, mask)), None)
        if room is None:
            if captured:  # nothing can be allocated here that outlives the capture
                return 0
            room = Room.of(x, mask, next(self.numbers))
            rooms[:] = [one for one in rooms if one.captured]
        else:
            rooms.remove(room)
        rooms.append(room)
        room.captured |= captured
        room.write(x, mask, self.flag if captured else None)
        return room.number

    @torch.no_grad()
    def _hear_gradient(self, depth: int, gradient: Tensor, mask: Tensor | None) -> None:
        try:
            if not self.batch_first:
                gradient = gradient.transpose(0, 1)
            norm, share = band_norms(gradient, self._fitting(gradient, mask))
            (self.replayed if is_captured(gradient) else self.graded).add(depth)
            scale = getattr(self.scaler, "_scale", None)  # on its device
            if scale is not None:
                norm = norm / scale.to(norm.device)
            self.buffer[depth, 4:6].copy_(torch.stack([norm, share]))
        except Exception as error:
            self.note(error)

    def note(self, error: Exception) -> None:
        """Remember what went wrong, for the look.

        Args:
            error: what was raised.
        """
        self.troubles.append(reason(error, 240))

    def arm(self, due: bool) -> None:
        """Say whether the next step is looked at; nothing waits."""
        self.due = due
        self.flag.fill_(due)
        self.outer, self.mask, self.troubles, self.graded = None, None, [], set(self.replayed)
        if due:
            self.buffer.zero_()

    def moved(self) -> None:
        """Follow the model to another device, before the first step."""
        device = next(self.model.parameters()).device
        if self.buffer.device != device:
            self.buffer, self.flag = self._buffers(device)
            self.rooms = {}
            self.arm(self.due)

    @torch.no_grad()
    def read(self) -> dict[str, list[float | None]]:
        """What the last step showed, by metric and depth in the order in which blocks ran.

        Raises:
            InputError: nothing passed, or not all of it was seen.
        """
        if not self.due:
            raise InputError("no batch was watched since the last look; look at steps that are due, or give a probe")
        if self.troubles:
            raise InputError(f"the passing batch could not be seen: {self.troubles[0]}")
        table = self.buffer.tolist()  # the one time that the device is waited for
        self._check_reported([not row[0] for row in table])
        order = self._checked_order()
        table = [table[depth] for depth in order]
        row: dict[str, list[float | None]] = {
            "hfc_lfc": [_exp(entry[1]) for entry in table],
            "cos": [entry[2] for entry in table],
        }
        samples = [self._room(depth, entry[3]) for depth, entry in zip(order, table, strict=True)]
        self.ranked = all(room is not None for room in samples)
        if self.ranked:
            rooms = [one for one in samples if one is not None]
            by_depth = ranks_together([(one.tokens, one.mask) for one in rooms])
            means = torch.stack([_means(ranks, one) for ranks, one in zip(by_depth, rooms, strict=True)], dim=1)
            row |= dict(zip(_RANKS, means.tolist(), strict=True))
        if self.graded:
            heard = [(entry, depth in self.graded) for entry, depth in zip(table, order, strict=True)][1:]
            row["gradient_norm"] = [entry[4] if known else None for entry, known in heard]
            row["gradient_hfc"] = [entry[5] if known else None for entry, known in heard]
        return row

    def _room(self, depth: int, number: float) -> Room | None:
        """Which room the last pass of the step wrote to, which only the device knows where a CUDA graph is replayed."""
        return next((room for room in self.rooms.get(depth, []) if room.number == number), None)

    @property
    def ran(self) -> list[str]:
        """The names of the blocks in the order in which they ran."""
        return [self.names[depth - 1] for depth in self.order if depth]

    def _check_reported(self, silent: list[bool]) -> None:
        if not any(silent):
            return
        if all(silent):
            mode = "" if self.model.training else " while the model was in train mode, which it is not now"
            raise InputError(
                f"no batch passed{mode}; train the model that the monitor was made for, and make the monitor before it "
                "is compiled or replaced"
            )
        names = [name for name, one in zip(["what enters the first block", *self.names], silent, strict=True) if one]
        raise InputError(
            f"{len(names)} of {self.depths} depths did not report from the passing batch, {names[0]} first; give "
            "a probe where a pass leaves blocks out, or make the monitor before they are compiled or replaced"
        )

    def _checked_order(self) -> list[int]:
        twice = next((depth for depth in self.order if self.order.count(depth) > 1), None)
        if twice is not None:
            raise InputError(
                f"{self.names[max(twice - 1, 0)]} runs several times in a pass, and the passing batch shows one run of "
                "each block; give a probe, which tells runs apart"
            )
        if sorted(self.order) != list(range(self.depths)) or self.order[0] != 0:
            raise InputError("blocks run in another order than that of their names, in compiled code; give a probe")
        return self.order

    def why_ungraded(self) -> str:
        """Why blocks showed no gradient, in a sentence; empty where all did, or only some are frozen."""
        if self.compiled and len(self.graded) < self.depths - 1:
            return (
                "gradients of the passing batch are not seen in compiled code; give a probe that comes with a loss "
                "(labels in it, or loss=) in place of passing=True, or train without torch.compile"
            )
        if self.graded:
            return ""
        return (
            "no block had a gradient in the passing batch: all before the loss is frozen, or there was no backward "
            "pass; leave gradients out"
        )

    def why_unranked(self) -> str:
        """Why ranks are not known, in a sentence; empty where they are."""
        if not self.ranks or self.ranked:
            return ""
        return (
            "ranks of the passing batch are not seen in a CUDA graph that was captured before any look, or of batches "
            "of another shape; look at a step before it is captured, or give a probe"
        )

    def is_scaled(self) -> bool:
        """Whether a GradScaler that is not known here may scale gradients."""
        return self.scaler is None and bool(self.other_scalers)

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def _means(ranks: dict[str, Tensor], room: Room) -> Tensor:
    """``(metrics,)``: of the ranks of a depth, over its inputs."""
    table = torch.stack([ranks[name] for name in _RANKS])
    if room.mask is None and room.tokens.shape[1] > 1:
        return table.mean(1)
    return mean_of_counted(table, has_pairs(room.tokens, room.mask))


def _exp(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).exp())


@cache
def _operator() -> Any:
    """The operator that compiled code calls; what it does is none of the compiler's business."""

    @torch.library.custom_op("oversmooth::gauge", mutates_args=("buffer",))
    def gauge(
        x: Tensor,
        mask: Tensor | None,
        buffer: Tensor,
        flag: Tensor,  # noqa: ARG001  (an input, so that captured graphs read it anew)
        number: int,
        depth: int,
    ) -> None:
        one = _GAUGES.get(number)
        if one is None or not (one.due or is_captured(x)):
            return
        one.compiled = True
        try:
            if depth < 0:
                one.begin(-1 - depth)
            else:
                one.measure(depth, x, mask, buffer)
        except Exception as error:  # nothing that goes wrong here is the training's business
            one.note(error)

    @gauge.register_fake
    def _(x: Tensor, mask: Tensor | None, buffer: Tensor, flag: Tensor, number: int, depth: int) -> None:  # noqa: ARG001
        return None

    return gauge
