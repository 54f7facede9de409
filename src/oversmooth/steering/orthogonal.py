"""Maps onto arrays with orthonormal columns, ``VᵀV = I``: QR, Cayley and the matrix exponential. Batched over layers.

QR is computed through the Cholesky factor of ΘᵀΘ in float64: the same Q with a positive diagonal of R, in a few batched
products where Householder's is slow on a GPU (THEORY §5). In float32 it would break down at condition numbers that
training reaches.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

Map = Literal["qr", "cayley", "exp"]
MAPS: tuple[Map, ...] = ("qr", "cayley", "exp")


def is_orthonormal(V: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether the columns of V are orthonormal. ``(..., d, m)``."""
    V = V.double()
    eye = torch.eye(V.shape[-1], dtype=V.dtype, device=V.device)
    return bool(((V.mT @ V - eye).abs() <= tolerance).all())


def orthonormal(theta: Tensor) -> Tensor:
    """The Q of QR(Θ), of Θ's dtype, ``(..., d, m)``; NaN where the columns of Θ depend on each other."""
    Q, _ = _CholeskyQR.apply(theta.double())  # type: ignore[no-untyped-call]
    orthonormal_columns: Tensor = Q.to(theta.dtype)
    return orthonormal_columns


def _inverse_factor(G: Tensor) -> Tensor:
    """``L⁻¹`` of ``G = L Lᵀ``; NaN where G is not positive. Everything here goes through it: unlike LU it is quick in
    batches on a GPU, and may be part of a CUDA graph.
    """
    L, failed = torch.linalg.cholesky_ex(G)
    # Garbage is worse than NaN, and asking whether it failed would make a GPU wait.
    L = torch.where((failed > 0)[..., None, None], torch.nan, L)
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    return torch.linalg.solve_triangular(L, eye, upper=False)


class _CholeskyQR(torch.autograd.Function):
    """``Θ -> Q, R⁻ᵀ`` in float64. Both are given out, so that second gradients know how they depend on Θ."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
        inverse = _inverse_factor(theta.mT @ theta)
        Q = theta @ inverse.mT
        ctx.save_for_backward(Q, inverse)
        return Q, inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # Walter and Lehmann: Θ̄ = (Q̄ + Q copyltu(R R̄ᵀ − Q̄ᵀQ)) R⁻ᵀ; copyltu mirrors the lower triangle, and of R R̄ᵀ that
        # of −N̄ R⁻¹ is left, N̄ the gradient of R⁻ᵀ.
        (Q, inverse), (grad, grad_inverse) = ctx.saved_tensors, grads
        M = -(grad_inverse.tril() @ inverse.mT) - grad.mT @ Q
        return (grad + Q @ (M.tril() + M.tril(-1).mT)) @ inverse


class _PositiveInverse(torch.autograd.Function):
    """``G⁻¹`` for symmetric positive G, in float64."""

    @staticmethod
    def forward(ctx: Any, G: Tensor) -> Tensor:
        factor = _inverse_factor(G)
        inverse = factor.mT @ factor
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse @ grads[0] @ inverse)


def skew(free: Tensor, size: int) -> Tensor:
    """The skew-symmetric matrix with these entries below its diagonal. ``(..., d(d−1)/2) -> (..., d, d)``."""
    rows, columns = torch.tril_indices(size, size, -1, device=free.device)
    S = free.new_zeros(*free.shape[:-1], size, size)
    S[..., rows, columns] = free
    return S - S.mT


def cayley(S: Tensor) -> Tensor:
    """``(I + S)(I − S)⁻¹`` for skew-symmetric S: orthogonal, and never −1 among its eigenvalues. In float64.

    Computed as ``(I + S)² (I − S²)⁻¹``, whose last factor inverts a positive matrix.
    """
    S = S.double()
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    inverse: Tensor = _PositiveInverse.apply(eye - S @ S)  # type: ignore[no-untyped-call]
    return (eye + S) @ (eye + S) @ inverse


def exponential(S: Tensor) -> Tensor:
    """``exp(S)`` for skew-symmetric S: every rotation. In float64."""
    return torch.linalg.matrix_exp(S.double())


def completed(V: Tensor) -> Tensor:
    """An orthogonal matrix whose first columns are V's, ``(d, m) -> (d, d)``. In float64."""
    d, m = V.shape
    if m == d:
        return V.double()
    generator = torch.Generator().manual_seed(0)
    more = torch.randn(d, d - m, dtype=torch.float64, generator=generator).to(V.device)
    Q = torch.linalg.qr(torch.cat([V.double(), more], dim=1)).Q
    return torch.cat([V.double(), Q[:, m:]], dim=1)


def left_inverse(V: Tensor) -> Tensor:
    """``V⁺ = (VᵀV)⁻¹Vᵀ`` with ``V⁺V = I``, ``(..., d, m) -> (..., m, d)``: the inverse of a square V; NaN if none.

    Squaring costs digits, so V must stay well-conditioned; float64 has twice as many as weights need.
    """
    V = V.double()
    inverse: Tensor = _PositiveInverse.apply(V.mT @ V)  # type: ignore[no-untyped-call]
    return inverse @ V.mT


def kaiming(d: int, m: int, generator: torch.Generator) -> Tensor:
    """Θ as the papers' code starts it: Kaiming uniform with a = √5, that is uniform within ±1/√d."""
    bound = 1 / math.sqrt(d)
    return torch.empty(d, m).uniform_(-bound, bound, generator=generator)
