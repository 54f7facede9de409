"""What records smoothing while a model trains: `SmoothingProbe` by default, or all that `oversmooth.Monitor` sees.

The trainer decides when a snapshot is due and writes it. The default sees little, and is cheap by design: HFC/LFC and
cosines after every block, on a few fixed inputs, no ranks, and on a GPU a forward pass that is a CUDA graph and leaves
the tokens of all depths in one array, measured in one sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from oversmooth.monitor.monitor import Monitor
from oversmooth.monitor.names import TOKENS
from oversmooth.safety.untouched import in_eval_mode
from oversmooth.trace.depths import StoredDepths
from oversmooth_papers.cuda_graphs import captured
from oversmooth_papers.engine.task import Task

RARELY = 10
"""Snapshots from one of `MonitorWatcher` that takes further passes and eigenvalues, and as long as several steps, to
the next.
"""


class Watcher(Protocol):
    """``watcher.look(step)``: what is seen after a step, and the training is as without."""

    def look(self, step: int) -> dict[str, Any] | None:
        """By metric one number per depth, or one number; each finite, or None. None where the snapshot failed."""


MakesWatcher = Callable[[Task, nn.Module, torch.device, int], Watcher]
"""Called once a run's model is on its device, with the steps between snapshots; there is also one after the first step,
and one after the last.
"""


class SmoothingProbe:
    """Numbers by depth, the embedding first, each the mean over the task's probe."""

    def __init__(self, task: Task, model: nn.Module, device: torch.device, every: int = 1) -> None:  # noqa: ARG002 (all looks are alike)
        self.task, self.model, self.device = task, model, device
        self.probe = task.probe(model, device)
        self.depths = StoredDepths([(f"block {place}", block) for place, block in enumerate(self.probe.blocks)])
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _body(self) -> None:
        in_bf16 = self.task.recipe.autocasts(self.device.type)
        with in_eval_mode(self.model), torch.autocast(self.device.type, torch.bfloat16, enabled=in_bf16):
            self.depths.fill(lambda: self.model(*self.probe.inputs))

    def look(self, step: int) -> dict[str, list[float]]:  # noqa: ARG002 (all looks are alike)
        self._run()
        seen = {name: [float(f"{value:.5g}") for value in row] for name, row in self.depths.measure().items()}
        return seen | self.task.look_at_weights(self.model)


class MonitorWatcher:
    """All that a monitor sees by a probe without labels, but for joined spectra: the thread that computes them is done
    when it is done, and a run that goes on would not have the history of one that was never stopped.

    On a GPU a step is a CUDA graph, which reads and writes weights and buffers by their address, and a snapshot is an
    eager pass between two replays. It may, since it leaves every tensor where it is: hooks only read, `untouched`
    writes buffers back in place and puts the same objects back among attributes, and no parameter is assigned. What a
    snapshot allocates lies outside the graph's own memory.
    """

    def __init__(self, task: Task, model: nn.Module, device: torch.device, every: int) -> None:
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
