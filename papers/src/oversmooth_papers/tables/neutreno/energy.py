"""Nguyen et al.'s energies along a trained model's layers: does attention bring them down, as its derivation has it?

    oversmooth reproduce neutreno energy MODEL... --data DATA --strength 0.6

For the kernel ``k = exp(q·k/√d)`` of each head, ``J(u) = ½ Σ k_ij ‖u_i − u_j‖²``, ``G(u) = ½ Σ λ_i ‖u_i − v⁰_i‖²`` with
``λ_i = λ̃ Σ_j (k_ij + k_ji)``, and ``E = J + G`` (THEORY §6). Per layer, over inputs and heads:

* J, G: at u = V, the layer's values, over ``½ Σ_ij (k_ij + k_ji) ‖v_i‖²``, so that they have no scale; J lies between
  0 (all tokens alike) and 2;
* E after attention, step and flow: over E(V), and in brackets the share of cases in which it falls. Attention is
  ``A V + λ̃ (V⁰ − V)`` with the model's own A, the step Nguyen et al.'s Euler step, in which the kernel is made
  symmetric, and the flow that of E after the same time, which must fall throughout, and is looked at eight times;
* Euler off by: ``‖step − flow‖/‖flow − V‖``.

The first layer has V = V⁰ and no G. Causal attention is left out: its kernel is never symmetric. The paper reports none
of these figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.inputs.batches import Inputs
from oversmooth.metrics import fidelity_energy, nonlocal_energy
from oversmooth.models import Loaded
from oversmooth.observe import study
from oversmooth.observe.feed import Runner
from oversmooth.report.style import fixed, percent
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory import gradient_step
from oversmooth.theory.kernels import gradient_flow
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.neutreno.kernel import CAUSAL, one_by_one, scores_of

HEAD = ("model", "block", "J", "G", "E after attention", "after step", "after flow", "Euler off by", "cases")
_TIMES = tuple(i / 8 for i in range(1, 9))


@dataclass(frozen=True)
class LayerEnergy:
    """Means over inputs and heads of one layer; None for causal attention, which has no symmetric kernel."""

    model: str
    depth: int
    """Which block, from 1."""
    cases: int
    """Inputs times heads."""
    J: float | None = None
    G: float | None = None
    attention: float | None = None
    attention_falls: float | None = None
    step: float | None = None
    step_falls: float | None = None
    flow: float | None = None
    flow_falls: float | None = None
    euler: float | None = None

    @property
    def row(self) -> tuple[str, ...]:
        if self.J is None:
            return (self.model, str(self.depth), CAUSAL, *["–"] * 5, str(self.cases))
        pairs = ((self.attention, self.attention_falls), (self.step, self.step_falls), (self.flow, self.flow_falls))
        shown = [f"{fixed(ratio, 3)} ({percent(falls)})" for ratio, falls in pairs]
        energies = fixed(self.J, 3), fixed(self.G, 3)
        return (self.model, str(self.depth), *energies, *shown, fixed(self.euler, 3), str(self.cases))


@torch.no_grad()
def energies(
    loaded: Loaded, inputs: Inputs, strength: float = 0.6, progress: Callable[[int], None] | None = None
) -> list[LayerEnergy]:
    """The energies of a model's layers on inputs, one input at a time.

    Args:
        loaded: the model, not steered.
        inputs: one per batch.
        strength: λ̃ of G; 0 leaves it out.
        progress: called with the number of inputs done.

    Raises:
        InputError: there are no inputs, or attention or values are not seen.
    """
    strength = float(arguments.number(strength, "strength", "give a number, 0 or more", least=0.0))
    anatomy = locate(loaded.model)
    run = Runner(loaded.model, anatomy)
    per_layer: list[list[tuple[Tensor, ...] | int]] = []
    for done, one in enumerate(one_by_one(run, inputs), 1):
        with _Values(loaded.model, anatomy) as values:
            blocks = study(loaded.model, anatomy, lambda one=one: run(one), run.mask(one))
        if len(values.seen) != len(blocks):
            raise InputError(f"{loaded.name}: its values do not pass through a module of theirs; choose another model")
        per_layer = per_layer or [[] for _ in blocks]
        for depth, (measured, block) in enumerate(zip(per_layer, blocks, strict=True)):
            seen = scores_of(block)
            if isinstance(seen, int):
                measured.append(seen)
                continue
            scores, counted = seen
            V, first = (values.seen[i][:, counted].to(scores) for i in (depth, 0))
            measured.append(case_energies(scores, V, first, strength if depth else 0.0))
        if progress is not None:
            progress(done)
    if not per_layer:
        raise InputError("there are no inputs; give at least one")
    return [_mean(loaded.name, depth, measured) for depth, measured in enumerate(per_layer, 1)]


def case_energies(scores: Tensor, V: Tensor, first: Tensor, strength: float) -> tuple[Tensor, ...]:
    """The nine numbers of `LayerEnergy` for each head.

    Args:
        scores: ``(heads, n, n)``: what softmax gets.
        V: ``(heads, n, k)``: values.
        first: ``(heads, n, k)``: V⁰.
        strength: λ̃.
    """
    # One factor for all pairs of tokens changes no ratio.
    kernel = (scores - scores.amax((-2, -1), keepdim=True)).exp()
    degrees = kernel.sum(-1) + kernel.sum(-2)
    size = (degrees[..., None] * V.square()).sum((-2, -1)) / 2
    lam = strength * degrees

    def E(u: Tensor) -> Tensor:
        return fidelity_energy(u, first, kernel, lam)

    J, start = nonlocal_energy(V, kernel), E(V)
    flow = gradient_flow(scores, V, first, strength, _TIMES)
    step = gradient_step(scores, V) + strength * (first - V)
    mixed = scores.softmax(-1) @ V + strength * (first - V)
    course = torch.stack([start, *(E(u) for u in flow)])
    falls = (course[1:] <= course[:-1] * (1 + 1e-12)).all(0)
    norm = torch.linalg.matrix_norm
    euler = norm(step - flow[-1]) / norm(flow[-1] - V)
    after, stepped = E(mixed), E(step)
    columns = (J / size, (start - J) / size, after / start, after < start, stepped / start, stepped < start)
    return tuple(x.double() for x in (*columns, course[-1] / start, falls, euler))


class _Values:
    """Hooks on the value projections: every layer's values ``(heads, n, k)`` of one input, in the order they ran."""

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self.seen: list[Tensor] = []
        modules = dict(model.named_modules(remove_duplicate=False))
        distinct = {layer.name: layer for layer in anatomy}.values()
        self._handles = [modules[layer.value_module[0]].register_forward_hook(self._hook(layer)) for layer in distinct]

    def _hook(self, layer: AttentionLayer) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(_module: nn.Module, _args: Any, out: Tensor) -> None:
            _, V = layer.split(out, -1)
            by_head = V[0].transpose(0, 1).repeat_interleave(layer.heads // layer.kv_heads, 0)
            self.seen.append(by_head.detach().clone())

        return keep

    def __enter__(self) -> _Values:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _mean(model: str, depth: int, measured: Sequence[tuple[Tensor, ...] | int]) -> LayerEnergy:
    causal = [heads for heads in measured if isinstance(heads, int)]
    if causal:
        return LayerEnergy(model, depth, sum(causal))
    columns = [torch.cat(column) for column in zip(*(m for m in measured if not isinstance(m, int)), strict=True)]
    means = [float(column.mean()) for column in columns]
    return LayerEnergy(model, depth, len(columns[0]), *means)


def markdown(layers: Sequence[LayerEnergy]) -> str:
    """The table as a file."""
    return table_text.markdown(HEAD, [layer.row for layer in layers])
