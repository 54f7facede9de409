"""The effective rank of arrays too large to decompose: stochastic Lanczos quadrature beside directions that are known.

The effective rank is ``exp(log t − u/t)`` with ``t = Σσ`` and ``u = Σσ log σ``, two traces of functions of XᵀX. Its
first eigenvalues are known; for the others, short Lanczos runs from random vectors give the traces.

Within 5 % on DeiT-Tiny, stories15m and MiniLM, at every site (worst 4.2 %, root mean square 0.7 to 1.4 %). 16 probes
leave 7 %. Random vectors vary less between larger arrays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.metrics.moments import Scaled, reducing
from oversmooth.trace.reducers.directions import noise, orthonormal, singular_values

EXACT_RANKS = 1024
"""min(n, d) up to which singular values are computed, and the effective rank is exact."""
SKETCH_ERROR = 0.05
"""Relative error of an effective rank above."""
PROBES, STEPS = 32, 32


@reducing
def quadrature(tokens: Scaled, basis: Tensor) -> Tensor:
    """Lanczos coefficients of XᵀX, or XXᵀ where that is smaller, on what is orthogonal to known directions.

    Args:
        tokens: ``(batch, n, d)``.
        basis: ``(batch, d, k)``: orthonormal; `Directions.used`.

    Returns:
        ``(batch, 2, steps, probes)``: diagonals, and what is beside them, of tridiagonal matrices.
    """
    x, side = tokens.x * tokens.share[..., None], tokens.x.new_ones(tokens.x.shape[::2])
    if x.shape[1] < x.shape[2]:
        x, basis, side = x.mT, orthonormal(x @ basis), tokens.valid.to(x.dtype)

    def outside(q: Tensor) -> Tensor:
        return q - basis @ (basis.mT @ q)

    q = outside(noise((*side.shape, PROBES), x) * side[..., None])
    q, before, beside = q / torch.linalg.vector_norm(q, dim=1, keepdim=True), torch.zeros_like(q), q.new_zeros(())
    found = []
    for _ in range(STEPS):
        image = outside(x.mT @ (x @ q)) - beside * before
        diagonal = (q * image).sum(1, keepdim=True)
        image = image - diagonal * q
        beside = torch.linalg.vector_norm(image, dim=1, keepdim=True)
        before, q = q, image / beside.clamp(min=torch.finfo(x.dtype).tiny)
        found.append(torch.stack([diagonal, beside], 1))
    return torch.cat(found, 2)


def effective_rank_of(coefficients: Tensor, grams: Tensor, squares: Tensor, side: Tensor) -> Tensor:
    """The effective rank, on the host.

    Args:
        coefficients: ``(batch, 2, steps, probes)``, of `quadrature`.
        grams: ``(batch, 2, k, k)``, of `Directions.update`.
        squares: ``(batch,)``: ``‖X‖_F²``.
        side: ``(batch,)``: rows of XᵀX or XXᵀ, whichever was taken.

    Returns:
        ``(batch,)``, in float64.
    """
    diagonal, beside = coefficients.double().mT.unbind(1)
    known = singular_values(grams)[0]
    finite = diagonal.isfinite().all(-1).all(-1) & known.isfinite().all(-1)
    matrix = torch.diag_embed(diagonal) + torch.diag_embed(beside[..., :-1], 1) + torch.diag_embed(beside[..., :-1], -1)
    values, vectors = torch.linalg.eigh(torch.where(finite[:, None, None, None], matrix, 0.0))
    s, weights = values.clamp(min=0).sqrt(), vectors[..., 0, :].square()
    others = (side - known.shape[-1]).clamp(min=0)
    # The mean over probes of XᵀX itself is known: what it is off by says what the other two means are off by.
    trace = (weights * values).sum(-1)
    away = trace - trace.mean(-1, keepdim=True)
    missed = trace.mean(-1) - (squares.double() - known.square().sum(-1)).clamp(min=0) / others.clamp(min=1)

    def total(of: Tensor, of_known: Tensor) -> Tensor:
        each = (weights * of).sum(-1)
        slope = ((away * each).sum(-1) / away.square().sum(-1)).nan_to_num(0.0, 0.0, 0.0)
        return (each.mean(-1) - slope * missed) * others + of_known.sum(-1)

    t, u = total(s, known), total(torch.xlogy(s, s), torch.xlogy(known, known))
    return torch.where(finite, (t.log() - u / t).exp(), torch.nan)
