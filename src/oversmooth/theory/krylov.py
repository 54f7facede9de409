"""Batched Arnoldi: the extremal eigenvalues of many operators at once, known only through products.

A `LinearSystem` is a batch of operators on vectors of one length, each mapping its own subspace (centred token
arrays, mostly) to itself. `extremal` finds the highest-scoring Ritz value of each, and items stop as they converge.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from oversmooth.theory.errors import SAFETY
from oversmooth.theory.small_matrices import complex_of, eigenpairs, eigenvalues, eigenvector, eigenvectors
from oversmooth.theory.tokens import real_and_imaginary


class LinearSystem(Protocol):
    """A batch of linear operators on ``(items, size)`` real vectors."""

    size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def items(self) -> int: ...

    @property
    def rank(self) -> Tensor:
        """``(items,)``, the dimension of each item's subspace; that many steps give all its eigenvalues."""
        ...

    def apply(self, v: Tensor) -> Tensor:
        """The product with every operator, ``(items, size) -> (items, size)``."""
        ...

    def project(self, v: Tensor) -> Tensor:
        """v projected back onto the subspace, which rounding would otherwise leave."""
        ...

    def select(self, index: Tensor) -> LinearSystem:
        """The system of some of the items."""
        ...


# How many rival Ritz values are checked before the best is accepted, and the share of their residuals that they are
# taken to move by: a Ritz value mostly moves by far less than its residual.
_RIVALS = 2
_LOST = 0.7
_RIVAL_WEIGHT = 0.1

Score = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From Ritz values ``(b, m)``, reach ``(b, 1)`` or ``(b, m)`` and item indices ``(b,)`` to the highest score ``(b, m)``
that an eigenvalue within reach of each Ritz value can have.
"""


class Arnoldi:
    """Orthonormal V and small H with ``A V_m = V_m H_m + v_{m+1} h``, for a batch of operators.

    Without restart H is Hessenberg and h is its last subdiagonal entry; after `restart` H is full and h a row.
    """

    def __init__(self, system: LinearSystem, seed: int, independent: bool = False) -> None:
        self.system, self.independent = system, independent
        self.steps = 0
        self._generator = torch.Generator(device=system.device).manual_seed(seed)
        start = system.project(self._random())
        start = system.project(start / _length(start))
        self.V = (start / _length(start))[:, None, :]
        self.H = torch.zeros(system.items, 1, 0, dtype=system.dtype, device=system.device)

    def _random(self) -> Tensor:
        s = self.system
        items = 1 if self.independent else s.items
        v = torch.randn(items, s.size, dtype=s.dtype, device=s.device, generator=self._generator)
        return v.expand(s.items, -1)

    def extend(self, steps: int) -> None:
        """Grow the basis to `steps` vectors."""
        grow = steps - self.steps
        self.V, self.H = pad(self.V, (0, 0, 0, grow)), pad(self.H, (0, grow, 0, grow))
        ask_later = self.V.is_cuda
        met = self._steps_to(steps, replace=not ask_later)
        if ask_later and met and bool(torch.stack(met).any()):
            self._steps_to(steps, replace=True)
        self.steps = steps

    def _steps_to(self, steps: int, *, replace: bool) -> list[Tensor]:
        """Fill V and H; returns, for each step, which items met an invariant subspace.

        replace: go on from a random vector there. Asking whether to makes a GPU wait at every step, so that there it is
        asked once, after all of them, which are then repeated.
        """
        eps, met = torch.finfo(self.V.dtype).eps, []
        for j in range(self.steps, steps):
            basis = self.V[:, : j + 1]
            w, h = self._orthogonalise(self.system.apply(basis[:, j]), basis)
            length = _length(w)
            self.H[:, : j + 1, j] = h
            # The subspace is invariant: no link between it and the vector that follows.
            met.append(broken := length <= 10 * eps * _length(h))
            self.H[:, j + 1, j] = torch.where(broken, 0.0, length)[:, 0]
            if replace and broken.any():
                fresh, _ = self._orthogonalise(self.system.project(self._random()), basis)
                w = torch.where(broken, fresh, w)
                length = _length(w)
                length = torch.where(length == 0, 1.0, length)
            torch.div(w, length, out=self.V[:, j + 1])
        return met

    def _orthogonalise(self, w: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        # Classical Gram–Schmidt, and again where much of w was lost, as good as Householder. Asking is not worth its
        # wait on a GPU. Projecting again matters: without it the constant vector, whose eigenvalue 0 is not A's, grows
        # out of the rounding.
        h = _inner(basis, w)
        before, w = w, _subtract(w, basis, h)
        if w.is_cuda or bool((_length(w) < _LOST * _length(before)).any()):
            again = _inner(basis, w)
            w, h = _subtract(w, basis, again), h + again
        return self.system.project(w), h

    def residual(self, y: Tensor, items: Tensor | slice = slice(None)) -> Tensor:
        """``‖A x − θ x‖`` of one Ritz vector of each of these items, by its coefficients y."""
        residual = (self.H[items][:, self.steps].to(y.dtype) * y).sum(-1).abs()
        # With as many steps as dimensions nothing is left over.
        return torch.where(self.system.rank[items] <= self.steps, 0.0, residual)

    def reach(self) -> Tensor:
        """The largest residual that any Ritz value of an item can have, ``(b, 1)``."""
        return _length(self.H[:, self.steps])

    def expand(self, y: Tensor) -> Tensor:
        """``V y``: the vector with these coefficients, ``(b, m) -> (b, size)`` complex."""
        V = self.V[:, : self.steps].mT
        return real_and_imaginary(lambda part: (V @ part[..., None])[..., 0], y)

    def select(self, keep: Tensor) -> Arnoldi:
        """The same state for some of the items."""
        other = copy.copy(self)
        other.system = self.system.select(keep)
        other.V, other.H = self.V[keep], self.H[keep]
        return other

    def restart(self, keep: int, score: Score, index: Tensor) -> None:
        """Thick restart of a batch of one: keep the span of its `keep` highest-scoring Ritz vectors (Krylov–Schur).

        Any orthonormal basis Q of an invariant subspace of H keeps the relation: V ← V Q, H ← Qᵀ H Q, h ← h Q.
        """
        # Small matrices, one after the other: a GPU would take ten times as long.
        m, H = self.steps, self.H[0].double().cpu()
        values, vectors = eigenpairs(H[None, :m])
        scores = score(values.to(self.H.device, complex_of(self.H.dtype)), self.H.new_zeros(1, 1), index)
        chosen = vectors[0][:, scores[0].argsort(descending=True)[:keep].cpu()]
        # A real invariant subspace holds both parts of every complex vector; conjugates repeat them, and are dropped.
        Q, R = torch.linalg.qr(torch.cat([chosen.real, chosen.imag], dim=1))
        U, s, _ = torch.linalg.svd(R)
        rank = int((s > 1e-8 * s[0]).sum())
        Q = Q @ U[:, :rank]
        self.H = torch.cat([Q.mT @ H[:m] @ Q, H[m : m + 1] @ Q])[None].to(self.H)
        Q = Q.to(self.V)
        self.V = torch.cat([Q.mT @ self.V[0, :m], self.V[0, m : m + 1]])[None]
        self.steps = rank


@dataclass
class Extremal:
    """The highest-scoring Ritz value of each item, ``(items,)``."""

    value: Tensor
    score: Tensor
    residual: Tensor  # of the Ritz pair, which is exact for an operator that differs by this much
    condition: Tensor  # of the Ritz value: 1/|yᴴx| of its left and right vectors in the basis
    slack: Tensor  # how far the score may be off: several times what residual and condition number make of it
    converged: Tensor
    beaten: Tensor  # whether it stopped because another item of its group scores higher, slack included
    vector: Tensor | None  # (items, size) complex, the Ritz vector; None if not asked for

    @classmethod
    def nothing(cls, system: LinearSystem, vectors: bool) -> Extremal:
        value = torch.zeros(system.items, dtype=complex_of(system.dtype), device=system.device)
        zero, no = value.real.clone(), torch.zeros_like(value, dtype=torch.bool)
        array = value.new_zeros(system.items, system.size) if vectors else None
        return cls(value, zero, zero.clone(), zero + 1, zero + torch.inf, no, no.clone(), array)

    @property
    def settled(self) -> Tensor:
        """``(items,)`` boolean: whether more steps would not change the highest score of a group."""
        return self.converged | self.beaten

    def select(self, index: Tensor | slice) -> Extremal:
        """Some of the items."""
        return replace(self, **{name: x[index] for name, x in vars(self).items() if x is not None})

    def put(self, index: Tensor, other: Extremal) -> None:
        """Replace these items."""
        for name, x in vars(other).items():
            if x is not None:
                getattr(self, name)[index] = x

    def compare(self, group: Tensor) -> None:
        """Say which items are beaten by another of their group, ``(items,)``."""
        lowest = torch.full_like(self.score, -torch.inf)
        least = lowest.scatter_reduce(0, group, self.score - self.slack, "amax")
        self.beaten = self.score + self.slack < least[group]


def extremal(
    system: LinearSystem,
    score: Score,
    *,
    tolerance: float,
    first: int = 16,
    most: int,
    restarts: int = 0,
    independent: bool = False,
    group: Tensor | None = None,
    vectors: bool = False,
    seed: int = 0,
) -> Extremal:
    """Arnoldi until, in every item, the highest-scoring Ritz value has converged and no rival can overtake it.

    Converged means that within its residual its score can grow by no more than tolerance · max(1, score). Rivals are
    the few other Ritz values that could score highest; one of them overtakes if its score, within its own residual, is
    higher. Of items that compete, those that can no longer have the highest score stop.

    Args:
        system: the operators.
        score: what is to be highest.
        tolerance: of the score, relative to it or to 1.
        first: steps before the first check.
        most: steps after which what has not converged stops as it is, or is restarted.
        restarts: thick restarts at most, item by item.
        independent: whether others choose neither start nor checks of an item, which then has the same numbers alone,
            to rounding: all start from one vector, and are checked at fixed steps.
        group: ``(items,)``, numbers of the groups in which items compete; None: each stands alone.
        vectors: whether to return Ritz vectors.
        seed: of the random start.
    """
    alone, items = group is None, torch.arange(system.items, device=system.device)
    group = items if group is None else group.unique(return_inverse=True)[1]
    search = _Search(score, tolerance, independent, group, Extremal.nothing(system, vectors))
    ritz = search.found
    # Where items compete, checks in between let the beaten ones stop.
    index, basis = search.grow(Arnoldi(system, seed, independent), items, first, most, 3.0 if alone else 1.5)
    if restarts:
        for i in ritz.score[index].argsort(descending=True).tolist():
            one, own = basis.select(torch.tensor([i], device=system.device)), index[i : i + 1]
            for _ in range(restarts):
                if ritz.settled[own]:
                    break
                one.restart(most // 2, score, own)
                one.extend(min(most, int(one.system.rank)))
                search.record(one, own)
    return ritz


@dataclass
class _Search:
    """What `extremal` seeks, and what it has found of all items."""

    score: Score
    tolerance: float
    independent: bool
    group: Tensor
    found: Extremal

    def grow(self, basis: Arnoldi, index: Tensor, steps: int, most: int, furthest: float) -> tuple[Tensor, Arnoldi]:
        """More steps with these items, at most `furthest` times as many from one check to the next; returns those that
        have not settled by the last.
        """
        while len(index):
            # An item whose subspace is exhausted drops out before the others go on.
            steps = min(steps, most, int(basis.system.rank.min()))
            basis.extend(steps)
            error = self.record(basis, index)
            left = ~self.found.settled[index]
            index, basis = index[left], basis.select(left)
            if steps >= most:
                break
            if self.independent:
                steps = int(1.5 * steps) + 1
            elif len(index):
                # Residuals fall about geometrically: go to where most of the rest should have converged, within limits.
                typical = float(error[left].nan_to_num(nan=0.5).clamp(min=1e-30, max=0.5).quantile(0.7))
                expected = steps * math.log(self.tolerance) / math.log(typical)
                steps = int(min(max(expected, 1.25 * steps), furthest * steps)) + 1
        return index, basis

    def record(self, basis: Arnoldi, index: Tensor) -> Tensor:
        """Record these items as they stand, and which items of all are beaten; returns the error of each."""
        score, ritz = self.score, self.found
        all_theta = eigenvalues(basis.H[:, : basis.steps])
        scores = score(all_theta, torch.zeros_like(basis.reach()), index)
        top = scores.argmax(-1, keepdim=True)
        theta, high = (x.gather(1, top)[:, 0] for x in (all_theta, scores))
        y, condition = eigenvectors(basis.H[:, : basis.steps], theta)
        residual = basis.residual(y)
        error = (score(theta[:, None], residual[:, None], index)[:, 0] - high) / high.clamp(min=1)
        good = error <= self.tolerance
        if good.any():
            lead = _rivals_lead(basis, good, all_theta[good], top[good], high[good], score, index[good])
            error[good] = torch.maximum(error[good], _RIVAL_WEIGHT * lead / high[good].clamp(min=1))
            good = error <= self.tolerance
        ritz.value[index], ritz.score[index], ritz.residual[index] = theta, high, residual
        ritz.converged[index], ritz.condition[index] = good, condition
        ritz.slack[index] = score(theta[:, None], (SAFETY * (condition * residual))[:, None], index)[:, 0] - high
        ritz.compare(self.group)
        if ritz.vector is not None:
            ritz.vector[index] = basis.expand(y)
        return error


def _rivals_lead(
    basis: Arnoldi, items: Tensor, theta: Tensor, top: Tensor, best: Tensor, score: Score, index: Tensor
) -> Tensor:
    """By how much another Ritz value of these items can still overtake the best, ``(b,)``; zero if none can.

    Without this a value that converged early hides a larger one that is still converging. The rivals are those that
    would score highest if all were as uncertain as the last step allows: where scores tie, as they do when an
    eigenvalue of H is zero, this still finds the one that matters.
    """
    lead, H = torch.zeros_like(best), basis.H[items][:, : basis.steps]
    could = score(theta, basis.reach()[items], index)
    # Conjugates score alike and converge alike: one of each two is enough.
    could = torch.where(theta.imag < 0, -torch.inf, could).scatter(1, top, -torch.inf)
    order = could.argsort(-1, descending=True)
    for i in range(min(_RIVALS, theta.shape[-1] - 1)):
        rival = theta.gather(1, order[:, i : i + 1])
        residual = basis.residual(eigenvector(H, rival[:, 0]), items)
        lead = torch.maximum(lead, score(rival, residual[:, None], index)[:, 0] - best)
    return lead


def _prefers_bmm(basis: Tensor) -> bool:
    # On a CPU torch.bmm has a cost per item that short rows do not repay: for 72 items of 8 by 197 it takes 0.22 ms
    # against 0.06 for multiplying and summing. For long rows, few items, and on GPUs, bmm is faster.
    return basis.is_cuda or basis.shape[-1] > 2048 or len(basis) < 32


def _inner(basis: Tensor, w: Tensor) -> Tensor:
    """``(b, m, size), (b, size) -> (b, m)``."""
    if _prefers_bmm(basis):
        return torch.bmm(basis, w[..., None])[..., 0]
    return (basis * w[:, None, :]).sum(-1)


def _subtract(w: Tensor, basis: Tensor, h: Tensor) -> Tensor:
    """``w − Σ_m h_m basis_m``."""
    if _prefers_bmm(basis):
        return torch.baddbmm(w[..., None], basis.mT, h[..., None], alpha=-1)[..., 0]
    return w - (basis * h[..., None]).sum(1)


def _length(v: Tensor) -> Tensor:
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True)
