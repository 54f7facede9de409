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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.anatomy import locate
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.models import Loaded
from oversmooth.observe import study
from oversmooth.observe.feed import Runner
from oversmooth.observe.stages import SeenBlock
from oversmooth.report.style import fixed, percent
from oversmooth.safety.errors import InputError
from oversmooth.theory import SoftmaxAttention, attention_kernel, gradient_step
from oversmooth_papers.tables import table_text

HEAD = ("model", "block", "asymmetry", "least eigenvalue", "eigenvalues below 0", "step off by", "cases")
CAUSAL = "causal: never symmetric"


@dataclass(frozen=True)
class LayerKernel:
    """Means over inputs and heads of one layer; None for causal attention, which has no symmetric kernel."""

    model: str
    depth: int
    """Which block, from 1."""
    cases: int
    """Inputs times heads."""
    asymmetry: float | None = None
    least: float | None = None
    negative_share: float | None = None
    step: float | None = None

    @property
    def row(self) -> tuple[str, ...]:
        if self.asymmetry is None or self.least is None or self.negative_share is None:
            return (self.model, str(self.depth), CAUSAL, "–", "–", "–", str(self.cases))
        numbers = fixed(self.asymmetry, 3), fixed(self.least, 3), percent(self.negative_share), fixed(self.step, 3)
        return (self.model, str(self.depth), *numbers, str(self.cases))


@torch.no_grad()
def kernels(loaded: Loaded, inputs: Inputs, progress: Callable[[int], None] | None = None) -> list[LayerKernel]:
    """The kernels of a model's layers on inputs, which come one per batch."""
    anatomy = locate(loaded.model)
    run = Runner(loaded.model, anatomy)
    per_layer: list[list[tuple[Tensor, ...] | int]] = []
    for done, one in enumerate(one_by_one(run, inputs), 1):
        blocks = study(loaded.model, anatomy, lambda one=one: run(one), run.mask(one))
        per_layer = per_layer or [[] for _ in blocks]
        for measured, block in zip(per_layer, blocks, strict=True):
            measured.append(_measured(block))
        if progress is not None:
            progress(done)
    if not per_layer:
        raise InputError("there are no inputs; give at least one")
    return [_mean(loaded.name, depth, measured) for depth, measured in enumerate(per_layer, 1)]


def one_by_one(run: Runner, inputs: Inputs) -> Iterator[Batch | Tensor]:
    """The inputs, which come one per batch.

    Raises:
        InputError: a batch held more than one input, of which all but the first would be left out.
    """
    batches = 0
    for batches, batch in enumerate(run.batches(inputs), 1):  # noqa: B007
        yield run.first_input(batch)
    if 0 < batches < inputs.count:
        raise InputError(f"{inputs.count} inputs come in {batches} batches; give them one by one, with batch=1")


def scores_of(block: SeenBlock) -> tuple[Tensor, Tensor | slice] | int:
    """What softmax got on one input, ``(heads, n, n)`` in float64, of the tokens that count, and which those are; of
    causal attention the number of heads.

    Raises:
        InputError: attention was not seen as queries and keys.
    """
    A = block.A
    if not isinstance(A, SoftmaxAttention):
        raise InputError(f"{block.layer.name}: its attention is not seen as queries and keys; choose another model")
    if A.causal:
        return A.shape[-3]
    counted = slice(None) if A.mask is None else A.mask[0, 0]
    scores = (A.q[0] @ A.k[0].mT).double() * A.scale
    return (scores if A.bias is None else scores + A.bias[0].double())[:, counted][:, :, counted], counted


def _measured(block: SeenBlock) -> tuple[Tensor, ...] | int:
    """Per head: asymmetry, least eigenvalue, negative share, step; of causal attention the number of heads."""
    seen = scores_of(block)
    if isinstance(seen, int):
        return seen
    scores, _ = seen
    attention = scores.softmax(-1)
    kernel = attention_kernel(attention)
    identity = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device).expand_as(scores)
    step = gradient_step(scores, identity)
    off = torch.linalg.matrix_norm(step - attention) / torch.linalg.matrix_norm(attention)
    return kernel.asymmetry, kernel.least, kernel.negative_share, off


def _mean(model: str, depth: int, measured: Sequence[tuple[Tensor, ...] | int]) -> LayerKernel:
    causal = [heads for heads in measured if isinstance(heads, int)]
    if causal:
        return LayerKernel(model, depth, sum(causal))
    columns = [torch.cat(column) for column in zip(*(m for m in measured if not isinstance(m, int)), strict=True)]
    means = [float(column.mean()) for column in columns]
    return LayerKernel(model, depth, len(columns[0]), *means)


def markdown(layers: Sequence[LayerKernel]) -> str:
    """The table as a file."""
    return table_text.markdown(HEAD, [layer.row for layer in layers])
