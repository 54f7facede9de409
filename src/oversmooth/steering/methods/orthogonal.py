"""Maps onto arrays with orthonormal columns, ``VᵀV = I``: QR, Cayley and the matrix exponential. Batched over layers.

QR is computed through Cholesky factors of Gram matrices in float64: the same Q with a positive diagonal of R, in a few
batched products where Householder's is slow on a GPU and cannot be part of a CUDA graph (THEORY §5).

Training crosses det Θ = 0 repeatedly, and nothing happens there: the last column of a square Q is what the others leave
over, so that R_dd enters neither Q (but for a sign, which ``V Λ Vᵀ`` does not see) nor any derivative, and nothing here
divides by it. Columns before the last that depend on those before them (codimension two and more), which no training
meets, have no q.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from oversmooth.theory.small_matrices import finite

Map = Literal["qr", "cayley", "exp"]
MAPS: tuple[Map, ...] = ("qr", "cayley", "exp")
_EPS = torch.finfo(torch.float64).eps
# Gradients treat columns of Θ as at least this long: they grow as columns shrink, and would overflow float32.
_SHORTEST = 1e-12
# What is left of this after two passes is its square after the correction that follows.
_MOST_EXCESS = 1e-3


def orthonormal(theta: Tensor) -> Tensor:
    """The Q of QR(Θ), of Θ's dtype, ``(..., d, m)``.

    A column that lies in the span of those before it, but for rounding, has no q: the result is NaN, or has a direction
    of rounding there.
    The last column of a square Θ is no such case: its q is what the others leave over, on either side of det Θ = 0 and
    on it.
    """
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


def _unit_columns(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of length 1, which have the same Q, and the lengths they had, ``(..., 1, m)``; zero columns stay zero."""
    largest = theta.abs().amax(-2, keepdim=True)
    scaled = theta / torch.where(largest == 0, 1.0, largest)  # first: squares of large or small ones leave the range
    length = torch.linalg.vector_norm(scaled, dim=-2, keepdim=True)
    return scaled / torch.where(length == 0, 1.0, length), largest * length


def _factor(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Q of Θ ``(..., d, m)`` and R⁻ᵀ ``(..., m, m)``."""
    m = theta.shape[-1]
    eye = torch.eye(m, dtype=theta.dtype, device=theta.device)
    unit, length = _unit_columns(theta)
    # The shift is more than rounding takes away from a Gram matrix of unit columns: its factor exists.
    first = _inverse_factor(unit.mT @ unit + 4 * m * _EPS * eye)
    Q = unit @ first.mT
    second = _inverse_factor(Q.mT @ Q)  # orthonormal to rounding, unless columns are nearly dependent
    Q = Q @ second.mT
    excess = Q.mT @ Q - eye
    Q = Q - Q @ (excess.triu(1) + excess.diagonal(dim1=-2, dim2=-1).diag_embed() / 2)
    Q = torch.where(excess.abs().amax((-2, -1), keepdim=True) < _MOST_EXCESS, Q, torch.nan)  # dependent columns
    return Q, second @ first / length.clamp(min=_SHORTEST)


def _left_over(Q: Tensor, last: Tensor) -> Tensor:
    """The unit vector orthogonal to all columns of Q ``(..., d, d − 1)``, on the side of `last` ``(..., d, 1)``."""
    # The axis that the others leave most of, at least 1/d of its squared length: it is always well defined.
    axis = Q.square().sum(-1, keepdim=True).argmin(-2, keepdim=True)
    q = torch.zeros_like(last).scatter(-2, axis, 1.0)
    for _ in range(2):  # once more: what the first left of the others was relative to a length of 1/√d
        q = q - Q @ (Q.mT @ q)
        q = q / torch.linalg.vector_norm(q, dim=-2, keepdim=True)
    last, _ = _unit_columns(last)
    return torch.where((last * q).sum(-2, keepdim=True) < 0, -q, q)


class _CholeskyQR(torch.autograd.Function):
    """``Θ -> Q, R⁻ᵀ`` in float64; R⁻ᵀ of all columns of a tall Θ, of all but the last of a square one.

    Both are returned, so that second gradients know how they depend on Θ.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
        d, m = theta.shape[-2:]
        if m < d:
            Q, inverse = _factor(theta)
        else:
            Q, inverse = _factor(theta[..., :-1]) if d > 1 else (theta[..., :0], theta[..., :0, :0])
            Q = torch.cat([Q, _left_over(Q, theta[..., -1:])], dim=-1)
        ctx.save_for_backward(Q, inverse)
        return Q, inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # Walter and Lehmann: Θ̄ = (Q̄ + Q copyltu(R R̄ᵀ − Q̄ᵀQ)) R⁻ᵀ; copyltu mirrors the lower triangle, and of R R̄ᵀ that
        # of −N̄ R⁻¹ is left, N̄ the gradient of R⁻ᵀ. The last column of a square Q moves with the others alone: its
        # column of the bracket is zero, and so is that of Θ̄.
        (Q, inverse), (grad, grad_inverse) = ctx.saved_tensors, grads
        m, free = Q.shape[-1], inverse.shape[-1]
        M = -(grad.mT @ Q)
        more = grad_inverse.tril() @ inverse.mT
        M = M - (more if free == m else torch.nn.functional.pad(more, (0, 1, 0, 1)))
        bracket = grad + Q @ (M.tril() + M.tril(-1).mT)
        theta = bracket[..., :free] @ inverse
        return theta if free == m else torch.nn.functional.pad(theta, (0, 1))


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
    return _polished((eye + S) @ (eye + S) @ inverse)


def exponential(S: Tensor) -> Tensor:
    """``exp(S)`` for skew-symmetric S: every rotation. In float64."""
    return _polished(torch.linalg.matrix_exp(S.double()))


def _polished(V: Tensor) -> Tensor:
    """The orthogonal matrix nearest to V, itself nearly orthogonal: two of Newton's steps, which have no gradient."""
    with torch.no_grad():
        eye = torch.eye(V.shape[-1], dtype=V.dtype, device=V.device)
        better = V
        for _ in range(2):
            better = better @ (1.5 * eye - better.mT @ better / 2)
    return V + (better - V).detach()


def completed(V: Tensor) -> Tensor:
    """An orthogonal matrix whose first columns are V's, ``(d, m) -> (d, d)``. In float64."""
    V = V.double()
    return torch.cat([V, torch.linalg.qr(finite(V), mode="complete").Q[:, V.shape[1] :]], dim=1)


def left_inverse(V: Tensor, worst: float = math.inf) -> Tensor:
    """``V⁺ = (VᵀV)⁻¹Vᵀ`` with ``V⁺V = I``, ``(..., d, m) -> (..., m, d)``: the inverse of a square V; NaN if none.

    Squaring costs digits, so V must stay well-conditioned; float64 has twice as many as weights need. NaN, too, where
    V's condition number in the 1-norm exceeds ``worst``: near a singular V nothing converges, and a training step that
    cannot branch inside its CUDA graph notices NaN and stops.
    """
    V = V.double()
    inverse: Tensor = _PositiveInverse.apply(V.mT @ V)  # type: ignore[no-untyped-call]
    back = inverse @ V.mT
    with torch.no_grad():
        condition = torch.linalg.matrix_norm(V, 1) * torch.linalg.matrix_norm(back, 1)
    return torch.where(condition[..., None, None] <= worst, back, torch.nan)


def kaiming(d: int, m: int, generator: torch.Generator) -> Tensor:
    """Θ as the papers' code starts it: Kaiming uniform with a = √5, that is uniform within ±1/√d."""
    bound = 1 / math.sqrt(d)
    return torch.empty(d, m).uniform_(-bound, bound, generator=generator)
