"""The radii and eigenarrays of all heads together, for attention arrays that share one set of weights (THEORY §3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.theory.bounds import SAFETY, moved, rounding
from oversmooth.theory.krylov import Extremal, LinearSystem, extremal
from oversmooth.theory.operators import AttentionOperator, DenseAttention, centred_matrix, reflector
from oversmooth.theory.radii import Radii, Search, Update, real_and_imaginary
from oversmooth.theory.reducible import long_ways, union_of_heads
from oversmooth.theory.small_matrices import (
    complex_of,
    divided,
    eigenvalues,
    eigenvalues_and_errors,
    eigenvector,
    eigenvectors,
)
from oversmooth.theory.systems import CausalBlocks, JoinedHeads
from oversmooth.theory.tokens import centre_tokens, token_mean
from oversmooth.theory.weights import smaller_product, stack_heads, without_repeats

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
# Arnoldi: basis vectors before the first restart, and restarts at most of what has not converged by then.
_STEPS, _RESTARTS = 64, 80
# Where the number of steps is given, so many tokens of causal attention are refined all the same.
_REFINED = 8
# Entries of Krylov bases held at once: 2 GiB in float32.
_HELD = 1 << 29


class SharedWeights:
    """A batch of attention arrays under the same weights.

    Args:
        A: ``(items, heads, n, n)``, attention.
        W_V: ``(heads, d, k)``, value weights.
        W_O: ``(heads, k, d)``, output weights.
        update: what is applied.
        search: how to look for eigenvalues.
        centred: False to act on all arrays, for a part of a larger A whose rows sum to less than one.
    """

    def __init__(
        self, A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search, *, centred: bool = True
    ) -> None:
        self.A, self.W_V, self.update, self.how, self.centred = A, W_V, update, search, centred
        self.W_O = update.centred(W_O)
        self.constant_W_O = W_O if update.constant_gain is None else W_O * update.constant_gain
        self.d = W_V.shape[-2]
        self.system = JoinedHeads(A, W_V, self.W_O, update.shift, centred=centred)
        self.mu = torch.zeros(self.system.items, dtype=complex_of(A.dtype), device=A.device)
        self.residual = torch.zeros_like(self.mu.real)
        # Whether other eigenvalues are as large as the dominating one; what X tends to is then not known.
        self.repeated = torch.zeros_like(self.residual, dtype=torch.bool)
        self.error = torch.zeros_like(self.residual)
        # How much larger than found the radius may be, since the search was stopped.
        self.above = torch.zeros_like(self.residual)
        self.weights_error = torch.zeros((), dtype=A.dtype, device=A.device)
        self.array: Tensor | None = None

    def radii(self) -> Radii:
        """Both radii of every item."""
        if self.A.tokens > 1:
            self._search()
        return self.result(self.smooth_radius().expand(len(self.mu)))

    def result(self, smooth: Tensor) -> Radii:
        """The radii, given the one on constant arrays ``(items,)``."""
        alone = self.A.counted()[:, 0] < 2
        rough, base = torch.where(alone, 0.0, self.mu.abs()), self.update.base
        # Features that no head writes to stay as they are: eigenvalue `base` on both sides.
        left_out = self.W_V.shape[-3] * self.W_V.shape[-1] < self.d
        frozen = torch.zeros_like(self.repeated)
        if left_out:
            shrinks = smooth + self.weights_error < base
            frozen = shrinks & ~alone & (rough <= base + SAFETY * self.error)
            smooth = smooth.clamp(min=base)
            rough = torch.where(alone, 0.0, rough.clamp(min=base))
        known = ~self.repeated if self.array is not None else torch.zeros_like(self.repeated)
        level = smooth.clamp(min=self.how.smooth_floor)
        gap = (level - rough.clamp(min=self.how.rough_floor)).abs()
        close = (gap <= SAFETY * self.error) & (self.error > 0)
        close |= (level >= rough) & (gap <= self.above) & (self.above > 0)
        doubted = close & ~alone & ~frozen
        array = self.array
        if array is None and self.how.limit is not False and self.A.tokens > 1 and bool(self.repeated.all()):
            array = torch.full((len(self.mu), self.A.tokens, self.d), torch.nan, dtype=self.mu.dtype).to(self.mu.device)
        return Radii(
            rho_smooth=smooth,
            rho_rough=rough,
            residual=self.residual,
            mu=self.mu,
            mixed=torch.zeros_like(self.repeated),
            rank_known=known,
            weights_error=self.weights_error.expand(len(self.mu)),
            error=torch.maximum(self.error, self.above),
            certified=alone,
            doubted=doubted,
            frozen=frozen,
            array=array,
        )

    def largest(self) -> tuple[Tensor, Tensor, Tensor]:
        """The eigenvalue of largest modulus of the only item, its residual and its error."""
        self._search()
        return self.mu[0], self.residual[0], self.error[0]

    def _search(self) -> None:
        method, size = self.how.method, int(self.system.rank.max())
        if self.A.causal and method == "auto":
            self._by_causal_blocks()
        elif method == "dense" or size < 2 or (method == "auto" and size <= _DENSE_SIZE):
            self._directly()
        else:
            self._by_arnoldi()

    def _error(self, condition: Tensor, residual: Tensor, blur: Tensor) -> Tensor:
        """How far an eigenvalue may be off: its condition number times residual and rounding of A in the update."""
        sizes = _norms(self.W_V, self.W_O)
        return moved(condition, residual + (blur * sizes).sum(-1), sizes.sum(), self.A.tokens * self.d)

    def smooth_radius(self) -> Tensor:
        """The radius of ``base + Σ_h c_h W_V^h W_O^h``, c_h the eigenvalue of attention on constant arrays.

        Without the zeros of features that no head writes to.
        """
        base, W_V, W_O = self.update.base, self.W_V.double(), self.constant_W_O.double()
        c, V = self.update.constant.double(), without_repeats(W_V)
        # Heads that share their values add up, and leave features as they are, which some head writes to.
        V, O = stack_heads(V, (W_O * c[:, None, None]).unflatten(0, (len(V), -1)).sum(1))  # noqa: E741
        small = smaller_product(V, O)
        least = base if len(small) < self.d <= self.W_V.shape[-3] * self.W_V.shape[-1] else 0.0
        if len(small) > _DENSE_WEIGHTS:
            # The block of a token that sees only itself.
            ritz = self._extremal(CausalBlocks(c[None], W_V, W_O).on_values(), exact=True)
            size, error = ritz.score[0], (ritz.condition * ritz.residual)[0]
        else:
            values, errors = eigenvalues_and_errors(small, torch.finfo(self.A.dtype).eps)
            sizes = (base + values).abs()
            size, error = sizes.max(), (sizes + errors).max() - sizes.max()
        self.weights_error = error.to(self.residual)
        return size.clamp(min=least).to(self.residual)

    def _extremal(
        self, system: LinearSystem, *, vectors: bool = False, group: Tensor | None = None, exact: bool = False
    ) -> Extremal:
        """Within the number of steps that was given, if any; but the best of a group are always refined."""
        how, steps = self.how, None if exact else self.how.steps
        tolerance = min(how.tolerance, _WEIGHTS_TOLERANCE) if exact else how.tolerance
        most = min(_STEPS, steps or _STEPS)
        within = _RESTARTS if steps is None or group is not None else (steps - most) // (most - most // 2)
        return extremal(
            system,
            lambda theta, reach, _: (self.update.base + theta).abs() + reach,
            tolerance=tolerance,
            first=min(16, most),
            most=most,
            restarts=within,
            refined=None if steps is None else _REFINED,
            group=group,
            vectors=vectors,
            seed=how.seed,
        )

    def _by_arnoldi(self) -> None:
        # A single token has no centred arrays.
        index = (self.system.rank > 0).nonzero()[:, 0]
        far, wanted = long_ways(union_of_heads(self.A))[index], self.how.limit is not False
        ritz = self._extremal(self.system.select(index), vectors=wanted or bool(far.any()))
        self.mu[index] = self.update.base + ritz.value
        self.residual[index] = ritz.residual
        self.error[index] = self._error(ritz.condition, ritz.residual, rounding(self.A)[index])
        if bool(far.any()):
            self._check_from_the_left(index[far], ritz, far)
        if wanted and ritz.vector is not None:
            arrays = torch.zeros(len(self.mu), self.A.tokens, self.d, dtype=self.mu.dtype, device=self.A.device)
            arrays[index] = ritz.vector.view(-1, self.A.tokens, self.d)
            self.array = self._with_constant_part(arrays)

    def _check_from_the_left(self, index: Tensor, right: Extremal, which: Tensor) -> None:
        """The same eigenvalue from the transposed update: another start, and the condition number in all dimensions.

        Where the two do not agree, the error is infinite.
        """
        assert right.vector is not None
        left = self._extremal(self.system.select(index).transposed(), vectors=True)
        assert left.vector is not None
        theta, x, y = right.value[which], right.vector[which], left.vector
        mirrored = (left.value - theta.conj()).abs() < (left.value - theta).abs()
        y = torch.where(mirrored[:, None], y.conj(), y)
        apart = torch.minimum((left.value - theta).abs(), (left.value - theta.conj()).abs())
        overlap = (y * x).sum(-1).abs().clamp(min=torch.finfo(x.real.dtype).tiny)
        error = self._error(1 / overlap, right.residual[which] + left.residual, rounding(self.A)[index])
        met = apart <= SAFETY * error + 1e-3 * theta.abs().clamp(min=1)
        self.error[index] = torch.where(met, torch.maximum(self.error[index], error), torch.inf)

    def _directly(self) -> None:
        """All eigenvalues of T_P, item by item, over the tokens that count."""
        A = self.A.dense()
        arrays = torch.zeros(len(self.mu), A.tokens, self.d, dtype=self.mu.dtype, device=A.device)
        for i in range(len(self.mu)):
            keep = A.keep[i, 0]
            if keep.sum() < 2:
                continue
            counted = DenseAttention.trusted(A.A[i][:, keep][:, :, keep], None, A.causal, A.rounding)
            heads = centred_matrix(counted) if self.centred else counted.A
            heads = heads - self.update.shift[:, None, None] * torch.eye(heads.shape[-1]).to(heads)
            # Σ_h B_h ⊗ W_hᵀ, acting on the rows of an array laid end to end.
            matrix = torch.einsum("hij,hdk,hke->iejd", heads, self.W_V, self.W_O).flatten(2).flatten(0, 1)
            theta = eigenvalues(matrix)
            best = theta[(self.update.base + theta).abs().argmax()]
            self.repeated[i] = _has_equal(theta[None], best[None], self.update.base)[0]
            self.mu[i] = self.update.base + best
            vector, condition = eigenvectors(matrix[None], best[None])
            blur = rounding(counted) + torch.finfo(A.dtype).eps  # and that of the eigenvalue itself
            self.error[i] = self._error(condition, torch.zeros_like(condition), blur[None])[0]
            if self.how.limit is not False and self.centred:
                y = vector.view(-1, self.d)
                v = reflector(counted)[0].to(y.dtype)
                Z = torch.cat([torch.zeros_like(y[:1]), y])
                arrays[i, keep] = Z - v @ (v.mT @ Z)
        if self.how.limit is not False and self.centred:
            self.array = self._with_constant_part(arrays)

    def _with_constant_part(self, Z: Tensor) -> Tensor:
        """The eigenarray ``Z + 1 w`` of T from that of T_P: ``w (μ − base − Σ_h c_h W_V^h W_O^h) = mean T(Z)``."""
        tokens = _tokens(self.A)
        plain = JoinedHeads(self.A, self.W_V, self.constant_W_O, self.update.shift)
        mean = token_mean(real_and_imaginary(plain.mix, Z), tokens)
        W = torch.einsum("h,hdk,hke->de", self.update.constant, self.W_V, self.constant_W_O).to(Z.dtype)
        eye = torch.eye(self.d, dtype=Z.dtype, device=Z.device)
        matrix = (self.mu - self.update.base)[:, None, None] * eye - W
        w = divided(mean, matrix)
        return Z + w if tokens is None else (Z + w) * tokens[..., None]

    def _by_causal_blocks(self) -> None:
        """The first token sees only itself and has the smooth spectrum; the others' blocks have the rest."""
        A, base = self.A, self.update.base
        diagonal = A.diagonal().mT - self.update.shift  # (items, n, heads)
        counted = A.keep[:, 0]
        rest = counted & (counted.cumsum(-1) > 1)
        blocks = CausalBlocks(diagonal[rest], self.W_V, self.W_O)
        if blocks.items == 0:
            return
        found = self._of_blocks(blocks, rest.nonzero()[:, 0])

        def spread(x: Tensor, elsewhere: float) -> Tensor:
            """From the counted tokens to all, ``(items, n)``."""
            out = torch.full(rest.shape, elsewhere, dtype=x.dtype, device=A.device)
            out[rest] = x
            return out

        score = spread((base + found.value).abs(), -1.0)
        token = score.argmax(-1, keepdim=True)
        highest = score.gather(1, token)
        self.repeated = (score >= highest - _EQUAL * highest.clamp(min=1)).sum(-1) > 1
        self.repeated |= spread(found.ties, 0.0).gather(1, token)[:, 0]
        self.mu = base + spread(found.value, 0.0).gather(1, token)[:, 0]
        self.residual = spread(found.residual, 0.0).gather(1, token)[:, 0]
        self.above = (spread(found.highest, -1.0).amax(-1) - highest[:, 0]).clamp(min=0)
        chosen = CausalBlocks(
            diagonal.gather(1, token[..., None].expand(-1, -1, diagonal.shape[-1]))[:, 0], self.W_V, self.W_O
        )
        self.error = self._block_error(chosen, self.mu - base, self.residual)
        cheap = A.tokens * self.d**3 * len(self.mu) <= _CAUSAL_LIMIT
        if self.how.limit or (self.how.limit is None and cheap):
            X = self._by_forward_substitution(diagonal, token[:, 0])
            if self.update.constant_gain is not None or not torch.allclose(self.update.constant, 1 - self.update.shift):
                # Substitution solves for A; where constant arrays are changed or scaled apart, so is the constant part.
                X = self._with_constant_part(real_and_imaginary(lambda x: centre_tokens(x, _tokens(A)), X))
            self.array = X

    def largest_of_blocks(self, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The eigenvalue of largest modulus of single tokens, its residual and its error.

        Args:
            diagonal: ``(tokens, heads)``, A_h[i, i] − s_h.
        """
        blocks = CausalBlocks(diagonal, self.W_V, self.W_O)
        found = self._of_blocks(blocks, torch.zeros(len(diagonal), dtype=torch.long, device=diagonal.device))
        mu = self.update.base + found.value
        best = mu.abs().argmax()
        one = best[None]
        error = self._block_error(blocks.select(one), found.value[one], found.residual[one])
        return mu[best], found.residual[best], torch.maximum(error[0], found.highest.max() - mu[best].abs())

    def _of_blocks(self, blocks: CausalBlocks, group: Tensor) -> _Blocks:
        """The eigenvalues of single tokens' blocks; of those of one group only the largest matters."""
        base = self.update.base
        if self.d <= _DENSE_BLOCK:
            theta = eigenvalues(blocks.matrices())
            best = (base + theta).abs().argmax(-1, keepdim=True)
            value = theta.gather(1, best)[:, 0]
            size = (base + value).abs()
            return _Blocks(value, torch.zeros_like(size), _has_equal(theta, value, base), size)
        small, parts = blocks.on_values(), []
        everything = torch.arange(blocks.items, device=blocks.device)
        for some in everything.split(max(1, _HELD // (small.size * _STEPS))):
            ritz = self._extremal(small.select(some), group=group[some])
            value, residual, size = ritz.value, ritz.residual, ritz.score
            highest = torch.where(ritz.settled, size, size + ritz.slack)
            if small.size < self.d:  # zeros are eigenvalues too, and exact
                value, residual = (torch.where(size < base, 0, x) for x in (value, residual))
                highest = highest.clamp(min=base)
            parts.append((value, residual, torch.zeros_like(ritz.converged), highest))
        return _Blocks(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _block_error(self, blocks: CausalBlocks, theta: Tensor, residual: Tensor) -> Tensor:
        """How far θ may be off: only the rounding of A's diagonal enters."""
        if self.d > _CONDITIONED:
            return residual
        _, condition = eigenvectors(blocks.matrices(), theta)
        return self._error(condition, residual, self.A.rounding * blocks.diagonal.abs())

    def _by_forward_substitution(self, diagonal: Tensor, first: Tensor) -> Tensor:
        """The eigenarray that starts at token `first` with its block's eigenvector and continues causally."""
        A = self.A.dense().A
        theta = self.mu - self.update.base
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


@dataclass(frozen=True)
class _Blocks:
    """Of each token's block, ``(items,)``: the θ with the largest |base + θ|."""

    value: Tensor
    residual: Tensor
    ties: Tensor
    """Whether another eigenvalue of the block is seen to tie with it."""
    highest: Tensor
    """What |base + θ| may at most be where another token was not beaten by it."""


def _has_equal(theta: Tensor, best: Tensor, base: float) -> Tensor:
    """Whether an eigenvalue other than best and its conjugate has the same modulus, ``(b, m), (b,) -> (b,)``."""
    size = (base + best).abs()[:, None]
    equal = (base + theta).abs() >= size - _EQUAL * size.clamp(min=1)
    return equal.sum(-1) > torch.where(best.imag == 0, 1, 2)


def _tokens(A: AttentionOperator) -> Tensor | None:
    """The tokens that count, ``(items, n)``: the same for all heads."""
    return None if A.mask is None else A.mask[:, 0]


def _norms(W_V: Tensor, W_O: Tensor) -> Tensor:
    """An estimate of the spectral norm of each head's ``W_V W_O``, ``(heads,)``, by a few steps of the power method."""
    x = torch.ones(len(W_V), 1, W_V.shape[-2], dtype=W_V.dtype, device=W_V.device)
    size = torch.ones(len(W_V), dtype=W_V.dtype, device=W_V.device)
    for _ in range(6):
        x = ((x @ W_V) @ W_O @ W_O.mT) @ W_V.mT
        size = torch.linalg.vector_norm(x, dim=-1)[:, 0]
        x = x / torch.where(size == 0, 1.0, size)[:, None, None]
    return size.sqrt()
