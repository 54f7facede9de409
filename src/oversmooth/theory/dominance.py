"""Which eigenvalue dominates with depth, the smoothing one or another (THEORY §3 to §6).

The update ``T(X) = X + Σ_h A_h X W_V^h W_O^h`` keeps constant arrays constant, on which it is ``I + W_V W_O``, and acts
on what remains, centred arrays, as T_P. ρ_smooth and ρ_rough are the radii of these two; the larger one wins with
depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory import one_head, several_heads
from oversmooth.theory.bounds import Words, nested
from oversmooth.theory.errors import DEFECTIVE, SAFETY
from oversmooth.theory.limit import LimitArray
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.radii import AttentionChange, Radii, Settings, Update
from oversmooth.theory.reasons import Reason, finite
from oversmooth.theory.spectrum import materialise_if_small
from oversmooth.theory.together import Search, side_by_side
from oversmooth.theory.weights import check_weights, one_per_head

Verdict = Literal["smooth", "rough", "tie", "undecided"]
_VERDICTS: tuple[Verdict, ...] = ("rough", "tie", "smooth", "undecided")
_ROUGH, _TIE, _SMOOTH, _UNDECIDED = range(4)
JOINT_STEPS = 128
"""A budget for all heads jointly: about as much work as the rest of a diagnosis. Verdicts of DeiT-Tiny, MiniLM and
stories15m are those of the full search, and radii within 3e-3.
"""
# A limit array has rank one where σ₂/σ₁ is no more than rounding, and has not where it is more than a Ritz vector may
# be off; in between it is open.
_RANK_ONE = {torch.float64: 1e-9, torch.float32: 1e-5}
_NOT_RANK_ONE = 1e-3
# Tokens of a limit of rank one are parallel, except those that are zero up to rounding, which have no direction.
_PARALLEL = 1 - 1e-3


@dataclass(frozen=True, kw_only=True)
class Dominance(Radii):
    """Both radii, and what follows from them for a generic input; ``(...)`` each, or ``(..., heads)`` per head."""

    tolerance: Tensor
    """Margins below this are a tie: the radii are equal as far as the weights are known."""
    rule: str
    """What was compared, in words."""
    array: LimitArray | None
    """What X tends to when the rough part wins, with its own ratio, angle and rank; None if not asked for."""
    rank_one: Tensor
    """Whether the dominant rough modes, ties included, are known to be arrays of rank one at every depth."""
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
        columns = (self._outcome(), self.margin, self.error, self.weights_error, self._is_frozen())
        return [_reason(*row) for row in zip(*(x.flatten().tolist() for x in columns), strict=True)]

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
    **settings: Any,
) -> Dominance:
    """Compare the smoothing eigenvalue with all others, for all heads jointly or for each head alone.

    A norm before the layer enters through ``fold_norm(W_V, ...)``.

    Args:
        A: ``(..., heads, n, n)``, attention, or an operator of that shape.
        W_V: ``(..., heads, d, k)``, value weights; their batch, if any, aligns with A's.
        W_O: ``(..., heads, k, d)``, output weights; likewise.
        per_head: treat each head as if it were the only one, as Dovonon et al. do; the d − k zero eigenvalues of its H,
            which give μ = 1 on both sides, are left out, as in their table 1.
        residual: False for an update without X itself; a number for one with that many times X.
        bias: ``(d,)``, what is added to every token, as in `simulate` (a folded norm's β adds to it). Unless zero, it
            is a smooth mode of eigenvalue 1; its size does not matter.
        neutreno: ``()`` or ``(heads,)``, λ̃, which shifts A's eigenvalues by −λ̃ and adds a source that keeps tokens
            apart.
        change: any other change of attention that is linear in A; replaces neutreno.

    Further keywords are the settings of the search:
        limit: whether to build the array that X tends to when the rough part wins; by default where that is cheap, and
            not per head. Never under a change that treats constant arrays apart (``mean``, ``constant_gain``).
        method: "dense" computes all eigenvalues, "arnoldi" never forms the n·d by n·d matrix, "auto" chooses.
            Causal attention always takes its diagonal.
        tolerance: relative residual at which an eigenvalue has converged.
        steps: the number of products with the update, or per head with attention, after which to stop, converged or
            not: what is then too uncertain for a verdict is "undecided". With several heads and causal attention all
            tokens take at most 64 of them, and the best eight as many, or 256. By default as many as needed, with slow
            cases computed directly.
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
    how = dict(per_head=per_head, residual=residual, bias=bias, neutreno=neutreno, change=change)
    return side_by_side([search(A, W_V, W_O, **how, **settings)])[0]  # type: ignore[arg-type]


def search(
    A: Tensor | AttentionOperator,
    W_V: Tensor,
    W_O: Tensor,
    *,
    per_head: bool = False,
    residual: bool | float = True,
    bias: Tensor | None = None,
    neutreno: float | Tensor = 0.0,
    change: AttentionChange | None = None,
    eigenvalues: one_head.HeadEigenvalues | None = None,
    **settings: Any,
) -> Search[Dominance]:
    """The same as a search, which `side_by_side` runs with those of other layers.

    eigenvalues: of each head's weights, where they are known already.
    """
    A = as_operator(A)
    W_V, W_O = weights_that_fit(A, W_V, W_O)
    how = Settings.of(A.dtype, **settings)
    per_head, residual = arguments.flag(per_head, "per_head"), check_residual(residual)
    biased = bias is not None and bool(arguments.tensor(bias, "bias", "(d,), or None", least=1).any())
    if not per_head:
        check_token_mask(A)
    change = _checked_change(change, neutreno, W_V)
    if change.constant_gain is not None or bool(change.mean.any()):
        how = replace(how, limit=False)  # constant arrays have weights or attention of their own
    W_V, W_O, update, size = scaled_update(W_V, W_O, residual, change, biased)
    if A.causal:  # its diagonal says it all, where Arnoldi converges to pseudo-eigenvalues of a matrix far from normal
        how = replace(how, method="auto")
    else:
        A = materialise_if_small(A)
    if per_head or W_V.shape[-3] == 1:
        how = replace(how, limit=bool(how.limit)) if per_head else how
        if eigenvalues is None:
            eigenvalues = one_head.HeadEigenvalues.of(W_V, W_O, update.constant_gain, update.centred_gain)
        radii = one_head.Heads(A, W_V, W_O, eigenvalues, how).radii(update, zeros=not per_head)
        rule = "each head alone, one maximum over all pairs of eigenvalues of A and H, " + (
            "the d − k zeros of H left out" if per_head else "the zeros of H included"
        )
        if not per_head:
            radii = radii.map(lambda x: x.select(len(A.shape) - 3, 0))
    else:
        radii = yield from several_heads.radii(A, W_V, W_O, update, how)
        rule = "all heads together: the radius on constant arrays against the radius on centred arrays"
        rule += "" if how.steps is None else f", as far as {how.steps} products show it"
    mask = A.mask if per_head else A.token_mask
    return of_radii(radii.scaled(size), mask, update, how.tie, rule)


def weights_that_fit(A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, checked, in A's precision and on its device."""
    W_V, W_O = check_weights(W_V, W_O)
    heads = W_V.shape[-3]
    if len(A.shape) < 3 or A.shape[-3] != heads:
        raise InputError(
            f"attention has shape {tuple(A.shape)} but the weights have {heads} heads; give (..., {heads}, n, n)"
        )
    batch = A.shape[:-3]
    for name, W in (("W_V", W_V), ("W_O", W_O)):
        arguments.check_broadcast(attention=batch, **{name: W.shape[:-3]})
        if arguments.broadcast(batch, W.shape[:-3]) != batch:
            raise InputError(
                f"{name} has batch {tuple(W.shape[:-3])}, which does not align with attention's {tuple(batch)}; "
                "give one for all, or attention for each"
            )
    return W_V.to(A.device, A.dtype), W_O.to(A.device, A.dtype)


def _checked_change(change: AttentionChange | None, neutreno: float | Tensor, W_V: Tensor) -> AttentionChange:
    """The change of attention, NeuTRENO's unless another is given, with one number per head."""
    if not (change is None or isinstance(change, AttentionChange)):
        raise InputError(f"change is {arguments.kind(change)}; give an AttentionChange, or neutreno")
    if change is None:
        shift = one_per_head(neutreno, W_V, "neutreno")
        change = AttentionChange(torch.ones_like(shift), shift, torch.zeros_like(shift), source=bool(shift.any()))
    gain, shift, mean = (one_per_head(x, W_V, "change") for x in (change.gain, change.shift, change.mean))
    if not bool(gain.all()):
        raise InputError("a head's attention is multiplied by 0, so that nothing of it is left; leave the head out")
    gains = [None if x is None else x.to(W_V) for x in (change.constant_gain, change.centred_gain)]
    return AttentionChange(gain, shift, mean, change.source, *gains)


def scaled_update(
    W_V: Tensor, W_O: Tensor, residual: bool | float, change: AttentionChange, biased: bool
) -> tuple[Tensor, Tensor, Update, float]:
    """The update with a residual connection of 1 or 0, its weights, and the factor on its radii.

    Without the residual connection there is no 1 to compare sizes with: weights of any size become ordinary ones.
    """
    W_V = W_V * change.gain[:, None, None]
    size = abs(float(residual)) if residual else float(W_V.abs().max()) * float(W_O.abs().max()) or 1.0
    if residual:
        W_O = W_O / float(residual)
    else:
        W_V, W_O = (W / W.abs().max().clamp(min=torch.finfo(W.dtype).tiny) for W in (W_V, W_O))
    update = Update(
        base=1.0 if residual else 0.0,
        shift=change.shift / change.gain,
        constant=change.constant / change.gain,
        constant_gain=change.constant_gain,
        centred_gain=change.centred_gain,
        # A source that differs between tokens outlasts a constant offset of the same growth.
        smooth_floor=1.0 / size if biased and not change.source else 0.0,
        rough_floor=1.0 / size if change.source else 0.0,
    )
    return W_V, W_O, update, size


def of_radii(radii: Radii, mask: Tensor | None, update: Update, tie: float, rule: str) -> Dominance:
    """What follows from the radii; mask: of the tokens, with the radii's batch."""
    dtype = radii.rho_smooth.dtype
    if not bool((radii.rho_smooth.isfinite() & radii.rho_rough.isfinite()).all()):
        raise InputError(f"a radius leaves the range of {dtype}; scale the weights down, or give them in float64")
    scale = torch.maximum(radii.rho_smooth, radii.rho_rough).clamp(min=update.base)
    rank_one, rank_known, array = ~radii.mixed & radii.rank_known, radii.rank_known, None
    if radii.eigenarray is not None:
        array = LimitArray.of(radii.eigenarray, radii.mu, mask)
        ratio = array.sigma_ratio[1]
        is_one = ratio <= _RANK_ONE[dtype]
        rank_one = ~radii.mixed & is_one
        rank_known = rank_known & (radii.mixed | is_one | (ratio > _NOT_RANK_ONE))
    return Dominance(
        **{**vars(radii), "rank_known": rank_known, "eigenarray": None},
        # A margin below the numerical error counts as a tie.
        tolerance=torch.maximum(tie * scale, radii.residual + radii.weights_error.clamp(max=DEFECTIVE * scale)),
        rule=rule,
        array=array,
        rank_one=rank_one,
        smooth_floor=float(update.smooth_floor > 0),
        rough_floor=float(update.rough_floor > 0),
    )


def check_token_mask(A: AttentionOperator) -> None:
    """Refuse masks that differ between heads."""
    if A.mask is not None and not bool((A.mask == A.mask[..., :1, :]).all()):
        raise InputError("the mask differs between heads; all heads jointly see the same tokens: give (..., n)")


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
