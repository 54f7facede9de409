"""Radii of one head, or of each head alone: every eigenvalue is ``base + λ_j (t_i − shift)`` (THEORY §3, lemma 1).

Taken by `dominance` for a single head and with ``per_head=True``, and by `shifted` at every shift. λ are the
eigenvalues of H, t those of A but one 1: the diagonal of causal attention, all of them for few tokens or attention that
falls apart, else the extremal ones by Arnoldi. Where rounding could turn the margin, the verdict is left undecided.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.theory.eigenarrays import eigenarray
from oversmooth.theory.errors import SAFETY, SUSPICIOUS, eigenvalues_and_errors, error_of_pairs, rounding
from oversmooth.theory.krylov import extremal
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.radii import Radii, Settings, Update
from oversmooth.theory.reducible import fallen_apart, has_long_paths
from oversmooth.theory.small_matrices import complex_of, eigenvectors
from oversmooth.theory.spectrum import DENSE_TOKENS, CentredAttention, causal_values, dense_values
from oversmooth.theory.weights import smaller_product

# Up to this many tokens, what Arnoldi leaves unconverged is computed directly. On a CPU it then stops after a third as
# many steps as tokens: beyond that, a few slow items cost more than their whole matrices.
_RESCUE_TOKENS = 512
_STEPS = 128
# Up to this many tokens the eigenvector of A is computed for the limit array, by one factorisation.
_LIMIT_TOKENS = 1024
# Eigenvalues μ held at once.
_CHUNK = 1 << 24


@dataclass
class _Found:
    """The largest |μ| over t ≠ 1 and λ of every item, where it is attained, and how well it is known: ``(items,)``."""

    radius: Tensor
    t: Tensor
    which: Tensor  # the index of λ
    residual: Tensor
    condition: Tensor
    directly: Tensor  # whether it is from all eigenvalues of A, not from a Krylov space
    exact: Tensor  # eigenvalues on a diagonal are exact; those of larger blocks are not
    repeated: Tensor  # causal: whether t is on the diagonal more than once; the number of its vectors is then open

    @classmethod
    def nothing(cls, A: AttentionOperator) -> _Found:
        zero, no = torch.zeros(A.shape[0], dtype=A.dtype, device=A.device), A.valid_count() < 0
        t = zero.to(complex_of(A.dtype))
        return cls(zero, t, no.long(), zero.clone(), zero + 1, directly=no, exact=no.clone(), repeated=no.clone())


class Heads:
    """What the radii of every head follow from, each head an item: the eigenvalues of its A and H. The weights have A's
    batch, part of it or none.

    complete: whether all eigenvalues of A are wanted, however many.
    """

    def __init__(
        self,
        A: AttentionOperator,
        W_V: Tensor,
        W_O: Tensor,
        eigenvalues: HeadEigenvalues,
        how: Settings,
        *,
        complete: bool = False,
    ) -> None:
        self.batch, self.A, self.W_V, self.W_O, self.how = A.batch_shape, A.flatten(), W_V, W_O, how
        self.spectra = eigenvalues.items(A.batch_shape)
        if not bool(self.spectra.centred.to(complex_of(A.dtype)).isfinite().all()):
            raise InputError(f"eigenvalues of H leave the range of {A.dtype}; scale the weights down, or give float64")
        self.items = torch.arange(self.A.shape[0], device=A.device)
        self.by_diagonal = A.causal and how.method == "auto"
        self.parts = {} if how.method == "arnoldi" else fallen_apart(self.A)
        self.direct = self.A.valid_count() <= (DENSE_TOKENS if how.method == "auto" else 1)
        self.direct[list(self.parts)] = True
        self.all_values: Tensor | None = None
        if not self.by_diagonal and (complete or how.method == "dense" or bool(self.direct.all())):
            self.all_values = dense_values(self.A, self.parts)
        self._conditions: dict[tuple[int, complex], float] = {}

    @property
    def values(self) -> Tensor | None:
        """All eigenvalues t of A but one 1, ``(items, n − 1)``, NaN for hidden tokens; None if they are not known."""
        return causal_values(self.A).to(complex_of(self.A.dtype)) if self.by_diagonal else self.all_values

    def radii(self, update: Update, *, zeros: bool) -> Radii:
        """The radii of each head alone, ``(..., heads)``; zeros: whether the d − k zero eigenvalues of H count."""
        d, k = self.W_V.shape[-2:]
        flat, how, spectra, base = self.A, self.how, self.spectra, update.base
        shift, constant = (x.expand(self.batch).reshape(-1) for x in (update.shift, update.constant))
        lam = spectra.centred.to(complex_of(flat.dtype))
        on_constant, pairs = Pairs(spectra.constant.to(lam), shift, base), Pairs(lam, shift, base)
        smooth, _, j = on_constant.largest((constant + shift)[:, None].to(lam.dtype))
        lam_smooth = on_constant.lam.gather(1, j[:, None])[:, 0]
        found = self._search(pairs)
        level = smooth.clamp(min=update.smooth_floor)
        if zeros and k < d:
            level = level.clamp(min=base)
        weights_error = spectra.reach(smooth, constant, found.radius, found.t - shift, base)
        error, sure, doubted = self._certainty(found, pairs, level, weights_error, update.rough_floor)
        lam_rough = lam.gather(1, found.which[:, None])[:, 0]
        near = found.radius - how.tie * found.radius.clamp(min=base)
        tied = pairs.mu(self._candidates(found)).abs() >= near[:, None, None]
        # Terms that share the token vector, or the feature vector, add up to rank one.
        mixed = (tied.any(-1).sum(-1) > 1) & (tied.any(-2).sum(-1) > 1)

        frozen = torch.zeros_like(mixed)
        if zeros and k < d:
            # The zeros of H: eigenvalue `base` on both sides, on as many token and feature vectors as there are.
            still = (found.radius <= base) & (flat.valid_count() > 1)
            frozen = still & (smooth + weights_error.to(smooth) < base)
            found.radius = torch.where(still, base, found.radius)
            lam_rough = torch.where(still, 0.0, lam_rough)
            mixed |= still
            lam_smooth = torch.where(smooth < base, 0.0, lam_smooth)
            smooth = smooth.clamp(min=base)
        mu, array = base + (found.t - shift) * lam_rough, None
        if flat.tokens > 1 and (how.limit or (how.limit is None and flat.tokens <= _LIMIT_TOKENS)):
            array = eigenarray(flat, self.W_V, self.W_O, found.t, lam_rough.reshape(self.batch))
        smooths = smooth >= found.radius
        flat_radii = Radii(
            rho_smooth=smooth,
            rho_rough=found.radius,
            residual=found.residual,
            mu=mu,
            mixed=mixed & ~found.repeated,
            rank_known=~(mixed & found.repeated) & (update.constant_gain is None),
            weights_error=weights_error.to(smooth),
            error=error,
            certified=found.exact & sure,
            doubted=doubted,
            frozen=frozen,
            t=torch.where(smooths, 1.0, found.t),
            lam=torch.where(smooths, lam_smooth, lam_rough),
            eigenarray=array,
        )
        return flat_radii.map(lambda x: x.reshape((*self.batch, *x.shape[1:])))

    def _search(self, pairs: Pairs) -> _Found:
        """The largest |μ| over the eigenvalues t ≠ 1 of A and λ of H, of every item."""
        A, found = self.A, _Found.nothing(self.A)
        found.exact = A.valid_count() < 2
        if A.tokens == 1:
            return found
        if self.by_diagonal:
            # Real eigenvalues: |μ| is convex in t, so its largest value is at an end.
            values = causal_values(A)
            ends = [values.nan_to_num(nan=torch.inf).amin(-1), values.nan_to_num(nan=-torch.inf).amax(-1)]
            both = torch.stack(ends, dim=-1)
            self._take_best(found, pairs, self.items, torch.where(both.isinf(), torch.nan, both).to(found.t.dtype))
            near = 1e-6 * found.t.real.abs()[:, None]
            found.repeated = ((values - found.t.real[:, None]).abs() <= near).sum(-1) > 1
            found.exact |= True
            return found
        for i, own in self.parts.items():
            found.exact[i] = own.triangular
        if self.all_values is not None:
            self._take_best(found, pairs, self.items, self.all_values)
            return found
        if self.direct.any():
            self._decompose(found, pairs, self.items[self.direct])
        lost = self._by_arnoldi(found, pairs, self.items[~self.direct])
        if len(lost) and self._can_rescue():
            found.condition[lost] = 1.0  # Arnoldi's is that of a value that did not converge
            self._decompose(found, pairs, lost)
        return found

    def _take_best(self, found: _Found, pairs: Pairs, index: Tensor, values: Tensor) -> None:
        """Take the best of these eigenvalues ``(b, m)`` for the items at index."""
        found.radius[index], i, found.which[index] = pairs.select(index).largest(values)
        found.t[index] = values.gather(1, i[:, None])[:, 0].nan_to_num()
        found.residual[index], found.directly[index] = 0.0, True

    def _decompose(self, found: _Found, pairs: Pairs, index: Tensor) -> None:
        parts = {row: self.parts[i] for row, i in enumerate(index.tolist()) if i in self.parts}
        self._take_best(found, pairs, index, dense_values(self.A.select(index), parts))

    def _can_rescue(self) -> bool:
        return self.how.method == "auto" and self.how.steps is None and self.A.tokens <= _RESCUE_TOKENS

    def _by_arnoldi(self, found: _Found, pairs: Pairs, index: Tensor) -> Tensor:
        """The best Ritz value of the items at index; returns those that did not converge."""
        how, pairs = self.how, pairs.select(index)

        def score(theta: Tensor, reach: Tensor, part: Tensor) -> Tensor:
            return pairs.select(part).largest_for_each(theta, reach)[0]

        whole = len(index) == len(self.items)
        system = CentredAttention(self.A if whole else self.A.select(index))
        if self.A.device.type == "cpu" and self._can_rescue():
            first, most = 16, max(64, self.A.tokens // 3)
        else:
            first, most = 24, _STEPS  # on a GPU steps cost next to nothing
        first, most = how.steps or first, how.steps or most
        ritz = extremal(system, score, tolerance=how.tolerance, first=first, most=most, seed=how.seed)
        _, which = pairs.largest_for_each(ritz.value[:, None])
        found.radius[index], found.t[index], found.which[index] = ritz.score, ritz.value, which[:, 0]
        everything = torch.arange(len(index), device=index.device)
        found.residual[index] = score(ritz.value[:, None], ritz.residual[:, None], everything)[:, 0] - ritz.score
        found.condition[index] = ritz.condition
        return index[~ritz.converged]

    def _candidates(self, found: _Found) -> Tensor:
        """The t that may tie with the best one, ``(items, m)``, padded with NaN."""
        t = found.t
        if self.A.tokens == 1:
            return t[:, None] * torch.nan
        if self.all_values is not None:
            return self.all_values
        if self.by_diagonal:
            return torch.stack([t, torch.where(found.repeated, t, torch.nan)], dim=-1)
        return torch.stack([t, torch.where(t.imag == 0, torch.nan, t.conj())], dim=-1)

    def _condition(self, index: Tensor, t: Tensor) -> Tensor:
        """The condition number of one eigenvalue t of the items at index, ``(b,)``; in its block, where A falls apart.

        Each is computed once, as the best t is the same for many updates.
        """
        keys = list(zip(index.tolist(), t.tolist(), strict=True))
        rows = [row for row, key in enumerate(keys) if key not in self._conditions]
        whole = [row for row in rows if keys[row][0] not in self.parts]
        if whole:
            matrices = self.A.select(index[whole]).dense().A
            of_whole = eigenvectors(matrices, t[whole])[1].tolist()
            self._conditions.update({keys[row]: c for row, c in zip(whole, of_whole, strict=True)})
        for row in set(rows) - set(whole):
            self._conditions[keys[row]] = float(self.parts[keys[row][0]].condition(t[row]))
        return torch.tensor([self._conditions[key] for key in keys], dtype=self.A.dtype, device=t.device)

    def _certainty(
        self, found: _Found, pairs: Pairs, level: Tensor, weights_error: Tensor, rough_floor: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """How far each radius may be off; whether it surely lies on its side of `level`, the smoothing radius; and
        whether that is doubted, as it is nearer to the level than a few times its error, or ill-conditioned.
        """
        A = self.A
        # The condition number from a Krylov space is not trusted where paths are long.
        by_matrix = self.items[(has_long_paths(A) | found.directly) & ~found.exact]
        if len(by_matrix) and self.how.method != "arnoldi":
            own = self._condition(by_matrix, found.t[by_matrix])
            found.condition[by_matrix] = torch.maximum(found.condition[by_matrix], own)
        slope = pairs.lam.gather(1, found.which[:, None])[:, 0].abs()
        inexact = error_of_pairs(A, rounding(A).to(slope), slope, found.condition, found.residual)
        error = torch.where(found.exact, slope * A.rounding, inexact)
        gap = (level - found.radius.clamp(min=rough_floor)).abs()
        sure = gap > SAFETY * (error + weights_error.to(gap))
        # A tie that is known well enough is one.
        tied = torch.maximum(gap, error) <= self.how.tie * level.clamp(min=pairs.base)
        return error, sure, ~found.exact & ~tied & (~sure | (found.condition > SUSPICIOUS))


@dataclass(frozen=True)
class HeadEigenvalues:
    """The eigenvalues of each head's H ``(..., heads, m)``, and how far each may be off, in float64 whatever the
    weights' precision.

    One set for constant arrays and one for centred ones; they differ where outputs are scaled differently there.
    """

    constant: Tensor
    constant_error: Tensor
    centred: Tensor
    centred_error: Tensor

    @classmethod
    def of(
        cls, W_V: Tensor, W_O: Tensor, constant_gain: Tensor | None = None, centred_gain: Tensor | None = None
    ) -> HeadEigenvalues:
        gains = (centred_gain,) if constant_gain is None else (constant_gain, centred_gain)
        outputs = [W_O.double() if gain is None else W_O.double() * gain for gain in gains]
        eps = torch.finfo(W_V.dtype).eps
        spectra = [eigenvalues_and_errors(smaller_product(W_V.double(), W), eps) for W in outputs]
        return cls(*spectra[0], *spectra[-1])

    def items(self, batch: torch.Size) -> HeadEigenvalues:
        """Of every item of a batch ``(..., heads)``, flat; there may be fewer weights than items."""
        lead = self.constant.shape[:-1]
        item = torch.arange(lead.numel(), device=self.constant.device).reshape(lead).expand(batch).reshape(-1)
        return HeadEigenvalues(*(x.flatten(0, -2)[item] for x in vars(self).values()))

    def reach(self, smooth: Tensor, constant: Tensor, rough: Tensor, t: Tensor, base: float) -> Tensor:
        """How much larger either radius may be, ``(items,)``, if every eigenvalue of H is off by its error.

        constant and t are what attention multiplies λ by where the smooth radius and the rough one are attained.
        """
        excess = torch.zeros_like(self.constant_error[:, 0])
        for lam, error, radius, factor in (
            (self.constant, self.constant_error, smooth, constant.to(self.constant)),
            (self.centred, self.centred_error, rough, t.to(self.centred)),
        ):
            highest = ((base + lam * factor[:, None]).abs() + error * factor.abs()[:, None]).amax(-1)
            excess = torch.maximum(excess, torch.where(radius > 0, highest - radius.double(), 0.0))
        return excess.clamp(min=0)


@dataclass(frozen=True)
class Pairs:
    """The eigenvalues ``μ_ij = base + λ_j (t_i − shift)`` of one head, item by item, for any t."""

    lam: Tensor  # (items, j) complex, eigenvalues of H
    shift: Tensor  # (items,), what is subtracted from t
    base: float  # the weight of the residual connection

    def select(self, index: Tensor) -> Pairs:
        return Pairs(self.lam[index], self.shift[index], self.base)

    def mu(self, t: Tensor) -> Tensor:
        """``(items, i) -> (items, i, j)``"""
        return self.base + (t - self.shift[:, None])[..., None] * self.lam[:, None, :]

    def largest(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The largest |μ|, and which t and which λ attain it, ``(items,)`` each; NaN among t is ignored."""
        per_t, at = self.largest_for_each(t)
        value, i = per_t.nan_to_num(nan=-1.0).max(-1)
        return value.clamp(min=0), i, at.gather(1, i[:, None])[:, 0]

    def largest_for_each(self, t: Tensor, reach: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """For every t ``(items, i)``, off by reach at most, the largest |μ| over λ, and which λ attains it."""
        rows = max(1, _CHUNK // max(1, t.shape[-1] * self.lam.shape[-1]))
        reach = self.shift.new_zeros(len(t), 1) if reach is None else reach
        best = []
        for some in torch.arange(len(t), device=t.device).split(rows):
            part = self if len(some) == len(t) else self.select(some)
            size = part.mu(t[some]).abs() + reach[some][..., None] * part.lam.abs()[:, None, :]
            best.append(size.max(-1))
        return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])
