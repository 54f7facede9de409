"""Radii and eigenarrays of all heads jointly, for attention arrays that share one set of weights.

The multi-head theorem (THEORY §3): ρ_smooth is the radius of ``base + Σ_h c_h W_V^h W_O^h``, ρ_rough that of T_P on
centred arrays. Taken by `several_heads` for attention that does not fall apart, and for each part of attention that
does. Causal attention: T_P is block triangular over tokens, and tokens compete. Else a small T_P is formed and
decomposed, and a larger one iterated by Arnoldi.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oversmooth.theory.errors import SAFETY, moved, rounding
from oversmooth.theory.krylov import Extremal
from oversmooth.theory.operators import AttentionOperator, DenseAttention, centred_matrix, reflector
from oversmooth.theory.radii import Radii, Settings, Update
from oversmooth.theory.reducible import has_long_paths, union_of_heads
from oversmooth.theory.small_matrices import complex_of, divided, eigenvalues, eigenvector, eigenvectors
from oversmooth.theory.systems import CausalBlocks, JoinedHeads, Matrices
from oversmooth.theory.together import MOST_ENTRIES, AllEigenvalues, LargestEigenvalue, Search
from oversmooth.theory.tokens import real_and_imaginary, token_mean
from oversmooth.theory.weights import on_constant_arrays, smaller_product

# Up to this size, (n − 1)·d, the whole matrix of T_P is formed.
_DENSE_SIZE = 256
# Up to this width the diagonal blocks of causal attention, and the product of the weights, are decomposed directly;
# wider products by Arnoldi in float64, to this tolerance.
_DENSE_BLOCK, _DENSE_WEIGHTS, _WEIGHTS_TOLERANCE = 64, 384, 1e-7
# Up to this width the condition number of a token's block is computed from the block itself.
_CONDITIONED = 1024
# Up to this many multiplications, n·d³, the limit array of causal attention is solved for, row by row.
_CAUSAL_LIMIT = 1 << 30
# Relative difference below which two moduli are a tie.
_EQUAL = 1e-6
# Arnoldi: basis vectors before the first restart, and restarts at most of what has not converged by then. Weights alone
# are smaller: so many vectors for them.
_STEPS, _RESTARTS, _WEIGHTS_STEPS = 64, 80, 512
# So many of the best tokens of causal attention are refined at a time; where the number of steps is given, only these,
# and they take so many all the same.
_TOGETHER, _REFINED = 8, 256
# Entries up to which their blocks are formed as matrices, by device.
_FORMED = {"cuda": MOST_ENTRIES // 8}


@dataclass
class Rough:
    """The eigenvalue of T_P of largest modulus in every item, ``(items,)`` each."""

    mu: Tensor
    residual: Tensor
    error: Tensor  # how far it may be off: residual and rounding of A, times its condition number
    above: Tensor  # how much larger than found the radius may be, since the search was stopped
    repeated: Tensor  # whether other eigenvalues are as large; what X tends to is then not known
    array: Tensor | None = None  # (items, n, d), its eigenarray, if it was asked for

    @property
    def largest_error(self) -> Tensor:
        """How far off it may be either way."""
        return torch.maximum(self.error, self.above)

    @classmethod
    def nothing(cls, A: AttentionOperator) -> Rough:
        """A radius of zero, as with a single token."""
        zero = torch.zeros(A.shape[0], dtype=A.dtype, device=A.device)
        return cls(zero.to(complex_of(A.dtype)), zero, zero.clone(), zero.clone(), zero > 0)


class SharedWeights:
    """A batch of attention arrays ``(items, heads, n, n)`` under the same weights.

    centred: False to act on all arrays, for a part of a larger A whose rows sum to less than one.
    """

    def __init__(
        self, A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, how: Settings, *, centred: bool = True
    ) -> None:
        self.A, self.W_V, self.update, self.how, self.centred = A, W_V, update, how, centred
        self.W_O = update.centred(W_O)
        self.constant_W_O = W_O if update.constant_gain is None else W_O * update.constant_gain
        self.d = W_V.shape[-2]
        self.system = JoinedHeads(A, W_V, self.W_O, update.shift, centred=centred)

    def radii(self) -> Search[Radii]:
        """Both radii of every item."""
        smooth = yield from self.smooth_radius()
        return self.result(smooth, (yield from self.rough()))

    def result(self, smooth_radius: tuple[Tensor, Tensor], rough: Rough) -> Radii:
        """Both radii of every item, given what `smooth_radius` and `rough` found."""
        size, weights_error = smooth_radius
        smooth = size.expand(len(rough.mu))
        alone = self.A.valid_count()[:, 0] < 2
        radius, base = torch.where(alone, 0.0, rough.mu.abs()), self.update.base
        # Features that no head writes to stay as they are: eigenvalue `base` on both sides.
        frozen = torch.zeros_like(alone)
        if self.W_V.shape[-3] * self.W_V.shape[-1] < self.d:
            shrinks = smooth + weights_error < base
            frozen = shrinks & ~alone & (radius <= base + SAFETY * rough.error)
            smooth = smooth.clamp(min=base)
            radius = torch.where(alone, 0.0, radius.clamp(min=base))
        level = smooth.clamp(min=self.update.smooth_floor)
        gap = (level - radius.clamp(min=self.update.rough_floor)).abs()
        close = (gap <= SAFETY * rough.error) & (rough.error > 0)
        close |= (level >= radius) & (gap <= rough.above) & (rough.above > 0)
        array = rough.array
        if array is None and self.how.limit is not False and self.A.tokens > 1 and bool(rough.repeated.all()):
            array = torch.full((len(rough.mu), self.A.tokens, self.d), torch.nan).to(rough.mu)
        return Radii(
            rho_smooth=smooth,
            rho_rough=radius,
            residual=rough.residual,
            mu=rough.mu,
            mixed=torch.zeros_like(alone),
            rank_known=~rough.repeated if rough.array is not None else torch.zeros_like(alone),
            weights_error=weights_error.expand(len(rough.mu)),
            error=rough.largest_error,
            certified=alone,
            doubted=close & ~alone & ~frozen,
            frozen=frozen,
            eigenarray=array,
        )

    def rough(self) -> Search[Rough]:
        """The eigenvalue of T_P of largest modulus in every item."""
        method, size = self.how.method, int(self.system.rank.max())
        if self.A.tokens < 2:
            return Rough.nothing(self.A)
        if self.A.causal and method == "auto":
            return (yield from self._by_causal_blocks())
        if method == "dense" or size < 2 or (method == "auto" and size <= _DENSE_SIZE):
            return self._directly()
        return (yield from self._by_arnoldi())

    def _error(self, condition: Tensor, residual: Tensor, blur: Tensor) -> Tensor:
        """How far an eigenvalue may be off: its condition number times residual and rounding of A in the update."""
        sizes = _norms(self.W_V, self.W_O)
        return moved(condition, residual + (blur * sizes).sum(-1), sizes.sum(), self.A.tokens * self.d)

    def smooth_radius(self) -> Search[tuple[Tensor, Tensor]]:
        """The radius of ``base + Σ_h c_h W_V^h W_O^h``, c_h the eigenvalue of attention on constant arrays, and how far
        it may be off. Without the zeros of features that no head writes to.
        """
        # What can differ from zero, in float64.
        V, O = self.W_V.double(), self.constant_W_O.double() * self.update.constant.double()[:, None, None]  # noqa: E741
        base, small = self.update.base, smaller_product(*on_constant_arrays(V, O))
        # Heads leave features as they are together, which some of them write to.
        least = base if len(small) < self.d <= self.W_V.shape[-3] * self.W_V.shape[-1] else 0.0
        if len(small) > _DENSE_WEIGHTS:
            tolerance = self.how.tolerance / 10
            tolerance = min(tolerance, _WEIGHTS_TOLERANCE) if self.how.steps is None else tolerance
            most, system = min(len(small), _WEIGHTS_STEPS), Matrices(small[None])
            ritz = yield LargestEigenvalue(system, base, tolerance, most, restarts=_RESTARTS, seed=self.how.seed)
            size, error = ritz.score[0], (ritz.condition * ritz.residual)[0]
        else:
            values, errors = yield AllEigenvalues(small, torch.finfo(self.A.dtype).eps)
            sizes = (base + values).abs()
            size, error = sizes.max(), (sizes + errors).max() - sizes.max()
        return size.clamp(min=least).to(self.A.dtype), error.to(self.A.dtype)

    def _largest(self, system: JoinedHeads, *, vectors: bool) -> LargestEigenvalue:
        """Within the number of steps that was given, if any."""
        how, steps = self.how, self.how.steps
        # A GPU restarts item by item and waits each time, so that there all steps go into one basis if it can be held.
        held = MOST_ENTRIES // system.size if system.device.type == "cuda" else _STEPS
        most = _STEPS if steps is None else min(steps, max(_STEPS, held))
        restarts = _RESTARTS if steps is None else (steps - most) // (most - most // 2)
        return LargestEigenvalue(
            system, self.update.base, how.tolerance, most, min(16, most), restarts, vectors=vectors, seed=how.seed
        )

    def _by_arnoldi(self) -> Search[Rough]:
        # A single token has no centred arrays.
        index = (self.system.rank > 0).nonzero()[:, 0]
        far, wanted = has_long_paths(union_of_heads(self.A))[index], self.how.limit is not False
        ritz = yield self._largest(self.system.select(index), vectors=wanted or bool(far.any()))
        error = self._error(ritz.condition, ritz.residual, rounding(self.A)[index])
        if bool(far.any()):
            error[far] = torch.maximum(error[far], (yield from self._error_from_the_left(index[far], ritz, far)))
        found = Rough.nothing(self.A)
        found.mu[index] = self.update.base + ritz.value
        found.residual[index], found.error[index] = ritz.residual, error
        if wanted and ritz.vector is not None:
            arrays = torch.zeros(len(found.mu), self.A.tokens, self.d, dtype=found.mu.dtype, device=self.A.device)
            arrays[index] = ritz.vector.view(-1, self.A.tokens, self.d)
            found.array = self._with_constant_part(arrays, found.mu)
        return found

    def _error_from_the_left(self, index: Tensor, right: Extremal, which: Tensor) -> Search[Tensor]:
        """The error by the same eigenvalue of the transposed update: another start, and a condition number in all
        dimensions. Infinite where the two do not agree.
        """
        assert right.vector is not None
        left = yield self._largest(self.system.select(index).transposed(), vectors=True)
        assert left.vector is not None
        theta, x, y = right.value[which], right.vector[which], left.vector
        mirrored = (left.value - theta.conj()).abs() < (left.value - theta).abs()
        y = torch.where(mirrored[:, None], y.conj(), y)
        apart = torch.minimum((left.value - theta).abs(), (left.value - theta.conj()).abs())
        overlap = (y * x).sum(-1).abs().clamp(min=torch.finfo(x.real.dtype).tiny)
        error = self._error(1 / overlap, right.residual[which] + left.residual, rounding(self.A)[index])
        met = apart <= SAFETY * error + 1e-3 * theta.abs().clamp(min=1)
        return torch.where(met, error, torch.inf)

    def _directly(self) -> Rough:
        """All eigenvalues of T_P, item by item, over the valid tokens."""
        A, found, base = self.A.dense(), Rough.nothing(self.A), self.update.base
        arrays = torch.zeros(len(found.mu), A.tokens, self.d, dtype=found.mu.dtype, device=A.device)
        wanted = self.how.limit is not False and self.centred
        for i in range(len(arrays)):
            keep = A.keep[i, 0]
            if keep.sum() < 2:
                continue
            counted = DenseAttention.trusted(A.A[i][:, keep][:, :, keep], None, A.causal, A.rounding)
            heads = centred_matrix(counted) if self.centred else counted.A
            heads = heads - self.update.shift[:, None, None] * torch.eye(heads.shape[-1]).to(heads)
            # Σ_h B_h ⊗ W_hᵀ, acting on the rows of an array laid end to end.
            matrix = torch.einsum("hij,hdk,hke->iejd", heads, self.W_V, self.W_O).flatten(2).flatten(0, 1)
            theta = eigenvalues(matrix)
            best = theta[(base + theta).abs().argmax()]
            found.repeated[i] = _has_equal(theta[None], best[None], base)[0]
            found.mu[i] = base + best
            vector, condition = eigenvectors(matrix[None], best[None])
            blur = rounding(counted) + torch.finfo(A.dtype).eps  # and that of the eigenvalue itself
            found.error[i] = self._error(condition, torch.zeros_like(condition), blur[None])[0]
            if wanted:
                y = vector.view(-1, self.d)
                v = reflector(counted)[0].to(y.dtype)
                Z = torch.cat([torch.zeros_like(y[:1]), y])
                arrays[i, keep] = Z - v @ (v.mT @ Z)
        if wanted:
            found.array = self._with_constant_part(arrays, found.mu)
        return found

    def _with_constant_part(self, Z: Tensor, mu: Tensor) -> Tensor:
        """The eigenarray ``Z + 1 w`` of T from that of T_P: ``w (μ − base − Σ_h c_h W_V^h W_O^h) = mean T(Z)``."""
        tokens = self.A.token_mask
        mean = token_mean(real_and_imaginary(self.system.mix, Z), tokens)
        eye = torch.eye(self.d, dtype=self.A.dtype, device=Z.device)
        w = divided(
            mean, (mu - self.update.base)[:, None, None] * eye - self.system.by_weights(eye, self.update.constant)
        )
        return Z + w if tokens is None else (Z + w) * tokens[..., None]

    def _by_causal_blocks(self) -> Search[Rough]:
        """The first token sees only itself and has the smooth spectrum; the others' blocks have the rest."""
        A, base, found = self.A, self.update.base, Rough.nothing(self.A)
        diagonal = A.diagonal().mT - self.update.shift  # (items, n, heads)
        counted = A.keep[:, 0]
        rest = counted & (counted.cumsum(-1) > 1)
        blocks = CausalBlocks(diagonal[rest], self.W_V, self.W_O)
        if blocks.items == 0:
            return found
        of_blocks = yield from self._of_blocks(blocks, rest.nonzero()[:, 0])

        def spread(x: Tensor, elsewhere: float = 0.0) -> Tensor:
            """From the valid tokens to all, ``(items, n)``."""
            out = torch.full(rest.shape, elsewhere, dtype=x.dtype, device=A.device)
            out[rest] = x
            return out

        size = of_blocks.mu.abs()
        score = spread(size, -1.0)
        token = score.argmax(-1, keepdim=True)
        highest = score.gather(1, token)
        found.repeated = (score >= highest - _EQUAL * highest.clamp(min=1)).sum(-1) > 1
        found.repeated |= spread(of_blocks.repeated).gather(1, token)[:, 0]
        found.mu = spread(of_blocks.mu).gather(1, token)[:, 0]
        found.residual = spread(of_blocks.residual).gather(1, token)[:, 0]
        found.above = (spread(size + of_blocks.above, -1.0).amax(-1) - highest[:, 0]).clamp(min=0)
        own = diagonal.gather(1, token[..., None].expand(-1, -1, diagonal.shape[-1]))[:, 0]
        found.error = self._block_error(CausalBlocks(own, self.W_V, self.W_O), found.mu - base, found.residual)
        cheap = A.tokens * self.d**3 * len(found.mu) <= _CAUSAL_LIMIT
        if self.how.limit or (self.how.limit is None and cheap):
            found.array = self._by_forward_substitution(diagonal, token[:, 0], found.mu - base)
        return found

    def _of_blocks(self, blocks: CausalBlocks, group: Tensor) -> Search[Rough]:
        """The largest eigenvalue of each token's block; of the tokens of one group only the largest matters."""
        base = self.update.base
        if self.d <= _DENSE_BLOCK:
            theta = eigenvalues(blocks.matrices())
            best = (base + theta).abs().argmax(-1, keepdim=True)
            value = theta.gather(1, best)[:, 0]
            zero = torch.zeros_like(value.real)
            return Rough(base + value, zero, zero, zero, repeated=_has_equal(theta, value, base))
        small = blocks.on_values()
        ritz = yield from self._of_competing_tokens(small, group.unique(return_inverse=True)[1])
        value, residual, size = ritz.value, ritz.residual, ritz.score
        highest = torch.where(ritz.settled, size, size + ritz.slack)
        if small.size < self.d:  # zeros are eigenvalues too, and exact
            value, residual = (torch.where(size < base, 0, x) for x in (value, residual))
            highest = highest.clamp(min=base)
        above, no = highest - (base + value).abs(), torch.zeros_like(ritz.converged)
        return Rough(base + value, residual, torch.zeros_like(above), above, repeated=no)

    def _of_competing_tokens(self, small: CausalBlocks, group: Tensor) -> Search[Extremal]:
        """All tokens for as many steps as were given; then the best of each group, as many as may be the largest."""
        how, most = self.how, min(_STEPS, self.how.steps or _STEPS)
        found = Extremal.nothing(small, vectors=False)
        seek = partial(LargestEigenvalue, base=self.update.base, tolerance=how.tolerance, seed=how.seed)
        for some in torch.arange(small.items, device=small.device).split(max(1, MOST_ENTRIES // (small.size * _STEPS))):
            wanted = seek(small.select(some), most=most, first=min(20, most), group=group[some])
            found.put(some, (yield wanted))
        found.compare(group)
        steps, refined = small.size if how.steps is None else max(how.steps, _REFINED), torch.zeros_like(found.beaten)
        while len(best := _best(found, group, refined)):
            blocks, own = small.select(best), group[best].unique(return_inverse=True)[1]
            # As matrices they are sought together with other layers', where they are not too large to be held.
            formed = len(best) * small.size**2 <= _FORMED.get(small.device.type, 0)
            system = Matrices(blocks.matrices()) if formed else blocks
            found.put(best, (yield seek(system, most=steps, first=min(3 * _STEPS // 2, steps), group=own)))
            found.compare(group)
            refined[best if how.steps is None else slice(None)] = True
        return found

    def _block_error(self, blocks: CausalBlocks, theta: Tensor, residual: Tensor) -> Tensor:
        """How far θ may be off: only the rounding of A's diagonal enters."""
        if self.d > _CONDITIONED:
            return residual
        return self._error(eigenvectors(blocks.matrices(), theta)[1], residual, self.A.rounding * blocks.diagonal.abs())

    def _by_forward_substitution(self, diagonal: Tensor, first: Tensor, theta: Tensor) -> Tensor:
        """The eigenarray that starts at token `first` with its block's eigenvector and continues causally."""
        A = self.A.dense().A
        X = torch.zeros(len(A), A.shape[-1], self.d, dtype=theta.dtype, device=A.device)
        eye = torch.eye(self.d, dtype=theta.dtype, device=A.device)
        W_V, W_O = self.W_V.to(theta.dtype), self.W_O.to(theta.dtype)
        for i in range(A.shape[-1]):
            block = torch.einsum("bh,hdk,hke->bde", diagonal[:, i].to(theta.dtype), W_V, W_O)
            start = first == i
            if start.any():
                X[start, i] = eigenvector(block[start].mT, theta[start])
            later = first < i
            if later.any():
                seen = torch.einsum("bhj,bjd->bhd", A[later, :, i, :i].to(theta.dtype), X[later, :i])
                inflow = torch.einsum("bhd,hdk,hke->be", seen, W_V, W_O)
                matrix = theta[later][:, None, None] * eye - block[later]
                X[later, i] = divided(inflow[:, None], matrix)[:, 0]
                X = X / X.abs().amax((1, 2), keepdim=True).clamp(min=1)  # rows can grow geometrically
        if self.A.mask is not None:
            X = X * self.A.mask[:, 0, :, None]
        return X


def _has_equal(theta: Tensor, best: Tensor, base: float) -> Tensor:
    """Whether an eigenvalue other than best and its conjugate has the same modulus, ``(b, m), (b,) -> (b,)``."""
    size = (base + best).abs()[:, None]
    equal = (base + theta).abs() >= size - _EQUAL * size.clamp(min=1)
    return equal.sum(-1) > torch.where(best.imag == 0, 1, 2)


def _best(found: Extremal, group: Tensor, refined: Tensor) -> Tensor:
    """The few items of each group with the highest scores among those that have not settled, nor were refined."""
    order = found.score.argsort(descending=True, stable=True)
    order = order[~(found.settled | refined)[order]]
    order = order[group[order].argsort(stable=True)]  # group by group
    own = group[order]
    return order[torch.arange(len(own), device=own.device) - torch.searchsorted(own, own) < _TOGETHER]


def _norms(W_V: Tensor, W_O: Tensor) -> Tensor:
    """An estimate of the spectral norm of each head's ``W_V W_O``, ``(heads,)``, by a few steps of the power method."""
    x = torch.ones(len(W_V), 1, W_V.shape[-2], dtype=W_V.dtype, device=W_V.device)
    size = torch.ones(len(W_V), dtype=W_V.dtype, device=W_V.device)
    for _ in range(6):
        x = ((x @ W_V) @ W_O @ W_O.mT) @ W_V.mT
        size = torch.linalg.vector_norm(x, dim=-1)[:, 0]
        x = x / torch.where(size == 0, 1.0, size)[:, None, None]
    return size.sqrt()
