"""Each head's dominance along shifts of its attention, ``A − s I`` for many s (THEORY §6, its spectrum).

Taken by `steering.suggest`, which looks for the least strength of NeuTRENO at which nothing smooths. A shift moves
every eigenvalue t of A to t − s and leaves H alone, so the radii at every s follow from one set of t and λ.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.dominance import check_residual, of_radii, scaled_update, weights_that_fit
from oversmooth.theory.one_head import HeadEigenvalues, Heads, Pairs
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.radii import AttentionChange, Settings
from oversmooth.theory.spectrum import materialise_if_small

# Beyond this many tokens all eigenvalues cost more than Arnoldi for every shift.
_DENSE_TOKENS = 512
# Halvings of the step between two shifts, for the place where a verdict turns.
_HALVINGS = 10


@dataclass(frozen=True)
class ShiftedDominance:
    """Verdicts and radii of every head at every shift, as `dominance` of each head alone has them."""

    shifts: tuple[float, ...]
    smoothing: Tensor
    """``(..., heads, shifts)``: where the verdict is "smooth"."""
    undecided: Tensor
    """``(..., heads, shifts)``: where it is "undecided"."""
    rho_smooth: Tensor
    """``(..., heads, shifts)``"""
    rho_rough: Tensor
    """``(..., heads, shifts)``"""
    least: Tensor
    """``(..., heads)``: the least shift from which on nothing smooths, up to the last one; 0 where nothing does without
    any, inf where something does at the last, NaN where that is undecided.
    """


@torch.no_grad()
def shifted_dominance(
    A: Tensor | AttentionOperator,
    W_V: Tensor,
    W_O: Tensor,
    shifts: Sequence[float],
    *,
    residual: bool | float = True,
    source: bool = True,
    seed: int = 0,
) -> ShiftedDominance:
    """What `dominance` says of each head alone for ``A − s I``, at every s.

    Args:
        A: ``(..., heads, n, n)``, attention, or an operator of that shape.
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.
        shifts: s in ascending order, from 0.
        residual: as for `dominance`.
        source: whether a shift comes with a source that differs between tokens, as NeuTRENO's does; at s = 0 there is
            none.
        seed: of Arnoldi's random starts.

    Raises:
        InputError: shapes that do not fit, or shifts that do not ascend from 0.

    >>> A = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> W = torch.eye(2)[None]
    >>> shifted_dominance(A, W, W, [0.0, 0.5, 1.0]).smoothing
    tensor([[ True,  True, False]])
    """
    A = materialise_if_small(as_operator(A))
    W_V, W_O = weights_that_fit(A, W_V, W_O)
    remedy = "give two or more that ascend from 0"
    numbers = arguments.several(shifts, "the shifts", remedy)
    if len(numbers) < 2 or numbers[0] != 0 or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise InputError(f"the shifts are {arguments.shown(list(numbers))}; {remedy}")
    source = arguments.flag(source, "source")
    how, one, columns = Settings.of(A.dtype, seed=seed, limit=False), torch.ones(A.shape[-3]).to(W_V), []
    residual, heads = check_residual(residual), None
    for shift in numbers:
        change = AttentionChange(one, shift * one, 0 * one, source=source and shift != 0)
        V, O, update, size = scaled_update(W_V, W_O, residual, change, biased=False)  # noqa: E741
        heads = heads or Heads(A, V, O, HeadEigenvalues.of(V, O), how, complete=A.tokens <= _DENSE_TOKENS)
        columns.append(of_radii(heads.radii(update, zeros=False).scaled(size), None, update, how.tie, ""))
    assert heads is not None
    smoothing, undecided, smooth, rough = (
        torch.stack([getattr(column, name) for column in columns], dim=-1)
        for name in ("smoothing", "undecided", "rho_smooth", "rho_rough")
    )
    floor = update.rough_floor
    least = _least(heads, numbers, smoothing.flatten(0, -2), undecided.flatten(0, -2), update.base, floor)
    return ShiftedDominance(
        numbers, smoothing, undecided, smooth.double(), rough.double(), least.reshape(A.batch_shape)
    )


def _least(
    heads: Heads, numbers: Sequence[float], smoothing: Tensor, undecided: Tensor, base: float, floor: float
) -> Tensor:
    """The least shift from which on nothing smooths, ``(items,)``: between two of them it is searched by halving."""
    shifts = torch.tensor(numbers, dtype=torch.float64, device=smoothing.device)
    # The last shift at which something smooths, or may; −1: none.
    last = torch.where(smoothing | undecided, torch.arange(len(shifts), device=shifts.device), -1).amax(-1)
    doubtful = undecided.gather(1, last.clamp(min=0)[:, None])[:, 0] & (last >= 0)
    at_end = last == len(shifts) - 1
    low, high = shifts[last.clamp(min=0)], shifts[(last + 1).clamp(max=len(shifts) - 1)]
    t = heads.values
    if t is not None and bool(((last >= 0) & ~at_end & ~doubtful).any()):
        t, lam = t.to(torch.complex128), heads.spectra.centred
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            pairs = Pairs(lam, middle, base)
            smooth, rough = pairs.largest(torch.ones_like(t[:, :1]))[0], pairs.largest(t)[0]
            tie = heads.how.tie * torch.maximum(smooth, rough).clamp(min=base)
            still = smooth - rough.clamp(min=floor) > tie
            low, high = torch.where(still, middle, low), torch.where(still, high, middle)
    least = torch.where(last < 0, 0.0, high)
    least = torch.where(at_end, torch.inf, least)
    return torch.where(doubtful & at_end, torch.nan, least)
