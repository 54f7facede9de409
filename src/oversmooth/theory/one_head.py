"""Radii of one head, or of each head alone: every eigenvalue is ``base + λ_j (t_i − shift)`` (THEORY §3, lemma 1).

Taken by `dominance` for a single head and with ``per_head=True``. λ are the eigenvalues of H, t those of A but one 1:
the diagonal of causal attention, all of them for few tokens or attention that falls apart, else the extremal ones by
Arnoldi. Heads whose margin rounding could turn are computed again in float64, and a proof is tried (`bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.theory.bounds import CERTIFY_TOKENS, SUSPICIOUS, Region, certified, error_of_pairs, is_sure, rounding
from oversmooth.theory.eigenarrays import feature_vector, scaled_apart, token_vector
from oversmooth.theory.krylov import extremal
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import Radii, Search, Update
from oversmooth.theory.reducible import Reducible, centred_block, has_long_paths
from oversmooth.theory.small_matrices import complex_of, eigenvalues_and_errors, eigenvectors
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


def radii(A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search, *, zeros: bool) -> Radii:
    """The radii of each head alone, ``(..., heads)``.

    Args:
        A: ``(..., heads, n, n)``, attention.
        W_V: ``(..., heads, d, k)``, value weights, with A's batch, part of it or none.
        W_O: ``(..., heads, k, d)``, output weights; likewise.
        update: what is applied.
        search: how to search for eigenvalues.
        zeros: whether the d − k zero eigenvalues of H count.
    """
    d, k = W_V.shape[-2:]
    batch, flat, base = A.batch_shape, A.flatten(), update.base
    spectra = HeadSpectra(W_V, W_O, update.constant_gain, update.centred_gain, batch)
    lam = spectra.centred.to(complex_of(A.dtype))
    if not bool(lam.isfinite().all()):
        raise InputError(f"eigenvalues of H leave the range of {A.dtype}; scale the weights down, or give float64")
    shift, constant = (x.expand(batch).reshape(-1) for x in (update.shift, update.constant))

    on_constant = Pairs(spectra.constant.to(lam), shift, base)
    smooth, _, j = on_constant.largest((constant + shift)[:, None].to(lam.dtype))
    lam_smooth = on_constant.lam.gather(1, j[:, None])[:, 0]
    rough = _RoughSearch(flat, Pairs(lam, shift, base), search)
    rough.search()
    level = smooth.clamp(min=update.smooth_floor)
    if zeros and k < d:
        level = level.clamp(min=base)
    found = rough.found
    weights_error = spectra.reach(smooth, constant, found.radius, found.t - shift, base)
    rough.settle(level, spectra, weights_error, update.rough_floor)
    lam_rough = lam.gather(1, found.which[:, None])[:, 0]
    near = found.radius - search.tie * found.radius.clamp(min=base)
    tied = rough.pairs.mu(rough.candidates()).abs() >= near[:, None, None]
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
    mu = base + (found.t - shift) * lam_rough
    array = None
    if A.tokens > 1 and (search.limit or (search.limit is None and A.tokens <= _LIMIT_TOKENS)):
        array = _eigenarray(flat, W_V, W_O, update, found.t, lam_rough.reshape(batch), mu)
    smooths = smooth >= found.radius
    flat_radii = Radii(
        rho_smooth=smooth,
        rho_rough=found.radius,
        residual=found.residual,
        mu=mu,
        mixed=mixed & ~found.repeated,
        rank_known=~(mixed & found.repeated) & (update.constant_gain is None or array is not None),
        weights_error=weights_error.to(smooth),
        error=found.error,
        certified=found.certified,
        doubted=found.doubted,
        frozen=frozen,
        t=torch.where(smooths, 1.0, found.t),
        lam=torch.where(smooths, lam_smooth, lam_rough),
        eigenarray=array,
    )
    return flat_radii.map(lambda x: x.reshape((*batch, *x.shape[1:])))


def _eigenarray(
    flat: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, t: Tensor, lam: Tensor, mu: Tensor
) -> Tensor:
    """The eigenarray of each μ, ``(items, n, d)``; λ has the shape of the batch, t and μ ``(items,)``."""
    d, batch = W_V.shape[-2], lam.shape
    shift, constant = (x.expand(batch).reshape(-1) for x in (update.shift, update.constant))
    features = feature_vector(W_V, update.centred(W_O), lam).reshape(-1, 1, d)
    if update.constant_gain is None:
        array = token_vector(flat, t, shift + constant)[..., None] * features
    else:
        W = (W_V @ (W_O * update.constant_gain)).expand(*batch, d, d).reshape(-1, d, d)
        array = scaled_apart(flat, t, features, mu - update.base, W, constant)
    # Where frozen there are as many arrays as H has zeros, and none of them is the limit.
    return torch.where((lam.reshape(-1) == 0)[:, None, None], torch.nan, array)


class HeadSpectra:
    """The eigenvalues of each head's H, in float64 whatever the weights' precision.

    One set for constant arrays and one for centred ones; they differ where outputs are scaled differently there.
    """

    def __init__(
        self, W_V: Tensor, W_O: Tensor, constant_gain: Tensor | None, centred_gain: Tensor | None, batch: torch.Size
    ) -> None:
        gains = (centred_gain,) if constant_gain is None else (constant_gain, centred_gain)
        outputs = [W_O.double() if gain is None else W_O.double() * gain for gain in gains]
        eps = torch.finfo(W_V.dtype).eps
        spectra = [eigenvalues_and_errors(smaller_product(W_V.double(), W), eps) for W in outputs]
        lead = spectra[0][0].shape[:-1]
        # The index of each item's weights, of which there are fewer than items.
        item = torch.arange(lead.numel(), device=W_V.device).reshape(lead).expand(batch).reshape(-1)
        self.constant, self.constant_error = (x.flatten(0, -2)[item] for x in spectra[0])
        self.centred, self.centred_error = (x.flatten(0, -2)[item] for x in spectra[-1])

    def reach(self, smooth: Tensor, constant: Tensor, rough: Tensor, t: Tensor, base: float) -> Tensor:
        """How much larger either radius may be, ``(items,)``, if every eigenvalue of H is off by its error.

        Args:
            smooth: ``(items,)``, the radius on constant arrays.
            constant: ``(items,)``, what attention multiplies λ by there.
            rough: ``(items,)``, the radius on centred arrays.
            t: ``(items,)``, what attention multiplies λ by where that radius is attained.
            base: the weight of the residual connection.
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

    lam: Tensor
    """``(items, j)`` complex, eigenvalues of H."""
    shift: Tensor
    """``(items,)``, what is subtracted from t."""
    base: float
    """The weight of the residual connection."""

    def select(self, index: Tensor) -> Pairs:
        """Those of some of the items."""
        return Pairs(self.lam[index], self.shift[index], self.base)

    def mu(self, t: Tensor) -> Tensor:
        """All of them, ``(items, i) -> (items, i, j)``."""
        return self.base + (t - self.shift[:, None])[..., None] * self.lam[:, None, :]

    def largest(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The largest |μ|, and which t and which λ attain it, ``(items,)`` each; NaN among t is ignored."""
        per_t, at = self.largest_for_each(t)
        value, i = per_t.nan_to_num(nan=-1.0).max(-1)
        return value.clamp(min=0), i, at.gather(1, i[:, None])[:, 0]

    def largest_for_each(self, t: Tensor, reach: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """For every t ``(items, i)`` the largest |μ| over λ, and which λ attains it, in pieces that fit in memory.

        reach: ``(items, 1)`` or ``(items, i)``, by how much t may be off, for the largest that |μ| can then be.
        """
        rows = max(1, _CHUNK // max(1, t.shape[-1] * self.lam.shape[-1]))
        reach = self.shift.new_zeros(len(t), 1) if reach is None else reach
        best = []
        for some in torch.arange(len(t), device=t.device).split(rows):
            part = self if len(some) == len(t) else self.select(some)
            size = part.mu(t[some]).abs() + reach[some][..., None] * part.lam.abs()[:, None, :]
            best.append(size.max(-1))
        return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])


def conditions(A: AttentionOperator, parts: Reducible, index: Tensor, t: Tensor) -> Tensor:
    """The condition number of one eigenvalue t of the items at index, ``(b,)``; in its block, where A falls apart."""
    apart = parts.which[index]
    out = torch.ones(len(index), dtype=A.dtype, device=A.device)
    whole = ~apart & (A.valid_count()[index] > 1)
    if bool(whole.any()):
        out[whole] = eigenvectors(A.select(index[whole]).dense().A, t[whole])[1]
    for row in apart.nonzero()[:, 0].tolist():
        out[row] = parts.condition(int(index[row]), t[row])
    return out


@dataclass
class _Found:
    """The largest |μ| over t ≠ 1 and λ of every item, where it is attained, and how well it is known: ``(items,)``."""

    radius: Tensor
    t: Tensor
    which: Tensor
    """The index of λ."""
    residual: Tensor
    condition: Tensor
    of_matrix: Tensor
    """Whether the condition number is that of the whole matrix, not of a Krylov space."""
    converged: Tensor
    exact: Tensor
    """Eigenvalues on a diagonal are exact; those of larger blocks are not."""
    repeated: Tensor
    """Causal: whether t is on the diagonal more than once; the number of its vectors is then open."""
    error: Tensor
    certified: Tensor
    doubted: Tensor

    @classmethod
    def nothing(cls, A: AttentionOperator) -> _Found:
        zero, no = torch.zeros(A.shape[0], dtype=A.dtype, device=A.device), A.valid_count() < 0
        return cls(
            *(zero, zero.to(complex_of(A.dtype)), no.long(), zero.clone(), torch.ones_like(zero), no.clone(), ~no),
            *(A.valid_count() < 2, no.clone(), zero.clone(), no.clone(), no.clone()),
        )


class _RoughSearch:
    """Searches for the largest |μ| over the eigenvalues t ≠ 1 of A and λ of H, one item per head."""

    def __init__(self, flat: AttentionOperator, pairs: Pairs, how: Search) -> None:
        self.A, self.pairs, self.how = flat, pairs, how
        self.parts = Reducible.of(flat)
        self.items = torch.arange(flat.shape[0], device=flat.device)
        self.found = _Found.nothing(flat)
        self.all_values: Tensor | None = None

    def search(self) -> None:
        """Fill in all items."""
        A, how, found = self.A, self.how, self.found
        if A.tokens == 1:
            return
        if A.causal and how.method == "auto":
            # Real eigenvalues: |μ| is convex in t, so its largest value is at an end.
            values = causal_values(A)
            ends = [values.nan_to_num(nan=torch.inf).amin(-1), values.nan_to_num(nan=-torch.inf).amax(-1)]
            both = torch.stack(ends, dim=-1)
            self._directly(self.items, torch.where(both.isinf(), torch.nan, both).to(found.t.dtype))
            near = 1e-6 * found.t.real.abs()[:, None]
            found.repeated = ((values - found.t.real[:, None]).abs() <= near).sum(-1) > 1
            found.exact |= True
            return
        direct = A.valid_count() <= (DENSE_TOKENS if how.method == "auto" else 1)
        if how.method != "arnoldi":
            direct |= self.parts.which
        if how.method == "dense" or direct.all():
            self.all_values = self._all_values(self.items)
            self._directly(self.items, self.all_values)
            return
        if direct.any():
            self._directly(self.items[direct], self._all_values(self.items[direct]))
        self._by_arnoldi(self.items[~direct])
        lost = self.items[~found.converged]
        if len(lost) and self._can_rescue():
            found.condition[lost] = 1.0  # Arnoldi's is that of a value that did not converge
            self._directly(lost, self._all_values(lost))

    def candidates(self) -> Tensor:
        """The t that may tie with the best one, ``(items, m)``, padded with NaN."""
        t = self.found.t
        if self.A.tokens == 1:
            return t[:, None] * torch.nan
        if self.all_values is not None:
            return self.all_values
        if self.A.causal and self.how.method == "auto":
            return torch.stack([t, torch.where(self.found.repeated, t, torch.nan)], dim=-1)
        return torch.stack([t, torch.where(t.imag == 0, torch.nan, t.conj())], dim=-1)

    def settle(self, level: Tensor, spectra: HeadSpectra, weights_error: Tensor, rough_floor: float) -> None:
        """How certain it is on which side of `level`, the smoothing radius, each radius lies.

        Suspects, ill-conditioned or nearer to the level than a few times their error, are computed again in float64 and
        a proof is tried.
        """
        found, A, how = self.found, self.A, self.how
        if A.tokens == 1:
            found.certified |= True
            return
        # The condition number from a Krylov space is not trusted where paths are long.
        far = self.items[has_long_paths(A) & ~found.exact & ~found.of_matrix]
        if len(far) and how.method != "arnoldi":
            found.condition[far] = torch.maximum(found.condition[far], self._conditions(far))
        slope = self.pairs.lam.gather(1, found.which[:, None])[:, 0].abs()
        blur = rounding(A).to(found.radius)
        inexact = error_of_pairs(A, blur, slope, found.condition, found.residual)
        found.error = torch.where(found.exact, slope * A.rounding, inexact)
        gap = (level - found.radius.clamp(min=rough_floor)).abs()
        sure = is_sure(gap, found.error, weights_error.to(gap))
        found.certified = found.exact & sure
        # A tie that is known well enough needs no proof.
        tied = torch.maximum(gap, found.error) <= how.tie * level.clamp(min=self.pairs.base)
        suspect = ~found.exact & ~tied & (~sure | (found.condition > SUSPICIOUS))
        if how.method == "arnoldi" or how.steps is not None:
            found.doubted = suspect & ~sure
            return
        slack = weights_error[:, None] + 2 * spectra.centred_error + A.rounding * level.double()[:, None]
        counted = A.valid_count().tolist()
        for i in self.items[suspect].tolist():
            if counted[i] > CERTIFY_TOKENS or not isinstance(A, DenseAttention):
                found.doubted[i] = ~sure[i]
                continue
            base, shift = self.pairs.base, float(self.pairs.shift[i])
            region = Region(spectra.centred[i].cpu(), base, shift, float(level[i]), slack[i].cpu())
            proven = all(certified(B.cpu(), region, float(blur[i])) for B in self._again_in_float64(A, i))
            found.certified[i], found.doubted[i] = proven, not proven
            found.error[i] = 0.0 if proven else found.error[i]

    def _again_in_float64(self, A: DenseAttention, i: int) -> list[Tensor]:
        """Take the best of all eigenvalues of one item, and return the matrices that have them."""
        index = self.items[i : i + 1]
        apart = bool(self.parts.which[i])
        whole = A.select(index).to(torch.float64)
        values = self.parts.values(i)[None] if apart else dense_values(whole)
        self._directly(index, values.to(self.found.t))
        return [block.B for block in self.parts.blocks(i)] if apart else [centred_block(A, i)]

    def _can_rescue(self) -> bool:
        return self.how.method == "auto" and self.how.steps is None and self.A.tokens <= _RESCUE_TOKENS

    def _all_values(self, index: Tensor) -> Tensor:
        """All eigenvalues but one 1 of the items at index, ``(b, n − 1)``, padded with NaN; notes which are exact."""
        A = self.A if len(index) == len(self.items) else self.A.select(index)
        for i in index[self.parts.which[index]].tolist():
            self.found.exact[i] = self.parts.triangular(i)
        return dense_values(A, self.parts.select(index))

    def _directly(self, index: Tensor, values: Tensor) -> None:
        """Take the best of these eigenvalues ``(b, m)`` for the items at index."""
        found = self.found
        found.radius[index], i, found.which[index] = self.pairs.select(index).largest(values)
        found.t[index] = values.gather(1, i[:, None])[:, 0].nan_to_num()
        found.residual[index], found.converged[index] = 0.0, True
        # Items that went through Arnoldi before have a condition number already.
        new = ~found.exact[index] & (found.condition[index] == 1) & (self.A.valid_count()[index] > 1)
        if bool(new.any()) and not self.A.causal:
            found.condition[index[new]], found.of_matrix[index[new]] = self._conditions(index[new]), True

    def _conditions(self, index: Tensor) -> Tensor:
        return conditions(self.A, self.parts, index, self.found.t[index])

    def _by_arnoldi(self, index: Tensor) -> None:
        how, found, pairs = self.how, self.found, self.pairs.select(index)

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
        found.converged[index], found.condition[index] = ritz.converged, ritz.condition
