"""Nguyen et al.'s gradient flow: one step of it, and its solution by eigenvectors (THEORY §6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


@torch.no_grad()
def gradient_step(scores: Tensor, V: Tensor) -> Tensor:
    """One step from the values: attention itself for symmetric scores, and else not.

    ``Σ_j (k_ij + k_ji) v_j / Σ_j (k_ij + k_ji)`` with ``k = exp(scores)``.

    Args:
        scores: ``(..., n, n)``: what softmax gets.
        V: ``(..., n, k)``: values.
    """
    return torch.logaddexp(scores, scores.mT).softmax(-1) @ V


@torch.no_grad()
def gradient_flow(scores: Tensor, V: Tensor, f: Tensor, strength: float, times: Sequence[float]) -> Tensor:
    """Nguyen et al.'s gradient flow itself, of which attention is one Euler step of length 1 (THEORY §6).

    ``u' = −Δt ∇E(u) = A_s u − u + λ̃ (f − u)`` from ``u(0) = V``, with A_s the attention of the kernel made symmetric.
    The equation is linear and, in the metric of the row sums, symmetric: it is solved by eigenvectors.

    Args:
        scores: ``(..., n, n)``: what softmax gets.
        V: ``(..., n, k)``: values.
        f: ``(..., n, k)``: what they are held to.
        strength: λ̃; 0 leaves f out.
        times: at which to give u.

    Returns:
        ``(times, ..., n, k)``
    """
    scores = arguments.tensor(scores, "scores", "(..., n, n)").double()
    V, f = (arguments.tensor(x, name, "(..., n, k)").double() for x, name in ((V, "V"), (f, "f")))
    strength = float(arguments.number(strength, "strength", "give a number, 0 or more", least=0.0))
    moments = arguments.several(times, "times", "give a list of numbers, such as [0.5, 1.0]")
    n = scores.shape[-1]
    if scores.shape[-2] != n or V.shape[-2] != n or V.shape[-2:] != f.shape[-2:]:
        raise InputError(
            f"scores have shape {tuple(scores.shape)}, V {tuple(V.shape)} and f {tuple(f.shape)}; give (..., n, n) and "
            "twice (..., n, k)"
        )
    arguments.check_broadcast(scores=scores.shape[:-2], V=V.shape[:-2], f=f.shape[:-2])
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
    time = rates.new_tensor(moments).reshape(len(moments), *[1] * max(start.ndim, held.ndim))
    # ∫ e^(−rate (t − s)) ds, whose limit for a rate of 0 is t.
    filled = torch.where(rates > 0, -torch.expm1(-rates * time) / torch.where(rates > 0, rates, 1.0), time)
    return (vectors @ (torch.exp(-rates * time) * start + strength * filled * held)) / root
