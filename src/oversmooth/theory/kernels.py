"""How far attention is from Nguyen et al.'s kernels, which are symmetric and positive semi-definite (THEORY §6).

Attention is ``A = D⁻¹ K`` for a symmetric K and some positive diagonal D if and only if ``π_i A_ij = π_j A_ji`` for its
stationary distribution π: what flows from i to j flows back. K is then the flow, up to a factor, and it is positive
semi-definite if and only if no eigenvalue of A is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.tokens import check_rows


@dataclass(frozen=True)
class KernelOfAttention:
    """What ``B = Π^½ A Π^−½`` says, symmetric where a symmetric kernel makes A; ``(...)`` each."""

    asymmetry: Tensor
    """``‖B − Bᵀ‖/‖B + Bᵀ‖`` in the Frobenius norm: 0 for a symmetric kernel, 1 where nothing flows back. The flow
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
    """The kernel behind attention that hides nothing: how symmetric, how positive.

    Args:
        A: ``(..., n, n)``: every entry positive, as softmax without a mask makes them.

    Raises:
        InputError: an entry is zero, as in causal attention (whose kernel is never symmetric) or in windows.

    >>> K = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> found = attention_kernel(K / K.sum(-1, keepdim=True))
    >>> round(float(found.asymmetry), 6), round(float(found.least), 4)
    (0.0, 0.4167)
    """
    A = arguments.tensor(A, "attention", "(..., n, n)").double()
    if A.shape[-1] != A.shape[-2] or 0 in A.shape:
        raise InputError(f"attention has shape {tuple(A.shape)}; give (..., n, n), and not empty")
    check_rows(A, None, tolerance=1e-3)
    if not bool((A > 0).all()):
        hidden = float((A <= 0).double().mean())
        raise InputError(
            f"{hidden:.1%} of attention is 0; the kernel is known where none is: give attention without a mask"
        )
    n = A.shape[-1]
    A = A / A.sum(-1, keepdim=True)
    root = _stationary(A)[..., None].sqrt()
    if not bool((root > 0).all() and root.isfinite().all()):
        raise InputError(
            "some tokens are looked at less than 1e-300 of the time, which no number holds; scale the scores down"
        )
    B = root * A / root.mT  # at most √A_ij, since π_j ≥ π_i A_ij
    asymmetry = torch.linalg.matrix_norm(B - B.mT) / torch.linalg.matrix_norm(B + B.mT)
    values = torch.linalg.eigvalsh((B + B.mT) / 2)
    rounding = n * torch.finfo(A.dtype).eps
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


@torch.no_grad()
def gradient_step(scores: Tensor, V: Tensor) -> Tensor:
    """One step of Nguyen et al.'s gradient flow from the values: attention itself for symmetric scores, and else not.

    ``Σ_j (k_ij + k_ji) v_j / Σ_j (k_ij + k_ji)`` with ``k = exp(scores)``.

    Args:
        scores: ``(..., n, n)``: what softmax gets.
        V: ``(..., n, k)``: values.
    """
    scores = arguments.tensor(scores, "scores", "(..., n, n)").double()
    V = arguments.tensor(V, "V", "(..., n, k)").double()
    both = torch.logaddexp(scores, scores.mT)
    return both.softmax(-1) @ V


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
