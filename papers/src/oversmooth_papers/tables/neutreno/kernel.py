"""Nguyen et al. derive attention as a gradient step for a symmetric kernel. How far from that are real models?

    oversmooth reproduce neutreno kernel MODEL... --data DATA

Per layer, means over inputs and heads; docs/neutreno.md says of what. Causal attention is left out: a token's kernel
with a later one is 0 and not the other way round, so it is never symmetric. The paper reports none of these figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from oversmooth.anatomy import locate
from oversmooth.inputs.batches import Inputs
from oversmooth.models import Loaded
from oversmooth.report.style import fixed, percent
from oversmooth.safety.errors import InputError
from oversmooth.theory import SoftmaxAttention
from oversmooth.trace import study
from oversmooth.trace.feed import Runner
from oversmooth.trace.plans import SampleBlock

HEAD = ("model", "block", "asymmetry", "least eigenvalue", "eigenvalues below 0", "step off by", "cases")
CAUSAL = "causal: never symmetric"
_NEARLY = 0.01  # asymmetry up to which a kernel counts as symmetric
Progress = Callable[[int], None]
"""Told how many inputs are done."""


class KernelOfAttention(NamedTuple):
    """What ``B = Π^½ A Π^−½`` says, symmetric where a symmetric kernel makes A (THEORY §6); ``(...)`` each."""

    asymmetry: Tensor
    """``‖B − Bᵀ‖/‖B + Bᵀ‖`` in the Frobenius norm: 0 for a symmetric kernel, 1 where nothing flows back. The flow ΠA
    itself would show little but the tokens that all others look at.
    """
    least: Tensor
    """The least eigenvalue of the symmetric part of B, whose greatest is 1; negative where it is not positive
    semi-definite.
    """
    negative_share: Tensor
    """Of the eigenvalues of that, those below zero."""


@torch.no_grad()
def attention_kernel(A: Tensor) -> KernelOfAttention:
    """The kernel behind attention ``(..., n, n)`` in float64 that hides nothing: how symmetric, how positive.

    Raises:
        InputError: an entry is zero, as in windows.

    >>> K = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> found = attention_kernel(K / K.sum(-1, keepdim=True))
    >>> round(float(found.asymmetry), 6), round(float(found.least), 4)
    (0.0, 0.4167)
    """
    if not bool((A > 0).all()):
        hidden = float((A <= 0).double().mean())
        raise InputError(
            f"{hidden:.1%} of attention is 0; the kernel is known where none is: give attention without a mask"
        )
    A = A / A.sum(-1, keepdim=True)
    root = _stationary(A)[..., None].sqrt()
    if not bool((root > 0).all() and root.isfinite().all()):
        raise InputError(
            "some tokens are looked at less than 1e-300 of the time, which no number holds; scale the scores down"
        )
    B = root * A / root.mT  # at most √A_ij, since π_j ≥ π_i A_ij
    asymmetry = torch.linalg.matrix_norm(B - B.mT) / torch.linalg.matrix_norm(B + B.mT)
    values = torch.linalg.eigvalsh((B + B.mT) / 2)
    rounding = A.shape[-1] * torch.finfo(A.dtype).eps
    return KernelOfAttention(asymmetry, values[..., 0], (values < -rounding).double().mean(-1))


def _stationary(A: Tensor) -> Tensor:
    """π with ``π A = π``, ``(..., n)``: each entry to full relative precision, since nothing is subtracted (Grassmann,
    Taksar and Heyman's elimination).
    """
    A, n = A.clone(), A.shape[-1]
    for last in range(n - 1, 0, -1):
        leaves = A[..., last, :last]
        A[..., :last, last] /= leaves.sum(-1, keepdim=True)
        A[..., :last, :last] += A[..., :last, last, None] * leaves[..., None, :]
    pi = torch.zeros(A.shape[:-1], dtype=A.dtype, device=A.device)
    pi[..., 0] = 1.0
    for token in range(1, n):
        pi[..., token] = (pi[..., :token] * A[..., :token, token]).sum(-1)
    return pi / pi.sum(-1, keepdim=True)


class Layer(NamedTuple):
    """One block: inputs times heads, and means over them by name; none for causal attention."""

    cases: int
    figures: dict[str, float]


def kernels(loaded: Loaded, inputs: Inputs, progress: Progress = lambda _done: None) -> list[Layer]:
    """The kernels of a model's layers on inputs, which come one per batch."""
    return layer_means(loaded, inputs, lambda blocks: [_measured(block) for block in blocks], progress)


def _measured(block: SampleBlock) -> dict[str, Tensor]:
    if (seen := scores_of(block)) is None:
        return {}
    scores, _ = seen
    attention = scores.softmax(-1)
    kernel = attention_kernel(attention)
    step = gradient_step(scores, torch.eye(scores.shape[-1]).to(scores).expand_as(scores))
    off = torch.linalg.matrix_norm(step - attention) / torch.linalg.matrix_norm(attention)
    found = {"asymmetry": kernel.asymmetry, "least": kernel.least, "negative": kernel.negative_share, "step": off}
    return {name: figure.double() for name, figure in found.items()}


def scores_of(block: SampleBlock) -> tuple[Tensor, Tensor | slice] | None:
    """What softmax got on one input, ``(heads, n, n)`` in float64, of the valid tokens, and which those are; None for
    causal attention.

    Raises:
        InputError: attention was not seen as queries and keys.
    """
    A = block.A
    if not isinstance(A, SoftmaxAttention):
        raise InputError(
            f"{block.plan.layer.name}: its attention is not seen as queries and keys; choose another model"
        )
    if A.causal:
        return None
    valid = slice(None) if A.mask is None else A.mask[0, 0]
    scores = (A.q[0] @ A.k[0].mT).double() * A.scale
    return (scores if A.bias is None else scores + A.bias[0].double())[:, valid][:, :, valid], valid


@torch.no_grad()
def layer_means(
    loaded: Loaded,
    inputs: Inputs,
    measure: Callable[[list[SampleBlock]], list[dict[str, Tensor]]],
    progress: Progress,
) -> list[Layer]:
    """Of a model that is not steered.

    measure: the figures of each block on one input, each ``(heads,)``; none for causal attention. Batches of more than
    one input are refused: all but the first would be left out.
    """
    anatomy = locate(loaded.model)
    run = Runner(loaded.model, anatomy)
    per_input: list[list[dict[str, Tensor]]] = []
    blocks: list[SampleBlock] = []
    for batch in run.batches(inputs):
        blocks = study(loaded.model, anatomy, partial(run, run.first_input(batch))).blocks
        per_input.append(measure(blocks))
        progress(len(per_input))
    if len(per_input) < inputs.count:
        raise InputError(f"{inputs.count} inputs come in {len(per_input)} batches; give them one by one, with batch=1")
    layers = []
    for block, *figures in zip(blocks, *per_input, strict=True):
        names = figures[0] if all(figures) else ()  # none if it is causal on any input
        means = {name: float(torch.cat([one[name] for one in figures]).mean()) for name in names}
        layers.append(Layer(len(per_input) * block.plan.layer.heads, means))
    return layers


def rows(
    model: str, layers: Sequence[Layer], columns: int, shown: Callable[[Mapping[str, float]], list[str]]
) -> list[list[str]]:
    """Of a table of so many columns, one per block. shown: a block's figures in words."""
    causal = [CAUSAL, *["–"] * (columns - 4)]
    return [
        [model, str(depth), *(shown(layer.figures) if layer.figures else causal), str(layer.cases)]
        for depth, layer in enumerate(layers, 1)
    ]


def shown(figures: Mapping[str, float]) -> list[str]:
    """As the table has them."""
    asymmetry, least, negative, step = figures.values()
    return [fixed(asymmetry, 3), fixed(least, 3), percent(negative), fixed(step, 3)]


def conclusion(layers: Sequence[Layer]) -> str:
    """One sentence: whether these models meet the paper's assumption of a symmetric kernel."""
    found = [layer.figures["asymmetry"] for layer in layers if layer.figures]
    if not found:
        return "All of these models are causal, and a causal kernel is never symmetric: the assumption does not hold."
    verdict = "nearly holds" if max(found) < _NEARLY else "does not hold"
    return (
        f"The paper derives attention for a symmetric kernel (asymmetry 0). Here the asymmetry is "
        f"{fixed(min(found), 3)} to {fixed(max(found), 3)} in {len(found)} blocks: the assumption {verdict}."
    )


@torch.no_grad()
def gradient_step(scores: Tensor, V: Tensor) -> Tensor:
    """One step from the values: attention itself for symmetric scores, and else not.

    ``Σ_j (k_ij + k_ji) v_j / Σ_j (k_ij + k_ji)`` with ``k = exp(scores)``.

    Args:
        scores: ``(..., n, n)``: what softmax gets.
        V: ``(..., n, k)``: values.
    """
    return torch.logaddexp(scores, scores.mT).softmax(-1) @ V
