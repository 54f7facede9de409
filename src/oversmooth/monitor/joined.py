"""Which eigenvalue dominates when all heads act jointly, computed beside the training: a thread works on copies.

Arnoldi takes seconds where a snapshot takes a fraction of a step. The snapshot copies the attention of the probe's
first input and the weights to the CPU; a thread does the rest without touching the model or a random state.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oversmooth.anatomy.steered import steered_as
from oversmooth.monitor.probe import Probe
from oversmooth.results.facts import plain
from oversmooth.safety.errors import InputError, reason
from oversmooth.theory.dominance import JOINT_STEPS, dominance
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import AttentionChange
from oversmooth.trace.plans import BlockPlan
from oversmooth.trace.reducers import EachAttention

_NAMES = ("joined_rho_smooth", "joined_rho_rough")
STEP = "joined_step"
"""The step whose weights and attention the others are of."""


class _Layer(NamedTuple):
    """Copies on the CPU."""

    A: DenseAttention
    W_V: Tensor
    W_O: Tensor
    keep: float
    change: AttentionChange | None


class JoinedSpectra:
    """One computation at a time; a snapshot that is due while one runs begins none."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answer: dict[str, Any] | Exception = {}

    def begin(self, probe: Probe, step: int) -> None:
        """Copy what is needed, and go to work. step: the number of the snapshot."""
        if self._thread is None:
            # As a daemon, so that a program may end before it does.
            self._thread = threading.Thread(target=self._work, args=(_copies(probe), step), daemon=True)
            self._thread.start()

    def _work(self, copies: list[_Layer | None], step: int) -> None:
        try:
            columns = zip(*map(_radii, copies), strict=True)
            self._answer = {**dict(zip(_NAMES, map(list, columns), strict=True)), STEP: step}
        except Exception as error:  # shown in the snapshot that would have had it
            self._answer = error

    def ready(self, *, wait: bool = False) -> dict[str, Any]:
        """What was computed since the last call; empty where nothing was. wait: until it is there, where anything runs.

        Raises:
            InputError: it failed.
        """
        if self._thread is not None and wait:
            self._thread.join()
        if self._thread is None or self._thread.is_alive():
            return {}
        answer, self._thread = self._answer, None
        if isinstance(answer, Exception):
            raise InputError(f"joined spectra could not be computed ({reason(answer)}); leave them out") from answer
        return answer


def _radii(layer: _Layer | None) -> tuple[float | None, float | None]:
    if layer is None:
        return None, None
    with torch.no_grad():
        both = dominance(
            layer.A,
            layer.W_V,
            layer.W_O,
            residual=layer.keep,
            change=layer.change,
            limit=False,
            steps=JOINT_STEPS,  # as a diagnosis has them
        )
    return plain(both.rho_smooth[0]), plain(both.rho_rough[0])


def _copies(probe: Probe) -> list[_Layer | None]:
    """By block, in the order in which they ran; None where no theorem decides."""
    steering = steered_as(probe.model.module)
    layers: dict[int, _Layer | None] = {}

    def copy(call: int, block: BlockPlan, A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> None:
        if call in layers or block.undecided:
            layers.setdefault(call, None)
            return
        one = A.select(torch.zeros(1, dtype=torch.long, device=A.device)).dense()
        mask = None if one.mask is None else _cpu(one.mask)
        site = None if steering is None else steering.steered_layer(block.layer.name)
        copied = DenseAttention.trusted(_cpu(one.A), mask, one.causal, one.rounding)
        change = None if site is None else _on_cpu(site.change(call))
        layers[call] = _Layer(copied, _cpu(W_V), _cpu(W_O), float(block.layer.keep), change)

    plan, _ = probe.traced(lambda _: [EachAttention(copy)], attention=True)
    return [layers.get(call) for call in range(len(plan.blocks))]


def _on_cpu(change: AttentionChange | None) -> AttentionChange | None:
    if change is None:
        return None
    values = {one.name: getattr(change, one.name) for one in dataclasses.fields(change)}
    moved: dict[str, Any] = {name: _cpu(value) for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(change, **moved)


def _cpu(x: Tensor) -> Tensor:
    """A copy that no optimiser writes to."""
    return x.detach().to("cpu", copy=True)
