"""Nguyen et al. derive attention as a gradient step for a symmetric kernel. How far from that are real models?

    oversmooth reproduce neutreno kernel MODEL... --data DATA

Per layer, over inputs and heads:

* asymmetry: of ``Π^½ A Π^−½``, π the stationary distribution: 0 where a symmetric kernel makes the attention;
* least eigenvalue: of its symmetric part, whose greatest is 1; below 0 the kernel is not positive semi-definite;
* the step: ``‖A − A'‖/‖A‖`` in the Frobenius norm, A' what Nguyen et al.'s gradient step does for this kernel.

Causal attention is left out: a token's kernel with a later one is 0 and not the other way round, so it is never
symmetric. The paper reports none of these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy
from oversmooth.inputs.batches import Inputs
from oversmooth.models import Loaded
from oversmooth.observe import study
from oversmooth.observe.feed import Runner
from oversmooth.observe.stages import SeenBlock
from oversmooth.report.style import fixed, percent
from oversmooth.safety.errors import InputError
from oversmooth.theory import SoftmaxAttention, attention_kernel, gradient_step

HEAD = ("model", "block", "asymmetry", "least eigenvalue", "eigenvalues below 0", "step off by", "cases")
CAUSAL = "causal: never symmetric"
Progress = Callable[[int], None]
"""Told how many inputs are done."""


@dataclass(frozen=True)
class Layer:
    """Means over inputs and heads of one layer; None for causal attention, which has no symmetric kernel."""

    model: str
    depth: int
    """Which block, from 1."""
    cases: int
    """Inputs times heads."""

    def shown(self) -> list[str]:
        """The figures; none for causal attention."""
        raise NotImplementedError

    def row(self, columns: int) -> list[str]:
        """Of a table of so many columns."""
        shown = self.shown() or [CAUSAL, *["–"] * (columns - 4)]
        return [self.model, str(self.depth), *shown, str(self.cases)]


@dataclass(frozen=True)
class LayerKernel(Layer):
    """The kernel's figures."""

    asymmetry: float | None = None
    least: float | None = None
    negative_share: float | None = None
    step: float | None = None

    def shown(self) -> list[str]:
        if self.negative_share is None:
            return []
        return [fixed(self.asymmetry, 3), fixed(self.least, 3), percent(self.negative_share), fixed(self.step, 3)]


@torch.no_grad()
def kernels(loaded: Loaded, inputs: Inputs, progress: Progress | None = None) -> list[LayerKernel]:
    """The kernels of a model's layers on inputs, which come one per batch."""
    anatomy = locate(loaded.model)
    means = layer_means(loaded, anatomy, inputs, lambda see: [_measured(block) for block in see()], progress)
    return [LayerKernel(loaded.name, depth, cases, *own) for depth, (cases, own) in enumerate(means, 1)]


def layer_means(
    loaded: Loaded,
    anatomy: Anatomy,
    inputs: Inputs,
    measure: Callable[[Callable[[], list[SeenBlock]]], list[Tensor]],
    progress: Progress | None,
) -> list[tuple[int, list[float]]]:
    """For each layer the number of cases, inputs times heads, and means over them.

    Args:
        loaded: the model, not steered.
        anatomy: its layers.
        inputs: one per batch.
        measure: given what runs the model on one input and returns its blocks, the figures of each block, ``(figures,
            heads)``; ``(0, heads)`` for causal attention.
        progress: told how many inputs are done.

    Raises:
        InputError: there are no inputs, or a batch held more than one, of which all but the first would be left out.
    """
    run = Runner(loaded.model, anatomy)
    per_input: list[list[Tensor]] = []
    for batch in run.batches(inputs):
        one = run.first_input(batch)
        per_input.append(measure(partial(study, loaded.model, anatomy, partial(run, one), run.mask(one))))
        if progress is not None:
            progress(len(per_input))
    if not per_input:
        raise InputError("there are no inputs; give at least one")
    if len(per_input) < inputs.count:
        raise InputError(f"{inputs.count} inputs come in {len(per_input)} batches; give them one by one, with batch=1")
    means = []
    for layer in zip(*per_input, strict=True):
        figures = torch.cat([one[: min(map(len, layer))] for one in layer], 1)  # none if it is causal on any input
        means.append((figures.shape[1], [float(figure.mean()) for figure in figures]))
    return means


def scores_of(block: SeenBlock) -> tuple[Tensor, Tensor | slice]:
    """What softmax got on one input, ``(heads, n, n)`` in float64, of the tokens that count, and which those are; of
    causal attention an empty ``(0, heads)``.

    Raises:
        InputError: attention was not seen as queries and keys.
    """
    A = block.A
    if not isinstance(A, SoftmaxAttention):
        raise InputError(f"{block.layer.name}: its attention is not seen as queries and keys; choose another model")
    if A.causal:
        return torch.empty(0, A.shape[-3]), slice(None)
    counted = slice(None) if A.mask is None else A.mask[0, 0]
    scores = (A.q[0] @ A.k[0].mT).double() * A.scale
    return (scores if A.bias is None else scores + A.bias[0].double())[:, counted][:, :, counted], counted


def _measured(block: SeenBlock) -> Tensor:
    """Asymmetry, least eigenvalue, negative share and step of each head; of causal attention none."""
    scores, _ = scores_of(block)
    if not scores.numel():
        return scores
    attention = scores.softmax(-1)
    kernel = attention_kernel(attention)
    step = gradient_step(scores, torch.eye(scores.shape[-1]).to(scores).expand_as(scores))
    off = torch.linalg.matrix_norm(step - attention) / torch.linalg.matrix_norm(attention)
    return torch.stack([x.double() for x in (kernel.asymmetry, kernel.least, kernel.negative_share, off)])
