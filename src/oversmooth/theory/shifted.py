"""Each head's dominance along shifts of its attention, ``A − s I`` for many s (THEORY §6, its spectrum).

Taken by `steering.suggest`, which looks for the least strength of NeuTRENO at which nothing smooths. A shift moves
every eigenvalue t of A to t − s and leaves H alone, so the radii at every s follow from one set of t and λ. Cases near
a tie, or whose eigenvalues are ill-conditioned, are handed to `dominance`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.bounds import DEFECTIVE, SUSPICIOUS, error_of_pairs, is_sure, rounding
from oversmooth.theory.dominance import check_residual, dominance
from oversmooth.theory.one_head import HeadSpectra, Pairs, conditions
from oversmooth.theory.operators import AttentionOperator, DenseAttention, as_operator
from oversmooth.theory.radii import TIE, AttentionChange
from oversmooth.theory.reducible import Reducible
from oversmooth.theory.small_matrices import complex_of
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
    return _Along(A, W_V, W_O, _Settings(numbers, check_residual(residual), source, seed)).result()


@dataclass(frozen=True)
class _Settings:
    shifts: tuple[float, ...]
    residual: bool | float
    source: bool
    seed: int


class _Along:
    """All heads of a batch, one item each, at every shift."""

    def __init__(self, A: AttentionOperator, W_V: Tensor, W_O: Tensor, settings: _Settings) -> None:
        self.A, self.flat, self.settings = A, A.flatten(), settings
        self.W_V, self.W_O = W_V.to(A.device, A.dtype), W_O.to(A.device, A.dtype)
        factor = float(settings.residual) or 1.0
        self.base, self.size = (1.0 if settings.residual else 0.0), abs(factor)
        self.spectra = HeadSpectra(self.W_V, self.W_O / factor, None, None, A.batch_shape)
        # |base + (t − s) λ| is convex in t and in λ: both are at corners of their convex hulls where it is largest.
        self.lam = _corners(self.spectra.centred)
        self.t: Tensor | None = None
        self.parts = Reducible.of(self.flat)
        if A.tokens > 1 and (A.causal or A.tokens <= _DENSE_TOKENS):
            values = causal_values(self.flat) if A.causal else dense_values(self.flat, self.parts)
            self.t = _corners(values.to(torch.complex128))

    def result(self) -> ShiftedDominance:
        """The columns of all shifts, from eigenvalues where that is clear, else from `dominance`."""
        known: dict[tuple[int, int], float] = {}
        columns = []
        for shift in self.settings.shifts:
            column = self._by_eigenvalues(shift, known)
            self._ask(shift, column)
            columns.append(column)
        batch = self.A.batch_shape
        smooth, rough, smoothing, undecided = (
            torch.stack([getattr(column, name) for column in columns], dim=-1).reshape(*batch, -1)
            for name in ("smooth", "rough", "smoothing", "undecided")
        )
        least = self._least(smoothing.flatten(0, -2), undecided.flatten(0, -2)).reshape(batch)
        return ShiftedDominance(self.settings.shifts, smoothing, undecided, smooth, rough, least)

    def _radii(self, t: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both radii ``(items,)`` at each item's shift, and which t and λ attain the rough one."""
        pairs = Pairs(self.lam, shift, self.base)
        return pairs.largest(torch.ones_like(self.lam[:, :1]))[0], *pairs.largest(t)

    def _floor(self, shift: float) -> float:
        """What the rough radius is at least: 1 where a source keeps tokens apart."""
        return 1.0 / self.size if self.settings.source and shift else 0.0

    def _by_eigenvalues(self, shift: float, known: dict[tuple[int, int], float]) -> _Column:
        """Verdicts that are clear: the margin is several times what rounding can do, by `dominance`'s own measures."""
        column = _Column.unclear(len(self.lam), self.lam.device)
        if self.t is None:
            return column
        at = torch.full_like(column.smooth, shift)
        smooth, rough, i, which = self._radii(self.t, at)
        t = self.t.gather(1, i[:, None])[:, 0].nan_to_num()
        weights_error = self.spectra.reach(smooth, 1 - at, rough, t - at, self.base)
        slope = self.lam.gather(1, which[:, None])[:, 0].abs()
        if self.A.causal:
            error, believed = slope * self.A.rounding, torch.ones_like(column.sure)
        else:
            condition, blur = self._conditions(i, t, known), rounding(self.flat).double()
            error = error_of_pairs(self.A, blur, slope, condition, torch.zeros_like(slope))
            believed = condition <= SUSPICIOUS
        margin = smooth - rough.clamp(min=self._floor(shift))
        scale = torch.maximum(smooth, rough).clamp(min=self.base)
        far = is_sure(margin.abs() - TIE[self.A.dtype] * scale, error, weights_error)
        column.sure = far & believed & ~(weights_error > DEFECTIVE * scale)
        column.smooth, column.rough = smooth * self.size, rough * self.size
        column.smoothing = column.sure & (margin > 0)
        return column

    def _conditions(self, i: Tensor, t: Tensor, known: dict[tuple[int, int], float]) -> Tensor:
        """The condition number of each item's t, the ith; computed once for each."""
        keys = list(enumerate(i.tolist()))
        new = torch.tensor([item for item, key in enumerate(keys) if key not in known], dtype=torch.long).to(t.device)
        if len(new):
            computed = conditions(self.flat, self.parts, new, t[new].to(complex_of(self.A.dtype)))
            known.update({keys[item]: c for item, c in zip(new.tolist(), computed.tolist(), strict=True)})
        return torch.tensor([known[key] for key in keys], dtype=torch.float64, device=t.device)

    def _ask(self, shift: float, column: _Column) -> None:
        """`dominance` itself, where a case is not clear."""
        unclear = (~column.sure).nonzero()[:, 0]
        if not len(unclear):
            return
        heads = self.W_V.shape[-3]
        if isinstance(self.flat, DenseAttention):
            some = self.flat.select(unclear)
            mask = None if some.mask is None else some.mask[:, None]
            A: AttentionOperator = DenseAttention.trusted(some.A[:, None], mask, some.causal, some.rounding)
            head = unclear % heads
            W_V, W_O = self.W_V[head][:, None], self.W_O[head][:, None]
        else:  # all heads of an input
            inputs = torch.unique(unclear // heads)
            A, W_V, W_O = self.A.flatten(1).select(inputs), self.W_V, self.W_O
            unclear = (inputs[:, None] * heads + torch.arange(heads, device=inputs.device)).flatten()
        ones = torch.ones(A.shape[-3], device=self.A.device)
        settings = self.settings
        change = AttentionChange(ones, shift * ones, 0 * ones, source=settings.source and shift != 0)
        answer = dominance(A, W_V, W_O, per_head=True, residual=settings.residual, change=change, seed=settings.seed)
        column.smoothing[unclear] = answer.smoothing.flatten()
        column.undecided[unclear] = answer.undecided.flatten()
        column.smooth[unclear] = answer.rho_smooth.flatten().double()
        column.rough[unclear] = answer.rho_rough.flatten().double()

    def _least(self, smoothing: Tensor, undecided: Tensor) -> Tensor:
        shifts = torch.tensor(self.settings.shifts, dtype=torch.float64, device=self.lam.device)
        index = torch.arange(len(shifts), device=shifts.device)
        # The last shift at which something smooths, or may; −1: none.
        last = torch.where(smoothing | undecided, index, -1).amax(-1)
        doubtful = undecided.gather(1, last.clamp(min=0)[:, None])[:, 0] & (last >= 0)
        at_end = last == len(shifts) - 1
        low, high = shifts[last.clamp(min=0)], shifts[(last + 1).clamp(max=len(shifts) - 1)]
        turns = (last >= 0) & ~at_end & ~doubtful
        if self.t is not None and bool(turns.any()):
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                smooth, rough, *_ = self._radii(self.t, middle)
                tie = TIE[self.A.dtype] * torch.maximum(smooth, rough).clamp(min=self.base)
                still = smooth - rough.clamp(min=self._floor(1.0)) > tie
                low, high = torch.where(still, middle, low), torch.where(still, high, middle)
        least = torch.where(last < 0, 0.0, high)
        least = torch.where(at_end, torch.inf, least)
        return torch.where(doubtful & at_end, torch.nan, least)


@dataclass
class _Column:
    """Every item at one shift, ``(items,)`` each."""

    smooth: Tensor
    rough: Tensor
    smoothing: Tensor
    undecided: Tensor
    sure: Tensor
    """Whether the eigenvalues decide."""

    @classmethod
    def unclear(cls, items: int, device: torch.device) -> _Column:
        zero, no = (torch.zeros(items, dtype=dtype, device=device) for dtype in (torch.float64, torch.bool))
        return cls(zero, zero.clone(), no, no.clone(), no.clone())


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
