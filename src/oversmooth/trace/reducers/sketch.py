"""The effective rank of arrays too large to decompose: stochastic Lanczos quadrature beside directions that are known.

The effective rank is ``exp(log t − u/t)`` with ``t = Σσ`` and ``u = Σσ log σ``, two traces of functions of XᵀX. Its
first eigenvalues are known; for the others, short Lanczos runs from random vectors give the traces.

Within 5 % on DeiT-Tiny, stories15m and MiniLM, at every site (worst 4.2 %, root mean square 0.7 to 1.4 %). 16 probes
leave 7 %. Random vectors vary less between larger arrays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.metrics.moments import product, reducing
from oversmooth.trace.reducers.directions import noise, orthonormal, singular_values

EXACT_RANKS = 1024
"""min(n, d) up to which singular values are computed, and the effective rank is exact."""
SKETCH_ERROR = 0.05
"""Relative error of an effective rank above."""
PROBES, STEPS = 32, 32


@reducing
def quadrature(x: Tensor, share: Tensor, valid: Tensor, basis: Tensor) -> Tensor:
    """Lanczos coefficients of XᵀX, or XXᵀ where that is smaller, on what is orthogonal to known directions.

    x: ``(batch, n, d)``: scaled tokens. share: ``(batch, n, 1)``: X is x times it. valid: ``(batch, n)``. basis:
    ``(batch, d, k)``: orthonormal; `Directions.used`. Returns ``(batch, 2, steps, probes)``: diagonals, and what is
    beside them, of tridiagonal matrices.
    """
    by_token, squared = x.shape[1] < x.shape[2], share.square()
    basis = orthonormal(share * product(x, basis)) if by_token else basis
    q = noise((len(x), *basis.shape[1:2], PROBES), basis)

    def outside(q: Tensor) -> Tensor:
        return torch.baddbmm(q, basis, basis.mT @ q, alpha=-1)

    def applied(q: Tensor) -> Tensor:
        if by_token:
            return share * product(x, product(x.mT, share * q))
        return product(x.mT, squared * product(x, q))

    q = outside(q * valid[..., None] if by_token else q)
    q, before, off_diagonal = q / torch.linalg.vector_norm(q, dim=1, keepdim=True), torch.zeros_like(q), q.new_zeros(())
    found = []
    for _ in range(STEPS):
        image = torch.addcmul(outside(applied(q)), off_diagonal, before, value=-1)
        diagonal = (q * image).sum(1, keepdim=True)
        image = torch.addcmul(image, diagonal, q, value=-1)
        off_diagonal = torch.linalg.vector_norm(image, dim=1, keepdim=True)
        before, q = q, image / off_diagonal.clamp(min=torch.finfo(q.dtype).tiny)
        found.append(torch.cat([diagonal, off_diagonal], 1))
    return torch.stack(found, 2)


def effective_rank_of(coefficients: Tensor, grams: Tensor, squares: Tensor, side: Tensor) -> Tensor:
    """The effective rank, ``(batch,)`` in float64, of what `quadrature` and `Directions.update` return, and ``‖X‖_F²``.

    side: ``(batch,)``: rows of XᵀX or XXᵀ, whichever was taken.
    """
    diagonal, off_diagonal = coefficients.double().mT.unbind(1)
    known = singular_values(grams)[0]
    finite = diagonal.isfinite().all(-1).all(-1) & known.isfinite().all(-1)
    above = torch.diag_embed(off_diagonal[..., :-1], 1)
    matrix = torch.diag_embed(diagonal) + above + above.mT
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
