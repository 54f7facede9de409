"""`oversmooth.Monitor` for our own trainer (`oversmooth train --look all`).

The trainer lies below and knows what looks as a protocol alone: whoever starts a run hands `MonitorWatcher` to it. The
trainer decides when to look and writes what is seen, as with its own looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oversmooth.monitor.monitor import Monitor
from oversmooth.monitor.names import TOKENS

if TYPE_CHECKING:
    from oversmooth_papers.engine.task import Task

RARELY = 10
"""Looks from one that takes further passes and eigenvalues, and as long as several steps, to the next."""


class MonitorWatcher:
    """All that a monitor sees by a probe without labels, but for joined spectra: the thread that computes them is done
    when it is done, and a run that goes on would not have the history of one that was never stopped.

    On a GPU a step is a CUDA graph, which reads and writes weights and buffers by their address, and a look is an eager
    pass between two replays. It may, since a look leaves every tensor where it is: hooks only read, `untouched` writes
    buffers back in place and puts the same objects back among attributes, and no parameter is assigned. What a look
    allocates lies outside the graph's own memory.
    """

    def __init__(self, task: Task, model: nn.Module, device: torch.device, every: int) -> None:
        """As `oversmooth_papers.engine.smoothing.MakesWatcher` says."""
        probe = task.probe(model, device)
        self.device, self.in_bf16 = device, task.recipe.autocasts(device.type)
        self.monitor = Monitor(
            model if probe.part is None else probe.part,
            probe.inputs,
            every,
            tokens=TOKENS,
            parts=RARELY,
            spectra=RARELY,
            dominance=RARELY,
            steering=RARELY,
            together=False,  # the first process looks alone
        )

    def look(self, step: int) -> dict[str, Any] | None:
        """A row of the monitor's history, without its step; None where it failed, which a warning says once."""
        # What is due is decided by the step alone, in a run that goes on or goes back too; the trainer keeps the rows.
        self.monitor.restart(None, step - 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16):
            row = self.monitor.look(step)
        return None if row is None else {name: value for name, value in row.items() if name != "step"}
