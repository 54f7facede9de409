"""Records smoothing while a model trains: `SmoothingProbe` by default, or everything `oversmooth.Monitor` records.

The trainer decides when a snapshot is due and writes it. The default is cheap: HFC/LFC and cosines after every block,
on a few fixed inputs, without ranks. On a GPU its forward pass is a CUDA graph that leaves the tokens of all depths in
one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from oversmooth.monitor.monitor import Monitor
from oversmooth.monitor.names import TOKENS
from oversmooth.safety.model_state import in_eval_mode
from oversmooth.trace import DepthMetrics, Plan, Reducer, Site, Trace
from oversmooth_papers.cuda_graphs import captured
from oversmooth_papers.engine.task import Task

RARELY = 10  # snapshots from one in which `MonitorWatcher` runs further passes and computes eigenvalues to the next


class Watcher(Protocol):
    """``watcher.snapshot(step)``: metrics after a step; training is not affected."""

    def snapshot(self, step: int) -> dict[str, Any] | None:
        """By metric one number per depth, or one number, each finite or None. None if the snapshot failed."""


MakesWatcher = Callable[[Task, nn.Module, torch.device, int], Watcher]
"""Called with the model on its device and the steps between snapshots; the first and last step have one too."""


class SmoothingProbe:
    """Numbers by depth, the embedding first, each the mean over the task's probe."""

    def __init__(self, task: Task, model: nn.Module, device: torch.device, _every: int = 1) -> None:
        self.task, self.model, self.device = task, model, device
        self.probe = task.probe(model, device)
        names = {module: name for name, module in model.named_modules()}
        self.stored = _Stored([names[block] for block in self.probe.blocks])
        self._body()
        self._run: Callable[[], None] = captured(self._body) if device.type == "cuda" else self._body

    def _body(self) -> None:
        with in_eval_mode(self.model), self.task.recipe.autocast(self.device):
            self.stored.fill(self.model, self.probe.inputs)

    def snapshot(self, step: int) -> dict[str, list[float]]:  # noqa: ARG002 (all snapshots are alike)
        self._run()
        tokens = {name: [float(f"{value:.5g}") for value in row] for name, row in self.stored.measure().items()}
        return tokens | self.task.weight_metrics(self.model)


class _Stored(Reducer):
    """The tokens of every depth in one array that stays where it is, so that a CUDA graph can fill it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.tokens: Tensor | None = None  # (depth + 1, inputs, n, d) in float32, as the first pass shows

    @torch.no_grad()
    def fill(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        with Trace(model, Plan.of_names(dict.fromkeys(self.names)), [self]) as trace:
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
    """Everything a monitor records from a probe without labels, except spectra of all heads jointly.

    Those are computed in a thread that ends at no fixed step, so a resumed run would have another history.

    On a GPU a step is a CUDA graph, which reads and writes weights and buffers by their address. A snapshot is an eager
    pass between two replays, and leaves every tensor at its address: hooks only read, buffers are restored in place,
    and no parameter is assigned. A snapshot allocates outside the graph's memory.
    """

    def __init__(self, task: Task, model: nn.Module, device: torch.device, every: int) -> None:
        probe = task.probe(model, device)
        self.device, self.recipe = device, task.recipe
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
        with self.recipe.autocast(self.device):
            row = self.monitor.snapshot(step)
        return None if row is None else {name: value for name, value in row.items() if name != "step"}
