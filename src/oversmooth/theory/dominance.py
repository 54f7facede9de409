"""Which eigenvalue dominates with depth, the smoothing one or another (THEORY §3 to §6).

The update ``T(X) = X + Σ_h A_h X W_V^h W_O^h`` keeps constant arrays constant, on which it is ``I + W_V W_O``, and acts
on what remains, centred arrays, as T_P. ρ_smooth and ρ_rough are the radii of these two; the larger one wins with
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory import one_head, several_heads
from oversmooth.theory.bounds import DEFECTIVE, SAFETY, Words, nested
from oversmooth.theory.limit import LimitArray
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.radii import AttentionChange, Search, Update
from oversmooth.theory.reasons import Reason, finite
from oversmooth.theory.spectrum import METHODS, Method, check_tolerance, materialise_if_small
from oversmooth.theory.weights import check_weights, one_per_head

Verdict = Literal["smooth", "rough", "tie", "undecided"]
_VERDICTS: tuple[Verdict, ...] = ("rough", "tie", "smooth", "undecided")
_ROUGH, _TIE, _SMOOTH, _UNDECIDED = range(4)
TIE = {torch.float64: 1e-7, torch.float32: 1e-5}
"""Radii nearer than this, relative to the larger (or 1), are a tie: at equality the Jordan structure decides."""
JOINT_STEPS = 256
"""A budget for all heads together: about as much work as the rest of a diagnosis. Verdicts of DeiT-Tiny, MiniLM and
stories15m are those of the full search, and radii within 2e-4.
"""
# A limit array has rank one where σ₂/σ₁ is no more than rounding, and has not where it is more than a Ritz vector may
# be off; in between it is open.
_RANK_ONE = {torch.float64: 1e-9, torch.float32: 1e-5}
_NOT_RANK_ONE = 1e-3
# Tokens of a limit of rank one are parallel, but for those that are zero up to rounding, whose direction is nothing.
_PARALLEL = 1 - 1e-3


@dataclass(frozen=True)
class Dominance:
    """Both radii, and what follows from them for a generic input; ``(...)`` each, or ``(..., heads)`` per head."""

    rho_smooth: Tensor
    """Radius on constant arrays, from the weights alone."""
    rho_rough: Tensor
    """Radius on centred arrays; 0 with a single token."""
    residual: Tensor
    """‖T_P Z − μ Z‖ of the unit Ritz pair behind rho_rough (one head: A's, times |λ|); 0 if computed directly."""
    tolerance: Tensor
    """Margins below this are a tie: the radii are equal as far as the weights are known."""
    error: Tensor
    """How far rho_rough may be off, estimated: its residual and the rounding of attention, times its condition; or how
    much larger it may be where the search stopped before all tokens of causal attention were refined or beaten.
    """
    weights_error: Tensor
    """How far rounding may move the eigenvalues of the weights."""
    certified: Tensor
    """Whether the verdict is proven, rounding included."""
    doubted: Tensor
    """Whether rho_rough is not known well enough to decide."""
    frozen: Tensor
    """Whether features that no head writes to stay as they are while all others shrink: both radii are 1, and input
    convergence is excluded all the same.
    """
    rule: str
    """What was compared, in words."""
    pair: tuple[Tensor, Tensor] | None
    """One head: the eigenvalues (of A, of H) behind the larger radius."""
    array: LimitArray | None
    """What X tends to when the rough part wins, with its own ratio, angle and rank; None if not asked for."""
    rank_one: Tensor
    """Whether the rough dominator, all that ties with it included, is an array of rank one at every depth."""
    rank_known: Tensor
    """Whether rank_one is known: not with several heads without the array, nor where other eigenvalues are seen to tie.
    Arnoldi does not see all eigenvalues; several heads are then assumed to have no ties in modulus.
    """
    smooth_floor: float = 0.0
    """1 with biases: a constant offset is a smooth mode of eigenvalue 1."""
    rough_floor: float = 0.0
    """1 with NeuTRENO's source, which differs between tokens."""

    @property
    def margin(self) -> Tensor:
        """ρ_smooth − ρ_rough, each at least its floor; positive where smoothing dominates."""
        return self.rho_smooth.clamp(min=self.smooth_floor) - self.rho_rough.clamp(min=self.rough_floor)

    @property
    def smoothing(self) -> Tensor:
        """Where the verdict is "smooth": a boolean tensor over the batch."""
        return self._outcome() == _SMOOTH

    @property
    def undecided(self) -> Tensor:
        """Where the verdict is "undecided": a boolean tensor over the batch."""
        return self._outcome() == _UNDECIDED

    @property
    def verdict(self) -> Words:
        """One of "smooth", "rough", "tie" and "undecided"; nested lists of them for a batch."""
        return _words(self._outcome(), _VERDICTS)

    @property
    def certainty(self) -> Words:
        """How the verdict is known, nested alike: "certified" by a proof, or "estimated"."""
        return _words((self.certified & (self._outcome() != _UNDECIDED)).int(), ("estimated", "certified"))

    @property
    def reason(self) -> Words:
        """Why a verdict is "undecided" or a "tie", or not what the radii say, nested alike; "" for all others."""
        return nested([str(why or "") for why in self.reasons], self.margin.shape)

    @property
    def reasons(self) -> list[Reason | None]:
        """The same as values, one per case in flat order; None for all others."""
        columns = [
            x.flatten().tolist()
            for x in (self._outcome(), self.margin, self.error, self.weights_error, self._is_frozen())
        ]
        return [_reason(*row) for row in zip(*columns, strict=True)]

    @property
    def notions(self) -> dict[str, Words]:
        """Whether each of the three notions "holds", "fails" or is "open" for a generic input, by the spectra.

        Angle convergence is meant up to sign, over the tokens that are not zero in the limit.
        """
        outcome = self._outcome()
        known = self.rank_known & (self.rho_rough >= self.rough_floor)  # otherwise a source dominates, of any rank
        rough = torch.where(known, torch.where(self.rank_one, 2, 0), 1)
        collapse = torch.where(outcome == _SMOOTH, 2, torch.where(outcome == _ROUGH, rough, 1))
        answers = ("fails", "open", "holds")
        # With fewer than two tokens that are not zero in the limit there is no angle (NaN).
        no_angle = torch.zeros_like(self.rank_one)
        if self.array is not None:
            no_angle = (outcome == _ROUGH) & (collapse == 2) & ~(self.array.abs_cos[0] > _PARALLEL)
        return {
            "input_convergence": _words(torch.where(outcome == _UNDECIDED, 1, outcome), answers),
            "angle_convergence": _words(torch.where(no_angle, 1, collapse), answers),
            "rank_collapse": _words(collapse, answers),
        }

    def _is_frozen(self) -> Tensor:
        # A bias may feed those features forever, and a source may keep any tokens apart.
        return self.frozen & (self.smooth_floor == 0) & (self.rough_floor == 0)

    def _outcome(self) -> Tensor:
        size = self.margin.abs()
        outcome = (self.margin > self.tolerance).int() - (self.margin < -self.tolerance).int() + 1
        scale = torch.maximum(self.rho_smooth, self.rho_rough).clamp(min=torch.finfo(size.dtype).tiny)
        defective = (self.weights_error > DEFECTIVE * scale) & (size <= self.weights_error)
        # Equal as far as the weights are known, and attention is known as well: a tie. Otherwise it is undecided.
        doubted = self.doubted & ~((outcome == _TIE) & (self.error <= self.tolerance))
        outcome = torch.where(defective | doubted, _UNDECIDED, outcome)
        return torch.where(self._is_frozen(), _ROUGH, outcome)


@torch.no_grad()
def dominance(
    A: Tensor | AttentionOperator,
    W_V: Tensor,
    W_O: Tensor,
    *,
    per_head: bool = False,
    residual: bool | float = True,
    bias: Tensor | None = None,
    neutreno: float | Tensor = 0.0,
    change: AttentionChange | None = None,
    zeros: bool | None = None,
    limit: bool | None = None,
    method: Method = "auto",
    tolerance: float | None = None,
    steps: int | None = None,
    tie: float | None = None,
    seed: int = 0,
) -> Dominance:
    """Compare the smoothing eigenvalue with all others, for all heads together or for each head alone.

    A norm before the layer enters through ``fold_norm(W_V, ...)``.

    Args:
        A: ``(..., heads, n, n)``, attention, or an operator of that shape.
        W_V: ``(..., heads, d, k)``, value weights; their batch, if any, aligns with A's.
        W_O: ``(..., heads, k, d)``, output weights; likewise.
        per_head: treat each head as if it were the only one, as Dovonon et al. do.
        residual: False for an update without X itself; a number for one with that many times X.
        bias: ``(d,)``, what is added to every token, as in `simulate` (a folded norm's β adds to it). Unless zero, it
            is a smooth mode of eigenvalue 1; its size does not matter.
        neutreno: ``()`` or ``(heads,)``, λ̃, which shifts A's eigenvalues by −λ̃ and adds a source that keeps tokens
            apart.
        change: any other change of attention that is linear in A; replaces neutreno.
        zeros: whether the d − k zero eigenvalues of a head's H count; they give μ = 1 on both sides. By default they do
            for a single head and do not per head, as in Dovonon et al.'s table 1.
        limit: whether to build the array that X tends to when the rough part wins; by default where that is cheap, and
            not per head.
        method: "dense" computes all eigenvalues, "arnoldi" never forms the n·d by n·d matrix, "auto" chooses.
        tolerance: relative residual at which an eigenvalue has converged.
        steps: the number of products with the update, or per head with attention, after which to stop, converged or
            not: what is then too uncertain for a verdict is "undecided". With several heads and causal attention all
            tokens take these steps at once, and the best eight are refined until they converge. By default as many as
            needed, with slow cases computed directly.
        tie: relative margin below which the verdict is a tie.
        seed: of the random start of Arnoldi.

    Returns:
        ``(...)`` in every field, or ``(..., heads)`` per head.

    Raises:
        InputError: shapes that do not fit, entries that are not finite, rows of A that do not sum to 1, or a radius
            beyond the range of the precision.

    >>> A = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> W = torch.eye(2)[None]
    >>> dominance(A, W, W).verdict, dominance(A, W, -W).verdict
    ('smooth', 'rough')
    """
    A = as_operator(A)
    arguments.choice(method, "method", METHODS)
    W_V, W_O = check_weights(W_V, W_O)
    heads = W_V.shape[-3]
    if len(A.shape) < 3 or A.shape[-3] != heads:
        raise InputError(
            f"attention has shape {tuple(A.shape)} but the weights have {heads} heads; give (..., {heads}, n, n)"
        )
    batch = A.shape[:-3]
    for name, W in (("W_V", W_V), ("W_O", W_O)):
        arguments.check_broadcast(attention=batch, **{name: W.shape[:-3]})
        if torch.broadcast_shapes(batch, W.shape[:-3]) != batch:
            raise InputError(
                f"{name} has batch {tuple(W.shape[:-3])}, which does not align with attention's {tuple(batch)}; "
                "give one for all, or attention for each"
            )
    tolerance = check_tolerance(tolerance, A.dtype)
    tie = TIE[A.dtype] if tie is None else arguments.fraction(tie, "tie", zero=True)
    steps = None if steps is None else arguments.whole(steps, "steps", least=1)
    per_head, seed = arguments.flag(per_head, "per_head"), arguments.seed(seed)
    zeros = None if zeros is None else arguments.flag(zeros, "zeros")
    limit = None if limit is None else arguments.flag(limit, "limit")
    residual = check_residual(residual)
    if not (change is None or isinstance(change, AttentionChange)):
        raise InputError(f"change is {arguments.kind(change)}; give an AttentionChange, or neutreno")
    biased = is_biased(bias)
    if A.mask is not None and not per_head and not torch.equal(A.mask, A.mask[..., :1, :].expand_as(A.mask)):
        raise InputError("the mask differs between heads; heads taken together see the same tokens: give (..., n)")
    W_V, W_O = W_V.to(A.device, A.dtype), W_O.to(A.device, A.dtype)
    if change is None:
        shift = one_per_head(neutreno, W_V, "neutreno")
        change = AttentionChange(torch.ones_like(shift), shift, torch.zeros_like(shift), source=bool(shift.any()))
    gain, shift, constant = (one_per_head(x, W_V, "change") for x in (change.gain, change.shift, change.constant))
    if not bool(gain.all()):
        raise InputError("a head's attention is multiplied by 0, so that nothing of it is left; leave the head out")
    W_V = W_V * gain[:, None, None]
    # Without the residual connection there is no 1 to compare sizes with: weights of any size become ordinary ones.
    size = abs(float(residual)) if residual else float(W_V.abs().max()) * float(W_O.abs().max()) or 1.0
    if residual:
        W_O = W_O / float(residual)
    else:
        W_V, W_O = (W / W.abs().max().clamp(min=torch.finfo(W.dtype).tiny) for W in (W_V, W_O))
    gains = [None if x is None else x.to(A.device, A.dtype) for x in (change.constant_gain, change.centred_gain)]
    update = Update(1.0 if residual else 0.0, shift / gain, constant / gain, *gains)
    if not (A.causal and method == "auto"):  # there the diagonal says it all
        A = materialise_if_small(A)
    # A source that differs between tokens outlasts a constant offset of the same growth.
    smooth_floor, rough_floor = (1.0 if biased and not change.source else 0.0), (1.0 if change.source else 0.0)
    search = Search(
        method, tolerance, steps, bool(limit) if per_head else limit, seed, smooth_floor / size, rough_floor / size
    )
    if per_head or heads == 1:
        zeros = not per_head if zeros is None else zeros
        radii = one_head.radii(A, W_V, W_O, update, search, zeros=zeros, tie=tie)
        rule = "each head alone, one maximum over all pairs of eigenvalues of A and H, " + (
            "the zeros of H included" if zeros else "the d − k zeros of H left out"
        )
        if not per_head:
            radii = radii.map(lambda x: x.select(len(batch), 0))
    else:
        radii = several_heads.radii(A, W_V, W_O, update, search)
        rule = "all heads together: the radius on constant arrays against the radius on centred arrays"
        rule += "" if steps is None else f", as far as {steps} products show it"

    radii = radii.scaled(size)
    if not bool((radii.rho_smooth.isfinite() & radii.rho_rough.isfinite()).all()):
        raise InputError(f"a radius leaves the range of {A.dtype}; scale the weights down, or give them in float64")
    scale = torch.maximum(radii.rho_smooth, radii.rho_rough).clamp(min=update.base)
    array = None
    if radii.array is not None:
        mask = A.mask if A.mask is None or per_head else A.mask.select(len(batch), 0)
        array = LimitArray.of(radii.array, radii.mu, mask)
    return Dominance(
        rho_smooth=radii.rho_smooth,
        rho_rough=radii.rho_rough,
        residual=radii.residual,
        # Nothing is decided more finely than it is known.
        tolerance=torch.maximum(tie * scale, radii.residual + radii.weights_error.clamp(max=DEFECTIVE * scale)),
        error=radii.error,
        weights_error=radii.weights_error,
        certified=radii.certified,
        doubted=radii.doubted,
        frozen=radii.frozen,
        rule=rule,
        pair=None if radii.t is None or radii.lam is None else (radii.t, radii.lam),
        array=array,
        rank_one=~radii.mixed if array is None else ~radii.mixed & (array.sigma_ratio[1] <= _RANK_ONE[A.dtype]),
        rank_known=radii.rank_known if array is None else radii.rank_known & (radii.mixed | _is_known(array, A.dtype)),
        smooth_floor=smooth_floor,
        rough_floor=rough_floor,
    )


def _is_known(array: LimitArray, dtype: torch.dtype) -> Tensor:
    """Whether an array tells its rank."""
    ratio = array.sigma_ratio[1]
    return (ratio <= _RANK_ONE[dtype]) | (ratio > _NOT_RANK_ONE)


def is_biased(bias: Tensor | None) -> bool:
    """Whether anything is added to every token."""
    if bias is None:
        return False
    return bool(arguments.tensor(bias, "bias", "(d,), or None", least=1).any())


def check_residual(residual: bool | float) -> bool | float:
    """Whether, or how many times, an update keeps X itself."""
    if isinstance(residual, bool):
        return residual
    return arguments.number(residual, "residual", "give True, False or a finite number")


def _reason(outcome: int, margin: float, error: float, weights_error: float, frozen: bool) -> Reason | None:
    if frozen:
        return Reason("fixed_features")
    if outcome == _TIE:
        return Reason("equal_radii")
    if outcome != _UNDECIDED:
        return None
    apart = abs(margin)
    if apart <= weights_error and error <= weights_error:
        return Reason("nearly_defective", finite(apart), finite(weights_error))
    if apart > SAFETY * error:
        return Reason("ill_conditioned")
    return Reason("radii_too_close", finite(apart), finite(error))


def _words(code: Tensor, vocabulary: Sequence[str]) -> Words:
    return nested([vocabulary[i] for i in code.flatten().tolist()], code.shape)
