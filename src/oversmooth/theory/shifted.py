"""One head's dominance along a shift of attention, ``A − s I`` for many s, from one set of eigenvalues (THEORY §6).

A shift moves every eigenvalue t of A to t − s and leaves H alone. So the radii at every s follow from the same t and λ,
and only cases near a tie, or whose eigenvalues are badly conditioned, are handed to `dominance`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.bounds import DEFECTIVE, ROUNDINGS, SAFETY, SUSPICIOUS, moved, rounding
from oversmooth.theory.dominance import TIE, check_residual, dominance
from oversmooth.theory.one_head import HeadSpectra, largest
from oversmooth.theory.operators import AttentionOperator, DenseAttention, as_operator
from oversmooth.theory.radii import AttentionChange
from oversmooth.theory.reducible import Reducible
from oversmooth.theory.small_matrices import complex_of, eigenvectors
from oversmooth.theory.spectrum import causal_values, dense_values, materialise_if_small
from oversmooth.theory.weights import check_weights

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
        W_V: ``(heads, d, k)``, value weights.
        W_O: ``(heads, k, d)``, output weights.
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
    W_V, W_O = check_weights(W_V, W_O)
    remedy = "give two or more that ascend from 0"
    numbers = arguments.several(shifts, "the shifts", remedy)
    if len(numbers) < 2 or numbers[0] != 0 or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise InputError(f"the shifts are {arguments.shown(list(numbers))}; {remedy}")
    source, seed = arguments.flag(source, "source"), arguments.seed(seed)
    if W_V.ndim != 3 or W_O.ndim != 3 or len(A.shape) < 3 or A.shape[-3] != W_V.shape[-3]:
        raise InputError(
            f"attention has shape {tuple(A.shape)} and the weights {tuple(W_V.shape)} and {tuple(W_O.shape)}; give "
            "(..., heads, n, n), (heads, d, k) and (heads, k, d)"
        )
    return _Along(A, W_V, W_O, numbers, check_residual(residual), source, seed).result()


class _Along:
    """All heads of a batch, one item each, at every shift."""

    def __init__(
        self,
        A: AttentionOperator,
        W_V: Tensor,
        W_O: Tensor,
        shifts: tuple[float, ...],
        residual: bool | float,
        source: bool,
        seed: int,
    ) -> None:
        self.A, self.shifts, self.residual, self.source, self.seed = A, shifts, residual, source, seed
        self.W_V, self.W_O = W_V.to(A.device, A.dtype), W_O.to(A.device, A.dtype)
        self.flat = A.flatten()
        self.heads, self.items = W_V.shape[-3], self.flat.shape[0]
        self.base, self.size = (1.0, abs(float(residual))) if residual else (0.0, 1.0)
        self.floor = 1.0 / self.size if source else 0.0
        scaled = self.W_O / float(residual) if residual else self.W_O
        self.spectra = HeadSpectra(self.W_V, scaled, None, None, A.batch_shape)
        # |base + (t − s) λ| is convex in t and in λ: both are at corners of their convex hulls where it is largest.
        self.lam = _corners(self.spectra.centred)
        self.known = A.causal or A.tokens <= _DENSE_TOKENS
        shape = (self.items, len(shifts))
        self.smooth, self.rough = (torch.zeros(shape, dtype=torch.float64, device=A.device) for _ in range(2))
        self.smoothing, self.undecided = (torch.zeros(shape, dtype=torch.bool, device=A.device) for _ in range(2))
        self.sure = torch.zeros_like(self.smoothing)
        self.parts = Reducible.of(self.flat)
        self.conditions: dict[tuple[int, int], float] = {}

    def result(self) -> ShiftedDominance:
        if self.known and self.A.tokens > 1:
            values = causal_values(self.flat) if self.A.causal else dense_values(self.flat, self.parts)
            self.t = _corners(values.to(torch.complex128))
            blur = rounding(self.flat).double()
            for column, shift in enumerate(self.shifts):
                self._by_eigenvalues(column, shift, blur)
        for column, shift in enumerate(self.shifts):
            self._ask(column, shift)
        batch = self.A.batch_shape
        return ShiftedDominance(
            shifts=self.shifts,
            smoothing=self.smoothing.reshape(*batch, -1),
            undecided=self.undecided.reshape(*batch, -1),
            rho_smooth=self.smooth.reshape(*batch, -1),
            rho_rough=self.rough.reshape(*batch, -1),
            least=self._least().reshape(batch),
        )

    def _radii(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both radii ``(items,)`` at each item's shift, and which t and λ attain the rough one."""
        one = torch.ones(self.items, 1, dtype=self.lam.dtype, device=self.lam.device)
        smooth = largest(one, self.lam, shift, self.base)[0]
        return smooth, *largest(self.t, self.lam, shift, self.base)

    def _by_eigenvalues(self, column: int, shift: float, blur: Tensor) -> None:
        """Verdicts that are clear: the margin is several times what rounding can do, by `dominance`'s own measures."""
        at = torch.full((self.items,), shift, dtype=torch.float64, device=self.lam.device)
        smooth, rough, i, which = self._radii(at)
        t = self.t.gather(1, i[:, None])[:, 0].nan_to_num()
        weights_error = self.spectra.reach(smooth, 1 - at, rough, t - at, self.base)
        slope = self.lam.gather(1, which[:, None])[:, 0].abs()
        if self.A.causal:
            error, believed = slope * self.A.rounding, torch.ones_like(slope, dtype=torch.bool)
        else:
            condition = self._conditions(i, t)
            norm = blur / (ROUNDINGS * self.A.rounding)
            error = moved(condition, slope * blur, slope * norm, self.A.tokens - 1)
            believed = condition <= SUSPICIOUS
        margin = smooth - rough.clamp(min=self.floor if shift else 0.0)
        scale = torch.maximum(smooth, rough).clamp(min=self.base)
        far = margin.abs() > SAFETY * (error + weights_error) + TIE[self.A.dtype] * scale
        fine = far & believed & ~(weights_error > DEFECTIVE * scale)
        self.smooth[:, column], self.rough[:, column] = smooth * self.size, rough * self.size
        self.smoothing[:, column], self.sure[:, column] = fine & (margin > 0), fine

    def _conditions(self, i: Tensor, t: Tensor) -> Tensor:
        """The condition number of each item's t, the ith; computed once for each."""
        keys, t = list(enumerate(i.tolist())), t.to(complex_of(self.A.dtype))
        new = [item for item, key in enumerate(keys) if key not in self.conditions]
        counted, apart = self.flat.counted().tolist(), self.parts.which.tolist()
        for item in new:
            self.conditions[keys[item]] = float(self.parts.condition(item, t[item])) if apart[item] else 1.0
        whole = [item for item in new if not apart[item] and counted[item] > 1]
        if whole:
            index = torch.tensor(whole, device=self.flat.device)
            computed = eigenvectors(self.flat.select(index).dense().A, t[index])[1]
            self.conditions.update({keys[item]: float(c) for item, c in zip(whole, computed, strict=True)})
        return torch.tensor([self.conditions[key] for key in keys], dtype=torch.float64, device=t.device)

    def _ask(self, column: int, shift: float) -> None:
        """`dominance` itself, where a case is not clear."""
        unclear = (~self.sure[:, column]).nonzero()[:, 0]
        if not len(unclear):
            return
        if isinstance(self.flat, DenseAttention):
            some = self.flat.select(unclear)
            mask = None if some.mask is None else some.mask[:, None]
            A: AttentionOperator = DenseAttention.trusted(some.A[:, None], mask, some.causal, some.rounding)
            head = unclear % self.heads
            W_V, W_O = self.W_V[head][:, None], self.W_O[head][:, None]
        else:  # all heads of an input
            inputs = torch.unique(unclear // self.heads)
            A, W_V, W_O = self.A.flatten(1).select(inputs), self.W_V, self.W_O
            unclear = (inputs[:, None] * self.heads + torch.arange(self.heads, device=inputs.device)).flatten()
        ones = torch.ones(A.shape[-3], device=self.A.device)
        change = AttentionChange(ones, shift * ones, 0 * ones, source=self.source and shift != 0)
        answer = dominance(A, W_V, W_O, per_head=True, residual=self.residual, change=change, seed=self.seed)
        for mine, theirs in (
            (self.smoothing, answer.smoothing),
            (self.undecided, answer.undecided),
            (self.smooth, answer.rho_smooth),
            (self.rough, answer.rho_rough),
        ):
            mine[unclear, column] = theirs.flatten().to(mine)

    def _least(self) -> Tensor:
        shifts = torch.tensor(self.shifts, dtype=torch.float64, device=self.lam.device)
        index = torch.arange(len(shifts), device=shifts.device)
        # The last shift at which something smooths, or may; −1: none.
        last = torch.where(self.smoothing | self.undecided, index, -1).amax(-1)
        doubtful = self.undecided.gather(1, last.clamp(min=0)[:, None])[:, 0] & (last >= 0)
        at_end = last == len(shifts) - 1
        low, high = shifts[last.clamp(min=0)], shifts[(last + 1).clamp(max=len(shifts) - 1)]
        turns = (last >= 0) & ~at_end & ~doubtful
        if self.known and self.A.tokens > 1 and bool(turns.any()):
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                smooth, rough, *_ = self._radii(middle)
                tie = TIE[self.A.dtype] * torch.maximum(smooth, rough).clamp(min=self.base)
                still = smooth - rough.clamp(min=self.floor) > tie
                low, high = torch.where(still, middle, low), torch.where(still, high, middle)
        least = torch.where(last < 0, 0.0, high)
        least = torch.where(at_end, torch.inf, least)
        return torch.where(doubtful & at_end, torch.nan, least)


def _corners(values: Tensor) -> Tensor:
    """The corners of each row's convex hull, ``(items, m) -> (items, most)``, rows filled up with their first corner.

    NaN is left out; a row of nothing else stays so.
    """
    rows = [_hull(sorted({z for z in row if z == z}, key=lambda z: (z.real, z.imag))) for row in values.tolist()]
    most = max(map(len, rows), default=1) or 1
    nothing = complex(float("nan"))
    filled = [row + [row[0] if row else nothing] * (most - len(row)) for row in rows]
    return torch.tensor(filled, dtype=values.dtype, device=values.device).reshape(len(rows), most)


def _hull(points: list[complex]) -> list[complex]:
    """Andrew's monotone chain, of sorted points."""
    if len(points) < 3:
        return points
    chains = []
    for ordered in (points, points[::-1]):
        chain: list[complex] = []
        for z in ordered:
            while len(chain) > 1 and ((chain[-1] - chain[-2]).conjugate() * (z - chain[-1])).imag <= 0:
                chain.pop()
            chain.append(z)
        chains.append(chain[:-1])
    return chains[0] + chains[1]
