"""The training batch watched as it passes: no pass of its own, no graph break, no second compilation.

Hooks are put on before anything is compiled, and stay. What they compute is one operator that compilers do not look
into, so that the code around it is compiled as without it. It writes into buffers that stay where they are; whether a
step is looked at is a flag in one of them, so that a captured CUDA graph obeys it too, and nothing waits for a device
until the numbers are fetched.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.metrics.rank import ranks_of, singular_values
from oversmooth.observe.depths import axes_of
from oversmooth.observe.watch import first_tensor, results_like
from oversmooth.safety.errors import InputError

_GAUGES: weakref.WeakValueDictionary[int, Gauge] = weakref.WeakValueDictionary()
_COLUMNS = ("seen", "hfc_lfc", "cos", "gradient_norm", "gradient_hfc")
_RANKS = ("effective_rank", "stable_rank", "sigma_ratio", "rank_one_distance")
_MASK = "attention_mask"


class Gauge:
    """Hooks on the blocks of a model that is going to be trained.

    Args:
        model: the module itself; not compiled yet.
        blocks: by name, in the order in which they run, each once per pass.
        ranks: inputs whose ranks are computed, the first ones of the batch; 0 for none.
        gradients: whether to look at the gradient after each block too; only where the model runs eagerly.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[tuple[str, nn.Module]],
        *,
        ranks: int = 4,
        gradients: bool = False,
    ) -> None:
        check_not_compiled(model)
        if len({id(block) for _, block in blocks}) < len(blocks):
            raise InputError("blocks of this model share their weights; give a probe, which tells their runs apart")
        self.model, self.names, self.ranks, self.gradients = model, [name for name, _ in blocks], ranks, gradients
        self.depths = len(blocks) + 1
        self.due = False
        self.batch_first = bool(getattr(axes_of(blocks[0][1]), "batch_first", True))
        self.buffer, self.flag = self._buffers(next(model.parameters()).device)
        self.samples: dict[int, tuple[Tensor, Tensor | None]] = {}
        """By depth: the first inputs of the batch ``(ranks, n, d)`` and which of their tokens count."""
        self.mask: Tensor | None = None
        self.number = id(self)
        _GAUGES[self.number] = self
        _operator()
        if "torch._dynamo" in sys.modules:
            # Code that was compiled for another model of this class, without hooks, would be taken for this one's.
            torch.compiler.reset()
        first = blocks[0][1]
        self.handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            first.register_forward_pre_hook(self._enter, with_kwargs=True),
            *(block.register_forward_hook(self._leave(depth + 1), with_kwargs=True)
              for depth, (_, block) in enumerate(blocks)),
        ]  # fmt: skip

    def _buffers(self, device: torch.device) -> tuple[Tensor, Tensor]:
        buffer = torch.zeros(self.depths, len(_COLUMNS), device=device)
        flag = torch.zeros((), dtype=torch.bool, device=device)
        if device.type == "cuda":  # so that CUDA graphs of the compiler take them as they are
            from torch import _dynamo  # heavy, and a CPU does without

            _dynamo.mark_static_address(buffer)
            _dynamo.mark_static_address(flag)
        return buffer, flag

    def _begin(self, _module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        self.mask = kwargs.get(_MASK)

    def _enter(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._see(0, first_tensor(args, kwargs))

    def _leave(self, depth: int) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            y = results_like(first_tensor(args, kwargs), out, self.names[depth - 1])[0]
            self._see(depth, y)
            if self.gradients and not torch.compiler.is_compiling() and self.due and y.requires_grad:
                y.register_hook(lambda gradient: self._see_gradient(depth, gradient))

        return hook

    def _see(self, depth: int, x: Tensor) -> None:
        if not self.model.training:
            return
        if not self.batch_first:
            x = x.transpose(0, 1)
        mask = self.mask
        if mask is not None and (mask.ndim != 2 or mask.shape != x.shape[:2]):
            mask = None
        if torch.compiler.is_compiling():
            torch.ops.oversmooth.gauge(x.detach(), mask, self.buffer, self.flag, self.number, depth)
        elif self.due or _is_captured(x):
            self.measure(depth, x.detach(), mask, self.buffer)

    @torch.no_grad()
    def measure(self, depth: int, x: Tensor, mask: Tensor | None, buffer: Tensor) -> None:
        """Reduce the tokens of one depth into the buffer.

        Args:
            depth: 0 for what enters the first block.
            x: ``(batch, n, d)``: tokens.
            mask: ``(batch, n)``: not 0 for tokens that count; None: all.
            buffer: where the numbers go; compilers may pass a copy, and write it back.
        """
        if x.ndim != 3:
            return
        log_ratio, cos = token_numbers(x, mask)
        new = torch.stack([torch.ones_like(cos), log_ratio, cos])
        row = buffer[depth, : len(new)]
        captured = _is_captured(x)
        row.copy_(torch.where(self.flag, new, row) if captured else new)
        if self.ranks:
            self._keep(depth, x[: self.ranks], None if mask is None else mask[: self.ranks].bool(), captured)

    def _keep(self, depth: int, x: Tensor, mask: Tensor | None, captured: bool) -> None:
        kept = self.samples.get(depth)
        alike = kept is not None and kept[0].shape == x.shape and (kept[1] is None) == (mask is None)
        if not alike:
            if captured:  # nothing can be allocated here that outlives the capture
                return
            kept = self.samples[depth] = (torch.empty_like(x, dtype=torch.float32), None if mask is None else mask)
        assert kept is not None
        tokens, counted = kept
        tokens.copy_(torch.where(self.flag, x.float(), tokens) if captured else x)
        if counted is not None and mask is not None:
            counted.copy_(torch.where(self.flag, mask, counted) if captured else mask)

    @torch.no_grad()
    def _see_gradient(self, depth: int, gradient: Tensor) -> None:
        if gradient.ndim == 3:
            self.buffer[depth, 3:5].copy_(torch.stack(band_norms(gradient)))

    def arm(self, due: bool) -> None:
        """Say whether the next step is looked at; nothing waits."""
        self.due = due
        self.flag.fill_(due)
        if due:
            self.buffer.zero_()

    def moved(self) -> None:
        """Follow the model to another device, before the first step."""
        device = next(self.model.parameters()).device
        if self.buffer.device != device:
            self.buffer, self.flag = self._buffers(device)
            self.samples = {}
            self.arm(self.due)

    def read(self) -> tuple[dict[str, list[float]], list[str]]:
        """What the last step showed, by metric and depth; and the names of blocks that did not report."""
        table = self.buffer.tolist()  # the one time that the device is waited for
        names = ["what enters the first block", *self.names]
        silent = [name for name, row in zip(names, table, strict=True) if not row[0]]
        if silent:
            return {}, silent
        row = {"hfc_lfc": [_exp(entry[1]) for entry in table], "cos": [entry[2] for entry in table]}
        if self.ranks and len(self.samples) == self.depths:
            by_depth = [ranks_of(singular_values(x, mask=mask)) for _, (x, mask) in sorted(self.samples.items())]
            for name in _RANKS:
                row[name] = torch.stack([ranks[name].mean() for ranks in by_depth]).tolist()
        if self.gradients and any(entry[3] for entry in table):
            row["gradient_norm"] = [entry[3] for entry in table[1:]]
            row["gradient_hfc"] = [entry[4] for entry in table[1:]]
        return row, []

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def token_numbers(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means over a batch of log HFC/LFC and of the mean cosine, without waiting for a device.

    Inputs with fewer than two tokens that count are left out.

    Args:
        x: ``(batch, n, d)``: tokens.
        mask: ``(batch, n)``: not 0 for tokens that count; None: all.

    Returns:
        ``()`` each, in float32.
    """
    x = x.float()
    shown = torch.ones(x.shape[:2], device=x.device) if mask is None else (mask != 0).float()
    x = torch.where(shown[..., None] > 0, x, 0.0)
    tokens = shown.sum(-1)
    mean = x.sum(-2) / tokens.clamp(min=1)[:, None]
    centred = (x - mean[:, None]) * shown[..., None]
    high = torch.linalg.vector_norm(centred, dim=(-2, -1))
    low = torch.linalg.vector_norm(mean, dim=-1) * tokens.sqrt()
    norms = torch.linalg.vector_norm(x, dim=-1)
    unit = x / torch.where(norms == 0, 1.0, norms)[..., None]
    directed = (norms > 0).sum(-1).float()
    cos = (unit.sum(-2).square().sum(-1) - directed) / (directed * (directed - 1)).clamp(min=1)
    counts = directed > 1
    share = counts.float() / counts.sum().clamp(min=1)
    log_ratio = torch.where(counts, high.log() - low.log(), 0.0)
    return (log_ratio * share).sum(), (torch.where(counts, cos, 0.0).clamp(-1, 1) * share).sum()


def band_norms(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """‖G‖ and the share of ‖G‖² that lies in the band in which tokens differ.

    Args:
        gradient: ``(batch, n, d)``.

    Returns:
        ``()`` each, in float32.
    """
    gradient = gradient.detach().float()
    total = torch.linalg.vector_norm(gradient)
    high = torch.linalg.vector_norm(gradient - gradient.mean(-2, keepdim=True))
    return total, torch.where(total > 0, (high / torch.where(total > 0, total, 1.0)).square(), 0.0)


def check_not_compiled(model: nn.Module) -> None:
    """Refuse a model whose compiled code would not call hooks that are put on now."""
    compiled = type(model).__name__ == "OptimizedModule" or any(
        getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )
    if compiled:
        raise InputError(
            "the passing batch cannot be watched in a model that is compiled already; make the monitor before "
            "torch.compile, or give a probe"
        )


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


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
        if one is not None and (one.due or _is_captured(x)):
            one.measure(depth, x, mask, buffer)

    @gauge.register_fake
    def _(x: Tensor, mask: Tensor | None, buffer: Tensor, flag: Tensor, number: int, depth: int) -> None:  # noqa: ARG001
        return None

    return gauge
