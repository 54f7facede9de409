"""What records smoothing while a model trains: `SmoothingProbe` by default, or all that `oversmooth.Monitor` sees.

The trainer decides when a snapshot is due and writes it. The default sees little, and is cheap by design: HFC/LFC and
cosines after every block, on a few fixed inputs, no ranks, and on a GPU a forward pass that is a CUDA graph and leaves
the tokens of all depths in one array, measured in one sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from oversmooth.monitor.monitor import Monitor
from oversmooth.monitor.names import TOKENS
from oversmooth.safety.untouched import in_eval_mode
from oversmooth.trace import DepthMetrics, Plan, Reducer, Site, Trace
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
        names = {module: name for name, module in model.named_modules()}
        self.stored = _Stored([names[block] for block in self.probe.blocks])
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _body(self) -> None:
        in_bf16 = self.task.recipe.autocasts(self.device.type)
        with in_eval_mode(self.model), torch.autocast(self.device.type, torch.bfloat16, enabled=in_bf16):
            self.stored.fill(self.model, self.probe.inputs)

    def look(self, step: int) -> dict[str, list[float]]:  # noqa: ARG002 (all looks are alike)
        self._run()
        seen = {name: [float(f"{value:.5g}") for value in row] for name, row in self.stored.measure().items()}
        return seen | self.task.look_at_weights(self.model)


class _Stored(Reducer):
    """The tokens of every depth in one array that stays where it is, so that a CUDA graph can fill it.

    Args:
        names: of the blocks, in the order in which they run, each once.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.tokens: Tensor | None = None
        """``(depth + 1, inputs, n, d)`` in float32, as the first pass shows."""

    @torch.no_grad()
    def fill(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        """Store what one call of the model on inputs shows, which are always the same."""
        with Trace(model, Plan.of_names(dict.fromkeys(self.names)), [self], replay=False) as trace:
            trace.begin()
            model(*inputs)

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        del mask
        if self.tokens is None:
            self.tokens = torch.zeros(len(self.names) + 1, *x.shape, device=x.device)
        if site.depth is not None:
            self.tokens[site.depth].copy_(x)

    def measure(self) -> dict[str, list[float]]:
        """HFC/LFC and cosines by depth, each the mean over inputs."""
        assert self.tokens is not None, "the first pass made it"
        depths = DepthMetrics(ranks=0)
        for depth, x in enumerate(self.tokens):
            depths.numbers.update(depth, x)
        depths.finish()
        return depths.means(("hfc_lfc", "cos", "abs_cos"))


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
