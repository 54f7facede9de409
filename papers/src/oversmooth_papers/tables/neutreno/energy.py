"""Nguyen et al.'s energies along a trained model's layers: does attention bring them down, as its derivation has it?

    oversmooth reproduce neutreno energy MODEL... --data DATA --strength 0.6

For the kernel ``k = exp(q·k/√d)`` of each head, ``J(u) = ½ Σ k_ij ‖u_i − u_j‖²``, ``G(u) = ½ Σ λ_i ‖u_i − v⁰_i‖²`` with
``λ_i = λ̃ Σ_j (k_ij + k_ji)``, and ``E = J + G`` (THEORY §6); what each column is, docs/neutreno.md says. The flow must
fall throughout, and is looked at eight times. The first layer has V = V⁰ and no G. Causal attention is left out: its
kernel is never symmetric. The paper reports none of these figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.inputs.batches import Inputs
from oversmooth.models import Loaded
from oversmooth.report.style import fixed, percent
from oversmooth.safety.errors import InputError
from oversmooth.trace.plans import SampleBlock
from oversmooth_papers.tables.neutreno.kernel import Layer, Progress, gradient_step, layer_means, scores_of

HEAD = ("model", "block", "J", "G", "E after attention", "after step", "after flow", "Euler off by", "cases")
_TIMES = tuple(i / 8 for i in range(1, 9))


def energies(
    loaded: Loaded, inputs: Inputs, strength: float = 0.6, progress: Progress = lambda _done: None
) -> list[Layer]:
    """The energies of a model's layers on inputs, which come one per batch. strength: λ̃ of G; 0 leaves it out."""

    def measure(blocks: list[SampleBlock]) -> list[dict[str, Tensor]]:
        if len(values) != len(blocks):
            raise InputError(f"{loaded.name}: its values do not pass through a module of theirs; choose another model")
        measured: list[dict[str, Tensor]] = []
        for depth, block in enumerate(blocks):
            if (seen := scores_of(block)) is None:
                measured.append({})
                continue
            scores, valid = seen
            V, first = (values[i][:, valid].to(scores) for i in (depth, 0))
            measured.append(case_energies(scores, V, first, strength if depth else 0.0))
        values.clear()
        return measured

    with _values(loaded.model) as values:
        return layer_means(loaded, inputs, measure, progress)


def nonlocal_energy(u: Tensor, kernel: Tensor) -> Tensor:
    """``J(u) = ½ Σ_ij ‖u_i − u_j‖² k_ij``, of tokens ``(..., n, d)`` and ``(..., n, n)``; 0 where all are equal.

    >>> nonlocal_energy(torch.tensor([[0.0], [2.0]]), torch.ones(2, 2))
    tensor(4.)
    """
    # J does not see a common shift of the tokens: removing it first keeps digits when they are nearly equal.
    u = u - u.mean(-2, keepdim=True)
    own = (u.square().sum(-1) * (kernel.sum(-1) + kernel.sum(-2))).sum(-1)
    return own / 2 - (u * (kernel @ u)).sum((-2, -1))


def fidelity_energy(u: Tensor, f: Tensor, kernel: Tensor, strength: Tensor) -> Tensor:
    """``E(u, f) = J(u) + ½ Σ_i λ_i ‖u_i − f_i‖²``; f: the tokens that u is held to, strength: λ, ``(..., n)``."""
    return nonlocal_energy(u, kernel) + (strength * (u - f).square().sum(-1)).sum(-1) / 2


def case_energies(scores: Tensor, V: Tensor, first: Tensor, strength: float) -> dict[str, Tensor]:
    """``(heads, n, n), (heads, n, k), (heads, n, k) -> (heads,)`` each: the energies, and how much of E is left.

    scores: what softmax gets. first: V⁰. strength: λ̃.
    """
    # One factor for all pairs of tokens changes no ratio.
    kernel = (scores - scores.amax((-2, -1), keepdim=True)).exp()
    degrees = kernel.sum(-1) + kernel.sum(-2)
    size = (degrees[..., None] * V.square()).sum((-2, -1)) / 2
    lam = strength * degrees

    def E(u: Tensor) -> Tensor:
        return fidelity_energy(u, first, kernel, lam)

    flow = gradient_flow(scores, V, first, strength, _TIMES)
    step = gradient_step(scores, V) + strength * (first - V)
    mixed = scores.softmax(-1) @ V + strength * (first - V)
    J, start, after, stepped = nonlocal_energy(V, kernel), E(V), E(mixed), E(step)
    course = torch.stack([start, *(E(u) for u in flow)])
    norm = torch.linalg.matrix_norm
    found = {
        "J": J / size,
        "G": (start - J) / size,
        "attention": after / start,
        "attention_falls": after < start,
        "step": stepped / start,
        "step_falls": stepped < start,
        "flow": course[-1] / start,
        "flow_falls": (course[1:] <= course[:-1] * (1 + 1e-12)).all(0),
        "euler": norm(step - flow[-1]) / norm(flow[-1] - V),
    }
    return {name: figure.double() for name, figure in found.items()}


@torch.no_grad()
def gradient_flow(scores: Tensor, V: Tensor, f: Tensor, strength: float, times: Sequence[float]) -> Tensor:
    """``(heads, n, n), (heads, n, k), (heads, n, k) -> (times, heads, n, k)``: Nguyen et al.'s flow, of which attention
    is one Euler step of length 1.

    ``u' = −Δt ∇E(u) = A_s u − u + λ̃ (f − u)`` from ``u(0) = V``, with A_s the attention of the kernel made symmetric
    (THEORY §6). The equation is linear and, in the metric of the row sums, symmetric: it is solved by eigenvectors.
    """
    scores, V, f = scores.double(), V.double(), f.double()
    both = torch.logaddexp(scores, scores.mT)
    # Rows of S are those of D^½ A_s D^−½, D the row sums: symmetric.
    log_sums = both.logsumexp(-1)
    S = (both - (log_sums[..., :, None] + log_sums[..., None, :]) / 2).exp()
    values, vectors = torch.linalg.eigh(S)
    rates = (1 + strength - values.clamp(max=1.0))[..., None]
    root = ((log_sums - log_sums.amax(-1, keepdim=True)) / 2).exp()[..., None]
    if not bool((root > 0).all()):
        raise InputError("the scores of some tokens lie more than 1,400 below those of others; scale them down")
    start, held = (vectors.mT @ (root * x) for x in (V, f))
    time = rates.new_tensor(times).reshape(len(times), *[1] * start.ndim)
    # ∫ e^(−rate (t − s)) ds, whose limit for a rate of 0 is t.
    filled = torch.where(rates > 0, -torch.expm1(-rates * time) / torch.where(rates > 0, rates, 1.0), time)
    return (vectors @ (torch.exp(-rates * time) * start + strength * filled * held)) / root


def shown(figures: Mapping[str, float]) -> list[str]:
    """As the table has them."""
    J, G, euler = (fixed(figures[name], 3) for name in ("J", "G", "euler"))
    left = [f"{fixed(figures[by], 3)} ({percent(figures[f'{by}_falls'])})" for by in ("attention", "step", "flow")]
    return [J, G, *left, euler]


def conclusion(layers: Sequence[Layer]) -> str:
    """One sentence: whether attention lowers the energy that the paper says it descends."""
    found = [layer.figures for layer in layers if layer.figures]
    if not found:
        return "All of these models are causal: the paper's energy has no symmetric kernel there."
    attention, flow = (percent(fmean(one[f"{by}_falls"] for one in found)) for by in ("attention", "flow"))
    return (
        f"In {len(found)} blocks, attention lowers the paper's energy in {attention} of (input, head) pairs, the exact "
        f"gradient flow in {flow}."
    )


@contextmanager
def _values(model: nn.Module) -> Iterator[list[Tensor]]:
    """The values ``(heads, n, k)`` of one input, a new entry for each value projection that runs."""
    seen: list[Tensor] = []

    def keep(layer: AttentionLayer, _module: nn.Module, _args: Any, out: Tensor) -> None:
        _, V = layer.split(out, -1)
        by_head = V[0].transpose(0, 1).repeat_interleave(layer.heads // layer.kv_heads, 0)
        seen.append(by_head.detach().clone())

    modules = dict(model.named_modules(remove_duplicate=False))
    distinct = {layer.name: layer for layer in locate(model)}.values()
    handles = [modules[layer.value_module[0]].register_forward_hook(partial(keep, layer)) for layer in distinct]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
