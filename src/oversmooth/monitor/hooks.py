"""What stands on the modules of a model whose passing batch is watched: it never raises, and copies do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError

PASS, ENTER, LEAVE = "pass", "enter", "leave"


class Hook:
    """What stands on a module and tells the gauge. On a copy of the module, or a saved one, it does nothing.

    Args:
        gauge: what is told; None: nobody.
        module: where it stands.
        kind: what has happened.
        index: the module's number.
    """

    def __init__(self, gauge: Any = None, module: nn.Module | None = None, kind: str = "", index: int = 0) -> None:
        self.gauge, self.module, self.kind, self.index = gauge, module, kind, index

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = None, out: Any = None) -> None:
        """Called around the module's forward.

        Args:
            module: which one.
            args: of its forward.
            kwargs: of its forward; missing where a pass of another thread calls a hook before torch knows, or when it
                has forgotten, that it takes them.
            out: what it gave.
        """
        gauge = self.gauge
        if gauge is None or module is not self.module or not gauge.model.training or not isinstance(kwargs, dict):
            return
        if torch.compiler.is_compiling():
            gauge.hear(self.kind, self.index, args, kwargs, out)
        elif gauge.due or is_captured(gauge.flag):
            try:  # nothing that goes wrong here is the training's business
                gauge.hear(self.kind, self.index, args, kwargs, out)
            except Exception as error:
                gauge.note(error)

    def __reduce__(self) -> Any:
        return Hook, ()


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


def result_like(x: Tensor, out: Any) -> Tensor | None:
    """The stream among what a block gave, as `results_like` finds it; None where there is none."""
    parts = out if isinstance(out, (tuple, list)) else out.values() if isinstance(out, Mapping) else [out]
    for part in parts:
        if isinstance(part, Tensor) and part.is_floating_point() and part.shape == x.shape:
            return part
    return None


def in_backward() -> bool:
    """Whether autograd runs what is called: checkpointing runs blocks a second time."""
    return int(torch._C._current_graph_task_id()) != -1


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being made."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
