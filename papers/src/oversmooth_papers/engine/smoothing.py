"""Records smoothing while a model trains: `SmoothingProbe` by default, or everything `oversmooth.Monitor` records.

The trainer decides when a snapshot is due and writes it. The default is cheap: HFC/LFC and cosines after every block,
on a few fixed inputs, without ranks. On a GPU its forward pass is a CUDA graph that leaves the tokens of all depths in
one array.
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
"""Every how many snapshots `MonitorWatcher` runs further passes and computes eigenvalues, which takes several steps."""


class Watcher(Protocol):
    """``watcher.snapshot(step)``: metrics after a step; training is not affected."""

    def snapshot(self, step: int) -> dict[str, Any] | None:
        """By metric one number per depth, or one number, each finite or None. None if the snapshot failed."""


MakesWatcher = Callable[[Task, nn.Module, torch.device, int], Watcher]
"""Called with the model on its device and the steps between snapshots; the first and last step have one too."""


class SmoothingProbe:
    """Numbers by depth, the embedding first, each the mean over the task's probe."""

    def __init__(self, task: Task, model: nn.Module, device: torch.device, every: int = 1) -> None:  # noqa: ARG002 (all snapshots are alike)
        self.task, self.model, self.device = task, model, device
        self.probe = task.probe(model, device)
        self.depths = StoredDepths([(f"block {place}", block) for place, block in enumerate(self.probe.blocks)])
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _body(self) -> None:
        in_bf16 = self.task.recipe.autocasts(self.device.type)
        with in_eval_mode(self.model), torch.autocast(self.device.type, torch.bfloat16, enabled=in_bf16):
            self.depths.fill(lambda: self.model(*self.probe.inputs))

    def snapshot(self, step: int) -> dict[str, list[float]]:  # noqa: ARG002 (all snapshots are alike)
        self._run()
        tokens = {name: [float(f"{value:.5g}") for value in row] for name, row in self.depths.measure().items()}
        return tokens | self.task.weight_metrics(self.model)


class MonitorWatcher:
    """Everything a monitor records from a probe without labels, except spectra of all heads jointly.

    Those are computed in a thread that ends at no fixed step, so a resumed run would have another history.

    On a GPU a step is a CUDA graph, which reads and writes weights and buffers by their address. A snapshot is an eager
    pass between two replays, and leaves every tensor at its address: hooks only read, buffers are restored in place,
    and no parameter is assigned. A snapshot allocates outside the graph's memory.
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
            together=False,  # only the first process takes snapshots
        )

    def snapshot(self, step: int) -> dict[str, Any] | None:
        """A row of the monitor's history, without its step; None if it failed, with one warning per run."""
        # Restarted so that the step alone decides what is due, after a resume or a retry too. The trainer keeps rows.
        self.monitor.restart(None, step - 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16):
            row = self.monitor.look(step)
        return None if row is None else {name: value for name, value in row.items() if name != "step"}
