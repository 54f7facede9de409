"""Which eigenvalue dominates when all heads act jointly, computed beside the training: a thread works on copies.

Arnoldi takes seconds where a snapshot takes a fraction of a step. The snapshot copies the attention of the probe's
first input and the weights to the CPU; a thread does the rest without touching the model or a random state.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.steered import steered_as
from oversmooth.monitor.probe import Probe
from oversmooth.results.facts import plain
from oversmooth.safety.errors import InputError, reason
from oversmooth.theory.dominance import JOINT_STEPS, Dominance, dominance
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import AttentionChange
from oversmooth.trace.plans import BlockPlan
from oversmooth.trace.reducers import EachAttention

_Work = Callable[[], Dominance]


class JoinedSpectra:
    """One computation at a time; a snapshot that is due while one runs begins none."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answer: dict[str, Any] | Exception = {}

    def begin(self, probe: Probe, step: int) -> None:
        """Copy what is needed, and go to work. step: the number of the snapshot."""
        if self._thread is None:
            # As a daemon, so that a program may end before it does.
            self._thread = threading.Thread(target=self._work, args=(_copied(probe), step), daemon=True)
            self._thread.start()

    def _work(self, layers: list[_Work | None], step: int) -> None:
        try:
            with torch.no_grad():
                found = [None if work is None else work() for work in layers]
            smooth = [None if both is None else plain(both.rho_smooth[0]) for both in found]
            rough = [None if both is None else plain(both.rho_rough[0]) for both in found]
            self._answer = {"joined_rho_smooth": smooth, "joined_rho_rough": rough, "joined_step": step}
        except Exception as error:  # shown in the snapshot that would have had it
            self._answer = error

    def ready(self, *, wait: bool = False) -> dict[str, Any]:
        """What was computed since the last call, an InputError where that failed; empty where nothing was. wait: until
        it is there, where anything runs.
        """
        if self._thread is not None and wait:
            self._thread.join()
        if self._thread is None or self._thread.is_alive():
            return {}
        answer, self._thread = self._answer, None
        if isinstance(answer, Exception):
            raise InputError(f"joined spectra could not be computed ({reason(answer)}); leave them out") from answer
        return answer


def _copied(probe: Probe) -> list[_Work | None]:
    """What is to be computed of each block, in the order in which they ran; None where no theorem decides."""
    steering = steered_as(probe.model.module)
    layers: dict[int, _Work | None] = {}

    def copy(call: int, block: BlockPlan, A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> None:
        if call in layers or block.undecided:
            layers.setdefault(call, None)
            return
        one = A.select(torch.zeros(1, dtype=torch.long, device=A.device)).dense()
        mask = None if one.mask is None else _cpu(one.mask)
        alone = DenseAttention.trusted(_cpu(one.A), mask, one.causal, one.rounding)
        site = None if steering is None else steering.steered_layer(block.layer.name)
        change: AttentionChange | None = None if site is None else site.change(call)
        if change is not None:
            values = {field.name: getattr(change, field.name) for field in dataclasses.fields(change)}
            moved: dict[str, Any] = {name: _cpu(x) for name, x in values.items() if isinstance(x, Tensor)}
            change = dataclasses.replace(change, **moved)
        work = partial(dominance, alone, _cpu(W_V), _cpu(W_O), residual=float(block.layer.keep), change=change)
        layers[call] = partial(work, limit=False, steps=JOINT_STEPS)  # as a diagnosis has them

    plan, _ = probe.traced(lambda _: [EachAttention(copy)], attention=True)
    return [layers.get(call) for call in range(len(plan.blocks))]


def _cpu(x: Tensor) -> Tensor:
    """A copy that no optimiser writes to."""
    return x.detach().to("cpu", copy=True)
