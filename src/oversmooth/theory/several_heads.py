"""Radii of all heads together (THEORY §3, the multi-head theorem)."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.theory.krylov import Extremal, LinearSystem, extremal, modulus
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import Radii, Search, Update, real_and_imaginary
from oversmooth.theory.small import complex_of, eigenvalue_error, eigenvalues, eigenvector
from oversmooth.theory.spectrum import centred_matrix, reflector
from oversmooth.theory.systems import CausalBlocks, JoinedHeads
from oversmooth.theory.tokens import token_mean
from oversmooth.theory.weights import smaller_product, stack_heads

# Up to this size, (n − 1)·d, the whole matrix of T_P is formed.
_DENSE_SIZE = 256
# Up to this width the diagonal blocks of causal attention, and the product of the weights, are decomposed directly.
_DENSE_BLOCK, _DENSE_WEIGHTS = 64, 1024
# Up to this many multiplications, n·d³, the limit array of causal attention is solved for, row after row.
_CAUSAL_LIMIT = 1 << 30
# Relative difference below which two moduli are a tie.
_EQUAL = 1e-6
# Arnoldi: basis vectors before the first restart, and restarts of what has not converged by then.
_STEPS, _RESTARTS = 64, 80


def radii(A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search) -> Radii:
    """One result for all heads, ``(...)``. A ``(..., heads, n, n)``; weights with A's batch, part of it or none."""
    batch, flat = A.shape[:-3], A.flatten(keep=1)
    lead = torch.broadcast_shapes(W_V.shape[:-3], W_O.shape[:-3])
    V, O = (W.expand(*lead, *W.shape[-3:]).reshape(-1, *W.shape[-3:]) for W in (W_V, W_O))  # noqa: E741
    if len(V) == 1:
        found = _SharedWeights(flat, V[0], O[0], update, search).radii()
    else:
        # Weights that differ over the batch (layers, say): one group of items for each.
        group = torch.arange(len(V), device=A.device).reshape(lead).expand(batch).reshape(-1)
        order = torch.argsort(group, stable=True)
        members = order.split(torch.bincount(group, minlength=len(V)).tolist())
        parts = [
            _SharedWeights(flat.select(m), V[g], O[g], update, search).radii() for g, m in enumerate(members) if len(m)
        ]
        back = torch.argsort(order)
        found = Radii.cat(parts).map(lambda x: x[back])
    return found.map(lambda x: x.reshape((*batch, *x.shape[1:])))


def _has_equal(theta: Tensor, best: Tensor, base: float) -> Tensor:
    """Whether another eigenvalue than best and its conjugate has its modulus, ``(b, m), (b,) -> (b,)``."""
    size = (base + best).abs()[:, None]
    equal = (base + theta).abs() >= size - _EQUAL * size.clamp(min=1)
    return equal.sum(-1) > torch.where(best.imag == 0, 1, 2)


class _SharedWeights:
    """A batch of attention arrays ``(items, heads, n, n)`` under the same weights ``(heads, d, k)`` and ``(heads, k,
    d)``.
    """

    def __init__(self, A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search) -> None:
        self.A, self.W_V, self.W_O, self.update, self.how = A, W_V, W_O, update, search
        self.d = W_V.shape[-2]
        self.system = JoinedHeads(A, W_V, W_O, update.shift)
        self.mu = torch.zeros(self.system.items, dtype=complex_of(A.dtype), device=A.device)
        self.residual = torch.zeros_like(self.mu.real)
        # Whether other eigenvalues are as large as the dominating one. What X tends to is not known then.
        self.repeated = torch.zeros_like(self.residual, dtype=torch.bool)
        self.weights_error = torch.zeros((), dtype=A.dtype, device=A.device)
        self.array: Tensor | None = None

    def radii(self) -> Radii:
        alone = self.A.counted()[:, 0] < 2
        if self.A.tokens > 1:
            if self.A.causal and self.how.method == "auto":
                self._by_causal_blocks()
            elif self._is_small():
                self._directly()
            else:
                self._by_arnoldi()
        smooth = self._smooth_radius().expand(len(self.mu))
        rough = torch.where(alone, 0.0, self.mu.abs())
        known = ~self.repeated if self.array is not None else torch.zeros_like(self.repeated)
        return Radii(
            rho_smooth=smooth,
            rho_rough=rough,
            residual=self.residual,
            mu=self.mu,
            mixed=torch.zeros_like(self.repeated),
            rank_known=known,
            weights_error=self.weights_error.expand(len(self.mu)),
            array=self.array,
        )

    def _is_small(self) -> bool:
        size = int(self.system.rank.max())
        return self.how.method == "dense" or size < 2 or (self.how.method == "auto" and size <= _DENSE_SIZE)

    def _smooth_radius(self) -> Tensor:
        """Radius of ``base + Σ_h c_h W_V^h W_O^h``, c_h what attention does to constant arrays: 1 − s_h."""
        V, O = stack_heads(self.W_V * self.update.constant[:, None, None], self.W_O)  # noqa: E741
        base = self.update.base
        small = smaller_product(V, O)
        floor = base if V.shape[-1] < self.d else 0.0  # heads·k < d: the remaining eigenvalues are zero
        if len(small) > _DENSE_WEIGHTS:
            # Attention of ones on the diagonal: the block of a token that sees only itself.
            found = self._extremal(CausalBlocks(self.update.constant[None], self.W_V, self.W_O))
            return found.score[0].clamp(min=floor)
        values = eigenvalues(small)
        best = values[(base + values).abs().argmax()]
        self.weights_error = eigenvalue_error(small[None], best[None])[0]
        return (base + best).abs().clamp(min=floor)

    def _extremal(self, system: LinearSystem, vectors: bool = False) -> Extremal:
        how = self.how
        return extremal(
            system,
            modulus(self.update.base),
            tolerance=how.tolerance,
            first=how.steps or 16,
            most=how.steps or _STEPS,
            restarts=0 if how.steps else _RESTARTS,
            vectors=vectors,
            seed=how.seed,
        )

    def _by_arnoldi(self) -> None:
        # A token without company has no centred arrays.
        index = (self.system.rank > 0).nonzero()[:, 0]
        found = self._extremal(self.system.select(index), vectors=self.how.limit is not False)
        self.mu[index] = self.update.base + found.value
        self.residual[index] = found.residual
        if found.vector is not None:
            arrays = torch.zeros(len(self.mu), self.A.tokens, self.d, dtype=self.mu.dtype, device=self.A.device)
            arrays[index] = found.vector.view(-1, self.A.tokens, self.d)
            self.array = self._with_constant_part(arrays)

    def _directly(self) -> None:
        """All eigenvalues of T_P, item by item, over the tokens that count."""
        A = self.A.dense()
        arrays = torch.zeros(len(self.mu), A.tokens, self.d, dtype=self.mu.dtype, device=A.device)
        for i in range(len(self.mu)):
            keep = torch.ones_like(A.A[0, 0, 0], dtype=torch.bool) if A.mask is None else A.mask[i, 0]
            if keep.sum() < 2:
                continue
            counted = DenseAttention.trusted(A.A[i][:, keep][:, :, keep], None, A.causal)
            heads = centred_matrix(counted) - self.update.shift[:, None, None] * torch.eye(int(keep.sum()) - 1).to(A.A)
            # Σ_h B_h ⊗ W_hᵀ, acting on the rows of an array laid end to end.
            matrix = torch.einsum("hij,hdk,hke->iejd", heads, self.W_V, self.W_O).flatten(2).flatten(0, 1)
            theta = eigenvalues(matrix)
            best = theta[(self.update.base + theta).abs().argmax()]
            self.repeated[i] = _has_equal(theta[None], best[None], self.update.base)[0]
            self.mu[i] = self.update.base + best
            if self.how.limit is not False:
                y = eigenvector(matrix[None], best[None]).view(-1, self.d)
                v = reflector(counted)[0].to(y.dtype)
                Z = torch.cat([torch.zeros_like(y[:1]), y])
                arrays[i, keep] = Z - v @ (v.mT @ Z)
        if self.how.limit is not False:
            self.array = self._with_constant_part(arrays)

    def _with_constant_part(self, Z: Tensor) -> Tensor:
        """The eigenarray ``Z + 1 w`` of T from that of T_P: ``w (μ − base − Σ_h c_h W_V^h W_O^h) = mean of
        T(Z)``.
        """
        tokens = None if self.A.mask is None else self.A.mask[:, 0]
        mean = token_mean(real_and_imaginary(self.system.mix, Z), tokens)
        W = torch.einsum("h,hdk,hke->de", self.update.constant, self.W_V, self.W_O).to(Z.dtype)
        eye = torch.eye(self.d, dtype=Z.dtype, device=Z.device)
        matrix = (self.mu - self.update.base)[:, None, None] * eye - W
        w = torch.linalg.solve_ex(matrix, mean, left=False).result
        return Z + w if tokens is None else (Z + w) * tokens[..., None]

    def _by_causal_blocks(self) -> None:
        """The first token sees only itself and has the smooth spectrum; the others' blocks have the rest."""
        A, base = self.A, self.update.base
        diagonal = A.diagonal().mT - self.update.shift  # (items, n, heads)
        counted = torch.ones_like(diagonal[..., 0], dtype=torch.bool) if A.mask is None else A.mask[:, 0]
        rest = counted & (counted.cumsum(-1) > 1)
        blocks = CausalBlocks(diagonal[rest], self.W_V, self.W_O)
        if blocks.items == 0:
            return
        if self.d <= _DENSE_BLOCK:
            theta = eigenvalues(blocks.matrices())
            best = (base + theta).abs().argmax(-1, keepdim=True)
            value, residual = theta.gather(1, best)[:, 0], torch.zeros_like(theta.real[:, 0])
            ties = _has_equal(theta, value, base)
        else:
            found = self._extremal(blocks)
            value, residual = found.value, found.residual
            ties = torch.zeros_like(residual, dtype=torch.bool)

        def spread(x: Tensor, elsewhere: float) -> Tensor:
            """From the counted tokens to all, ``(items, n)``."""
            out = torch.full(rest.shape, elsewhere, dtype=x.dtype, device=A.device)
            out[rest] = x
            return out

        score = spread((base + value).abs(), -1.0)
        place = score.argmax(-1, keepdim=True)
        highest = score.gather(1, place)
        self.repeated = (score >= highest - _EQUAL * highest.clamp(min=1)).sum(-1) > 1
        self.repeated |= spread(ties, 0.0).gather(1, place)[:, 0]
        self.mu = base + spread(value, 0.0).gather(1, place)[:, 0]
        self.residual = spread(residual, 0.0).gather(1, place)[:, 0]
        cheap = A.tokens * self.d**3 * len(self.mu) <= _CAUSAL_LIMIT
        if self.how.limit or (self.how.limit is None and cheap):
            self.array = self._by_forward_substitution(diagonal, place[:, 0])

    def _by_forward_substitution(self, diagonal: Tensor, place: Tensor) -> Tensor:
        """The eigenarray that starts at token `place` with its block's eigenvector and carries on causally."""
        A = self.A.dense().A
        theta = self.mu - self.update.base
        X = torch.zeros(len(A), A.shape[-1], self.d, dtype=theta.dtype, device=A.device)
        eye = torch.eye(self.d, dtype=theta.dtype, device=A.device)
        W_V, W_O = self.W_V.to(theta.dtype), self.W_O.to(theta.dtype)
        for i in range(A.shape[-1]):
            block = torch.einsum("bh,hdk,hke->bde", diagonal[:, i].to(theta.dtype), W_V, W_O)
            start = place == i
            if start.any():
                X[start, i] = eigenvector(block[start].mT, theta[start])
            later = place < i
            if later.any():
                seen = torch.einsum("bhj,bjd->bhd", A[later, :, i, :i].to(theta.dtype), X[later, :i])
                inflow = torch.einsum("bhd,hdk,hke->be", seen, W_V, W_O)
                matrix = theta[later][:, None, None] * eye - block[later]
                X[later, i] = torch.linalg.solve_ex(matrix, inflow[:, None], left=False).result[:, 0]
                X = X / X.abs().amax((1, 2), keepdim=True).clamp(min=1)  # rows can grow geometrically
        if self.A.mask is not None:
            X = X * self.A.mask[:, 0, :, None]
        return X
