"""How far attention is from the kernels that P2 derives NeuTRENO for: symmetric, positive semi-definite (THEORY §6).

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
    """What the flow ``π_i A_ij`` says, ``(...)`` each."""

    asymmetry: Tensor
    """``‖F − Fᵀ‖/‖F + Fᵀ‖`` of the flow F: 0 for a symmetric kernel, 1 where nothing flows back."""
    least: Tensor
    """The least eigenvalue of the symmetric part of the flow, as a share of the greatest, 1; negative where it is not
    positive semi-definite.
    """
    negative_share: Tensor
    """Of the eigenvalues of that, those below zero."""


@torch.no_grad()
def attention_kernel(A: Tensor) -> KernelOfAttention:
    """The kernel behind attention that hides nothing: how symmetric, how positive.

    Args:
        A: ``(..., n, n)``: every entry positive, as softmax without a mask makes them.

    Raises:
        InputError: an entry is zero, as in causal attention, whose kernel is never symmetric.

    >>> K = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> found = attention_kernel(K / K.sum(-1, keepdim=True))
    >>> round(float(found.asymmetry), 6), round(float(found.least), 4)
    (0.0, 0.4167)
    """
    A = arguments.tensor(A, "attention", "(..., n, n)").double()
    if A.shape[-1] != A.shape[-2]:
        raise InputError(f"attention has shape {tuple(A.shape)}; give (..., n, n)")
    check_rows(A, None, tolerance=1e-3)
    if not bool((A > 0).all()):
        hidden = float((A <= 0).double().mean())
        raise InputError(
            f"{hidden:.1%} of attention is 0, so no symmetric kernel makes it; give attention that hides nothing"
        )
    n = A.shape[-1]
    A = A / A.sum(-1, keepdim=True)
    eye, ones = torch.eye(n, dtype=A.dtype, device=A.device), torch.ones(n, 1, dtype=A.dtype, device=A.device)
    # (I − A)ᵀ π = 0 and Σ π = 1, as one system that is not singular.
    pi = torch.linalg.solve((eye - A).mT + 1, ones.expand(*A.shape[:-2], n, 1))
    flow = pi * A
    asymmetry = torch.linalg.matrix_norm(flow - flow.mT) / torch.linalg.matrix_norm(flow + flow.mT)
    root = pi.clamp(min=torch.finfo(A.dtype).tiny).rsqrt()
    values = torch.linalg.eigvalsh(root * (flow + flow.mT) / 2 * root.mT)
    rounding = n * torch.finfo(A.dtype).eps
    return KernelOfAttention(asymmetry, values[..., 0], (values < -rounding).double().mean(-1))


@torch.no_grad()
def gradient_step(scores: Tensor, V: Tensor) -> Tensor:
    """One step of P2's gradient flow from the values: attention itself for symmetric scores, and else not.

    ``Σ_j (k_ij + k_ji) v_j / Σ_j (k_ij + k_ji)`` with ``k = exp(scores)``.

    Args:
        scores: ``(..., n, n)``: what softmax gets.
        V: ``(..., n, k)``: values.
    """
    scores = arguments.tensor(scores, "scores", "(..., n, n)").double()
    V = arguments.tensor(V, "V", "(..., n, k)").double()
    both = torch.logaddexp(scores, scores.mT)
    return both.softmax(-1) @ V
