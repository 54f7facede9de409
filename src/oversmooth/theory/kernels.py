"""How far attention is from Nguyen et al.'s kernels, which are symmetric and positive semi-definite (THEORY §6).

Attention is ``A = D⁻¹ K`` for a symmetric K and some positive diagonal D if and only if ``π_i A_ij = π_j A_ji`` for its
stationary distribution π: what flows from i to j flows back. K is then the flow, up to a factor, and it is positive
semi-definite if and only if no eigenvalue of A is negative.
"""

from __future__ import annotations

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
