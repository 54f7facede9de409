"""Which eigenvalue dominates when all heads act together, computed beside the training: a thread works on copies.

Arnoldi takes seconds where a look takes a fraction of a step. The look copies the attention of the probe's first input
and the weights to the CPU, a thread does the rest without touching the model or a random state, and what it comes to is
in the first look after it is ready.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.steered import steered_as
from oversmooth.monitor.looks import Eyes, Probe, observed
from oversmooth.results.facts import plain
from oversmooth.safety.errors import InputError, reason
from oversmooth.theory.dominance import dominance
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import AttentionChange
from oversmooth.trace.plans import BlockPlan
from oversmooth.trace.reducers import EachAttention

NAMES = ("joined_rho_smooth", "joined_rho_rough")
STEP = "joined_step"
"""The step whose weights and attention the others are of."""


@dataclass
class _Layer:
    """Copies on the CPU."""

    A: DenseAttention
    W_V: Tensor
    W_O: Tensor
    keep: float
    change: AttentionChange | None


class JoinedSpectra:
    """One computation at a time; a look that is due while one runs begins none."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answer: dict[str, Any] | Exception | None = None

    def begin(self, eyes: Eyes, probe: Probe, step: int) -> None:
        """Copy what is needed, and go to work.

        Args:
            eyes: the model and its attention.
            probe: whose first input is taken.
            step: the number of the look.
        """
        if self._thread is not None:
            return
        copies = _copies(eyes, probe)
        self._thread = threading.Thread(target=self._work, args=(copies, step), daemon=True)
        self._thread.start()

    def _work(self, copies: list[_Layer | None], step: int) -> None:
        try:
            rows = [_radii(layer) for layer in copies]
            self._answer = {name: [row[i] for row in rows] for i, name in enumerate(NAMES)} | {STEP: step}
        except Exception as error:  # told where the look is that would have had it
            self._answer = error

    def ready(self, *, wait: bool = False) -> dict[str, Any]:
        """What was computed since it was last asked; empty where nothing was.

        Args:
            wait: until it is there, where anything is computed.

        Raises:
            InputError: it failed.
        """
        if self._thread is None:
            return {}
        if wait:
            self._thread.join()
        if self._thread.is_alive():
            return {}
        answer, self._thread, self._answer = self._answer, None, None
        if isinstance(answer, Exception):
            raise InputError(f"joined spectra could not be computed ({reason(answer)}); leave them out") from answer
        return answer or {}


def _radii(layer: _Layer | None) -> tuple[float | None, float | None]:
    if layer is None:
        return None, None
    with torch.no_grad():
        both = dominance(layer.A, layer.W_V, layer.W_O, residual=layer.keep, change=layer.change, limit=False)
    return plain(both.rho_smooth[0]), plain(both.rho_rough[0])


def _copies(eyes: Eyes, probe: Probe) -> list[_Layer | None]:
    """By block, in the order in which they ran; None where no theorem decides."""
    steering = steered_as(eyes.model)
    layers: dict[int, _Layer | None] = {}

    def look(call: int, block: BlockPlan, A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> None:
        if call in layers:
            return
        if block.undecided:
            layers[call] = None
            return
        one = A.select(torch.zeros(1, dtype=torch.long, device=A.device)).dense()
        mask = None if one.mask is None else _cpu(one.mask)
        site = None if steering is None else steering.site(block.layer.name)
        layers[call] = _Layer(
            DenseAttention.trusted(_cpu(one.A), mask, one.causal, one.rounding),
            _cpu(W_V),
            _cpu(W_O),
            float(block.layer.keep),
            None if site is None else _change(site.change(call)),
        )

    plan = observed(eyes, probe, eyes.known("joined spectra"), lambda _: EachAttention(look), attention=True)[0]
    return [layers.get(call) for call in range(len(plan.blocks))]


def _change(change: AttentionChange | None) -> AttentionChange | None:
    if change is None:
        return None
    given = {one.name: getattr(change, one.name) for one in dataclasses.fields(change)}
    moved: dict[str, Any] = {name: _cpu(value) for name, value in given.items() if isinstance(value, Tensor)}
    return dataclasses.replace(change, **moved)


def _cpu(x: Tensor) -> Tensor:
    """A copy that no optimiser writes to."""
    return x.detach().to("cpu", copy=True)
