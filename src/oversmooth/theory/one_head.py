"""Radii of one head: every eigenvalue is ``base + λ (t − shift)``, λ of H and t of A (THEORY §3, lemma 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth.theory.bounds import CERTIFY_TOKENS, ROUNDINGS, SAFETY, SUSPICIOUS, Region, certified, moved, rounding
from oversmooth.theory.eigenarrays import feature_vector, scaled_apart, token_vector
from oversmooth.theory.krylov import extremal
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import Radii, Search, Update
from oversmooth.theory.reducible import Reducible, centred_block, long_ways
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


def radii(
    A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search, *, zeros: bool, tie: float
) -> Radii:
    """The radii of each head alone, ``(..., heads)``.

    Args:
        A: ``(..., heads, n, n)``, attention.
        W_V: ``(..., heads, d, k)``, value weights, with A's batch, part of it or none.
        W_O: ``(..., heads, k, d)``, output weights; likewise.
        update: what is applied.
        search: how to look for eigenvalues.
        zeros: whether the d − k zero eigenvalues of H count.
        tie: relative margin below which two eigenvalues tie.
    """
    d, k = W_V.shape[-2:]
    batch, flat = A.batch_shape, A.flatten()
    spectra = HeadSpectra(W_V, W_O, update.constant_gain, update.centred_gain, batch)
    lam = spectra.centred.to(complex_of(A.dtype))
    if not bool(lam.isfinite().all()):
        raise InputError(f"eigenvalues of H leave the range of {A.dtype}; scale the weights down, or give float64")
    shift, constant = (x.expand(batch).reshape(-1) for x in (update.shift, update.constant))

    smooth, _, j = largest((constant + shift)[:, None].to(lam.dtype), spectra.constant.to(lam), shift, update.base)
    lam_smooth = spectra.constant.to(lam).gather(1, j[:, None])[:, 0]
    rough = _Rough(flat, lam, shift, update.base)
    candidates = rough.search(search)
    level = smooth.clamp(min=search.smooth_floor)
    if zeros and k < d:
        level = level.clamp(min=update.base)
    weights_error = spectra.reach(smooth, constant, rough.radius, rough.t - shift, update.base)
    candidates = rough.settle(candidates, level, spectra, weights_error, search, tie)
    lam_rough = lam.gather(1, rough.which[:, None])[:, 0]
    near = rough.radius - tie * rough.radius.clamp(min=update.base)
    tied = _mu(candidates, lam, shift, update.base).abs() >= near[:, None, None]
    # Terms that share the token vector, or the feature vector, add up to rank one.
    mixed = (tied.any(-1).sum(-1) > 1) & (tied.any(-2).sum(-1) > 1)

    frozen = torch.zeros_like(mixed)
    if zeros and k < d:
        # The zeros of H: eigenvalue `base` on both sides, on as many token and feature vectors as there are.
        still = (rough.radius <= update.base) & (flat.counted() > 1)
        frozen = still & (smooth + weights_error.to(smooth) < update.base)
        rough.radius = torch.where(still, update.base, rough.radius)
        lam_rough = torch.where(still, 0.0, lam_rough)
        mixed |= still
        lam_smooth = torch.where(smooth < update.base, 0.0, lam_smooth)
        smooth = smooth.clamp(min=update.base)
    smooths = smooth >= rough.radius

    array = None
    if A.tokens > 1 and (search.limit or (search.limit is None and A.tokens <= _LIMIT_TOKENS)):
        features = feature_vector(W_V, update.centred(W_O), lam_rough.reshape(batch)).reshape(-1, 1, d)
        if update.constant_gain is None:
            array = token_vector(flat, rough.t, shift + constant)[..., None] * features
        else:
            mu = _mu(rough.t[:, None], lam_rough[:, None], shift, update.base)[:, 0, 0]
            W = (W_V @ (W_O * update.constant_gain)).expand(*batch, d, d).reshape(-1, d, d)
            array = scaled_apart(flat, rough.t, features, mu - update.base, W, constant)
        # Where frozen there are as many arrays as H has zeros, and none of them is the limit.
        array = torch.where((lam_rough == 0)[:, None, None], torch.nan, array)
    flat_radii = Radii(
        rho_smooth=smooth,
        rho_rough=rough.radius,
        residual=rough.residual,
        mu=_mu(rough.t[:, None], lam_rough[:, None], shift, update.base)[:, 0, 0],
        mixed=mixed & ~rough.repeated,
        rank_known=~(mixed & rough.repeated) & (update.constant_gain is None or array is not None),
        weights_error=weights_error.to(smooth),
        error=rough.error,
        certified=rough.certified,
        doubted=rough.doubted,
        frozen=frozen,
        t=torch.where(smooths, 1.0, rough.t),
        lam=torch.where(smooths, lam_smooth, lam_rough),
        array=array,
    )
    return flat_radii.map(lambda x: x.reshape((*batch, *x.shape[1:])))


class HeadSpectra:
    """The eigenvalues of each head's H, in float64 whatever the weights' precision.

    One set for constant arrays and one for centred ones; they differ where outputs are scaled differently there.
    """

    def __init__(
        self, W_V: Tensor, W_O: Tensor, constant_gain: Tensor | None, centred_gain: Tensor | None, batch: torch.Size
    ) -> None:
        both = [W_O.double() if gain is None else W_O.double() * gain for gain in (constant_gain, centred_gain)]
        differ = constant_gain is not None
        products = [smaller_product(W_V.double(), W) for W in (both if differ else both[:1])]
        eps = torch.finfo(W_V.dtype).eps
        self._values, self._errors = zip(*(eigenvalues_and_errors(M, eps) for M in products), strict=True)
        lead = self._values[0].shape[:-1]
        # The index of each item's weights, of which there are fewer than items.
        self._weights_of_item = torch.arange(lead.numel(), device=W_V.device).reshape(lead).expand(batch).reshape(-1)
        self.constant, self.centred = (
            values.flatten(0, -2)[self._weights_of_item] for values in (self._values[0], self._values[-1])
        )
        self.constant_error, self.centred_error = (
            e.flatten(0, -2)[self._weights_of_item] for e in (self._errors[0], self._errors[-1])
        )

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


def _mu(t: Tensor, lam: Tensor, shift: Tensor, base: float) -> Tensor:
    """``base + λ_j (t_i − shift)``: ``(b, i), (b, j), (b,) -> (b, i, j)``."""
    return base + (t - shift[:, None])[..., None] * lam[:, None, :]


def largest(t: Tensor, lam: Tensor, shift: Tensor, base: float) -> tuple[Tensor, Tensor, Tensor]:
    """The largest |μ| over all pairs, and which t and which λ attain it; NaN among t is ignored."""
    per_t, at = _largest_for_each(t, lam, shift, base)
    value, i = per_t.nan_to_num(nan=-1.0).max(-1)
    return value.clamp(min=0), i, at.gather(1, i[:, None])[:, 0]


def _largest_for_each(
    t: Tensor, lam: Tensor, shift: Tensor, base: float, reach: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """For every t the largest |μ| over λ, and which λ attains it, in pieces that fit in memory.

    Args:
        t: ``(b, i)``, eigenvalues of A.
        lam: ``(b, j)``, eigenvalues of H.
        shift: ``(b,)``, what is subtracted from t.
        base: the weight of the residual connection.
        reach: ``(b, 1)`` or ``(b, i)``, by how much t may be off, for the largest that |μ| can then be.
    """
    rows = max(1, _CHUNK // max(1, t.shape[-1] * lam.shape[-1]))
    reach = shift.new_zeros(len(shift), 1) if reach is None else reach
    pieces = zip(t.split(rows), lam.split(rows), shift.split(rows), reach.split(rows), strict=True)
    best = [(_mu(t, lam, s, base).abs() + r[..., None] * lam.abs()[:, None, :]).max(-1) for t, lam, s, r in pieces]
    return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])


class _Rough:
    """The largest |μ| over the eigenvalues t ≠ 1 of A and λ of H, and where it is attained, one item per head."""

    def __init__(self, flat: AttentionOperator, lam: Tensor, shift: Tensor, base: float) -> None:
        self.A, self.lam, self.shift, self.base = flat, lam, shift, base
        items, device = flat.shape[0], flat.device
        self.radius = torch.zeros(items, dtype=flat.dtype, device=device)
        self.residual = torch.zeros_like(self.radius)
        self.converged = torch.ones(items, dtype=torch.bool, device=device)
        self.t = torch.zeros(items, dtype=complex_of(flat.dtype), device=device)
        self.which = torch.zeros(items, dtype=torch.long, device=device)
        # Causal: whether the eigenvalue is on the diagonal more than once; the number of its vectors is then open.
        self.repeated = torch.zeros(items, dtype=torch.bool, device=device)
        self.condition = torch.ones_like(self.radius)
        self.error = torch.zeros_like(self.radius)
        self.certified = torch.zeros_like(self.repeated)
        self.doubted = torch.zeros_like(self.repeated)
        self.everything = torch.arange(items, device=device)
        # Eigenvalues on a diagonal are exact; those of larger blocks are not.
        self.exact = torch.zeros_like(self.repeated)
        self.parts = Reducible.of(flat)
        self._far = long_ways(flat)

    def search(self, how: Search) -> Tensor:
        """Fill in all items; returns the t that may tie with the best one, ``(items, m)``, padded with NaN."""
        A = self.A
        self.exact |= A.counted() < 2
        if A.tokens == 1:
            return self.t[:, None] * torch.nan
        if A.causal and how.method == "auto":
            # Real eigenvalues: |μ| is convex in t, so its largest value is at an end.
            values = causal_values(A)
            ends = [values.nan_to_num(nan=torch.inf).amin(-1), values.nan_to_num(nan=-torch.inf).amax(-1)]
            both = torch.stack(ends, dim=-1)
            self._directly(self.everything, torch.where(both.isinf(), torch.nan, both).to(self.t.dtype))
            near = 1e-6 * self.t.real.abs()[:, None]
            self.repeated = ((values - self.t.real[:, None]).abs() <= near).sum(-1) > 1
            self.exact |= True
            return torch.stack([self.t, torch.where(self.repeated, self.t, torch.nan)], dim=-1)
        small = A.counted() <= (DENSE_TOKENS if how.method == "auto" else 1)
        apart = torch.zeros_like(small) if how.method == "arnoldi" else self.parts.which
        if how.method == "dense" or (small | apart).all():
            return self._directly(self.everything, self._all_values(self.everything))
        direct = self.everything[small | apart]
        if len(direct):
            self._directly(direct, self._all_values(direct))
        self._by_arnoldi(self.everything[~(small | apart)], how)
        lost = self.everything[~self.converged]
        if len(lost) and self._can_rescue(how):
            self.condition[lost] = 1.0  # Arnoldi's is that of a value that did not converge
            self._directly(lost, self._all_values(lost))
        return torch.stack([self.t, torch.where(self.t.imag == 0, torch.nan, self.t.conj())], dim=-1)

    def settle(
        self, candidates: Tensor, level: Tensor, spectra: HeadSpectra, weights_error: Tensor, how: Search, tie: float
    ) -> Tensor:
        """How certain it is on which side of `level`, the smoothing radius, each radius lies.

        Suspects, ill-conditioned or nearer to the level than a few times their error, are computed again in float64 and
        a proof is tried. Returns the candidates for ties, which that may have changed.
        """
        if self.A.tokens == 1:
            self.certified |= True
            return candidates
        # The condition number from a Krylov space is not trusted where paths are long.
        far = self.everything[self._far & ~self.exact]
        if len(far) and how.method != "arnoldi":
            self.condition[far] = torch.maximum(self.condition[far], self._conditions(far))
        slope = self.lam.gather(1, self.which[:, None])[:, 0].abs()
        blur = rounding(self.A).to(self.radius)
        change = self.residual + slope * blur
        size = slope * blur / (ROUNDINGS * self.A.rounding)  # |λ| ‖A‖
        estimate = moved(self.condition, change, size, self.A.tokens - 1)
        self.error = torch.where(self.exact, slope * self.A.rounding, estimate)
        gap = (level - self.radius.clamp(min=how.rough_floor)).abs()
        sure = gap > SAFETY * (self.error + weights_error.to(gap))
        self.certified = self.exact & sure
        # A tie that is known well enough needs no proof.
        tied = torch.maximum(gap, self.error) <= tie * level.clamp(min=self.base)
        suspect = ~self.exact & ~tied & (~sure | (self.condition > SUSPICIOUS))
        if how.method == "arnoldi" or how.steps is not None:
            self.doubted = suspect & ~sure
            return candidates
        counted, apart = self.A.counted().tolist(), self.parts.which.tolist()
        for i in self.everything[suspect].tolist():
            if counted[i] > CERTIFY_TOKENS or not isinstance(self.A, DenseAttention):
                self.doubted[i] = ~sure[i]
                continue
            blocks = [block.B for block in self.parts.blocks(i)] if apart[i] else [centred_block(self.A, i)]
            here = torch.tensor([i], device=self.A.device)
            whole = self.A.select(here).to(torch.float64)
            values = self.parts.values(i)[None] if apart[i] else dense_values(whole)
            self._directly(here, values.to(self.t))
            region = Region(
                lam=spectra.centred[i].cpu(),
                base=self.base,
                shift=float(self.shift[i]),
                rho=float(level[i]),
                slack=(weights_error[i] + 2 * spectra.centred_error[i] + self.A.rounding * float(level[i])).cpu(),
            )
            proven = all(certified(B.cpu(), region, float(blur[i])) for B in blocks)
            self.certified[i], self.doubted[i] = proven, not proven
            self.error[i] = 0.0 if proven else self.error[i]
            if candidates.shape[-1] == 2:
                candidates[i, 0], candidates[i, 1] = self.t[i], self.t[i].conj() if self.t[i].imag != 0 else torch.nan
        return candidates

    def _can_rescue(self, how: Search) -> bool:
        return how.method == "auto" and how.steps is None and self.A.tokens <= _RESCUE_TOKENS

    def _all_values(self, index: Tensor) -> Tensor:
        """All eigenvalues but one 1 of the items at index, ``(b, n − 1)``, padded with NaN; notes which are exact."""
        A = self.A if len(index) == len(self.everything) else self.A.select(index)
        for i in index[self.parts.which[index]].tolist():
            self.exact[i] = self.parts.triangular(i)
        return dense_values(A, self.parts.select(index))

    def _directly(self, index: Tensor, values: Tensor) -> Tensor:
        """Take the best of these eigenvalues ``(b, m)`` for the items at index."""
        self.radius[index], i, self.which[index] = largest(values, self.lam[index], self.shift[index], self.base)
        self.t[index] = values.gather(1, i[:, None])[:, 0].nan_to_num()
        self.residual[index], self.converged[index] = 0.0, True
        # Items that went through Arnoldi before have a condition number already.
        new = ~self.exact[index] & (self.condition[index] == 1) & (self.A.counted()[index] > 1)
        if bool(new.any()) and not self.A.causal:
            self.condition[index[new]] = self._conditions(index[new])
        return values

    def _conditions(self, index: Tensor) -> Tensor:
        """The condition number of each item's t, ``(b,)``; within its block, where A falls into several."""
        apart = self.parts.which[index]
        conditions = torch.ones(len(index), dtype=self.A.dtype, device=self.A.device)
        whole = index[~apart]
        if len(whole):
            conditions[~apart] = eigenvectors(self.A.select(whole).dense().A, self.t[whole])[1]
        for row in apart.nonzero()[:, 0].tolist():
            conditions[row] = self.parts.condition(int(index[row]), self.t[index[row]])
        return conditions

    def _by_arnoldi(self, index: Tensor, how: Search) -> None:
        def score(theta: Tensor, reach: Tensor, part: Tensor) -> Tensor:
            here = index[part]
            return _largest_for_each(theta, self.lam[here], self.shift[here], self.base, reach)[0]

        whole = len(index) == len(self.everything)
        system = CentredAttention(self.A if whole else self.A.select(index))
        if self.A.device.type == "cpu" and self._can_rescue(how):
            first, most = 16, max(64, self.A.tokens // 3)
        else:
            first, most = 24, _STEPS  # on a GPU steps cost next to nothing
        first, most = how.steps or first, how.steps or most
        parts = torch.arange(len(index), device=index.device)
        ritz = extremal(system, score, tolerance=how.tolerance, first=first, most=most, seed=how.seed)
        _, which = _largest_for_each(ritz.value[:, None], self.lam[index], self.shift[index], self.base)
        self.radius[index], self.t[index], self.which[index] = ritz.score, ritz.value, which[:, 0]
        self.residual[index] = score(ritz.value[:, None], ritz.residual[:, None], parts)[:, 0] - ritz.score
        self.converged[index], self.condition[index] = ritz.converged, ritz.condition
