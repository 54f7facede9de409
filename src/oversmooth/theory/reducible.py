"""Attention that falls apart: the strongly connected components of its graph (THEORY §3), and its spectrum by blocks.

Taken by `one_head`, `shifted`, `spectrum` and `several_heads` where an entry of A is exactly zero. With tokens ordered
so that none sees a later component, A is block lower triangular, and its spectrum is that of its diagonal blocks: exact
where blocks are single tokens, however far from normal A is. A component is closed if it sees only itself; each closed
one has an eigenvalue 1 of its own. Zero means exactly zero: a link of 1e-38 closes a cycle.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator, DenseAttention, centred_matrix
from oversmooth.theory.small_matrices import eigenvalues, eigenvectors

_LINK = 1e-6
# Entries of boolean arrays held at once.
_HELD = 1 << 26


@dataclasses.dataclass(frozen=True)
class Components:
    """The components of a batch of graphs over n tokens; hidden tokens belong to none."""

    order: Tensor
    """``(items, n)``, tokens ordered so that each sees only its own component and earlier ones; hidden ones last."""
    label: Tensor
    """``(items, n)``, the component of each token, named by its first token; −1 if hidden."""
    size: Tensor
    """``(items, n)``, the size of each token's component; 0 if hidden."""
    closed: Tensor
    """``(items, n)``, whether a token's component sees only itself."""

    @property
    def connected(self) -> Tensor:
        """Whether all valid tokens form one component, ``(items,)``."""
        return (self.size == (self.label >= 0).sum(-1, keepdim=True)).logical_or(self.label < 0).all(-1)

    @property
    def triangular(self) -> Tensor:
        """Whether every component is a single token, ``(items,)``."""
        return (self.size <= 1).all(-1)

    def select(self, index: Tensor) -> Components:
        """Those of some of the items."""
        return Components(self.order[index], self.label[index], self.size[index], self.closed[index])

    def blocks(self, item: int) -> Iterator[tuple[Tensor, bool]]:
        """The components of one item, each as its tokens and whether it is closed, in order."""
        order = self.order[item]
        labels = self.label[item][order]
        for label in dict.fromkeys(labels.tolist()):
            if label >= 0:
                tokens = order[labels == label]
                yield tokens, bool(self.closed[item, tokens[0]])


def components(seen: Tensor, mask: Tensor | None = None) -> Components:
    """The strongly connected components of graphs in which token i sees token j where ``seen[:, i, j]``.

    Args:
        seen: ``(items, n, n)``, which token sees which.
        mask: ``(items, n)``, true for the valid tokens; None: all of them.
    """
    n = seen.shape[-1]
    rows = max(1, _HELD // (n * n))
    masks = itertools.repeat(None) if mask is None else mask.split(rows)
    parts = [_components(part, m) for part, m in zip(seen.split(rows), masks, strict=False)]
    return Components(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _components(seen: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    n = seen.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=seen.device)
    reach = seen | eye
    if mask is not None:
        reach = reach & mask[:, None, :] & mask[:, :, None] | eye
    # Each product doubles the length of the paths, until none is new.
    while True:
        ones = reach.to(torch.float32)
        longer = ones @ ones > 0
        if torch.equal(longer, reach):
            break
        reach = longer
    mutual = reach & reach.mT
    label = mutual.int().argmax(-1)
    size = mutual.sum(-1)
    closed = (reach == mutual).all(-1)
    # A token that sees a component reaches all that it reaches, and more: sorted by the number of tokens reached, every
    # component comes after those it sees, and tokens of one component stay together.
    rank = reach.sum(-1) * n + label
    if mask is not None:
        label, size = torch.where(mask, label, -1), torch.where(mask, size, 0)
        closed, rank = closed & mask, torch.where(mask, rank, n * n + n)
    return torch.argsort(rank, dim=-1, stable=True), label, size, closed


class Reducible:
    """Which attention arrays ``(items, n, n)`` are reducible, and their components."""

    def __init__(self, flat: AttentionOperator, which: Tensor, parts: Components) -> None:
        self._flat, self.which, self._parts = flat, which, parts
        self._row = torch.cumsum(which, 0) - 1

    @classmethod
    def of(cls, flat: AttentionOperator) -> Reducible:
        """Looked for only where an entry is exactly zero, and not in causal attention, with one token per block."""
        which = torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device)
        nothing = torch.zeros(0, flat.tokens, dtype=torch.long, device=flat.device)
        if not isinstance(flat, DenseAttention) or flat.causal:
            return cls(flat, which, Components(nothing, nothing, nothing, nothing))
        A, mask = flat.A, flat.mask
        if mask is None:
            has_zeros = A.amin((-2, -1)) <= 0  # rounding may have left entries below
        else:
            has_zeros = ((A == 0) & mask[:, None, :] & mask[:, :, None]).any(-1).any(-1)
        index = has_zeros.nonzero()[:, 0]
        if not len(index):
            return cls(flat, which, Components(nothing, nothing, nothing, nothing))
        parts = components(A[index] != 0, None if mask is None else mask[index])
        apart = ~parts.connected
        which[index[apart]] = True
        return cls(flat, which, parts.select(apart))

    def select(self, index: Tensor) -> Reducible:
        """The same for some of the arrays."""
        which = self.which[index]
        return Reducible(self._flat.select(index), which, self._parts.select(self._row[index[which]]))

    def triangular(self, item: int) -> bool:
        """Whether every component is a single token, so that the eigenvalues are on the diagonal."""
        return bool(self._parts.triangular[self._row[item]])

    def order(self, item: int) -> Tensor:
        """Its tokens, ordered so that none sees a later component, ``(n,)``."""
        return self._parts.order[self._row[item]]

    def components(self, item: int) -> Iterator[tuple[Tensor, bool]]:
        """The components, each as its tokens and whether it is closed, in that order."""
        return self._parts.blocks(int(self._row[item]))

    def blocks(self, item: int) -> list[DiagonalBlock]:
        """Matrices in float64 that have all eigenvalues of A but one 1; single tokens form one diagonal matrix."""
        A = self._flat.dense().A[item].double()
        struck, singles, larger = False, [], []
        for tokens, closed in self.components(item):
            if len(tokens) == 1:
                if closed and not struck:
                    struck = True
                else:
                    singles.append(A[tokens[0], tokens[0]] * 0 + 1 if closed else A[tokens[0], tokens[0]])
                continue
            block = A[tokens][:, tokens]
            if closed and not struck:
                struck, closed = True, False
                block = centred_matrix(DenseAttention.trusted(block, None, False))
            larger.append(DiagonalBlock(block, closed))
        return [DiagonalBlock(torch.diag(torch.stack(singles)), False), *larger] if singles else larger

    def values(self, item: int) -> Tensor:
        """All eigenvalues but one 1, ``(n − 1,)`` complex128, padded with NaN for hidden tokens."""
        out = torch.full((self._flat.tokens - 1,), torch.nan, dtype=torch.complex128, device=self._flat.device)
        values = torch.cat([block.values() for block in self.blocks(item)])
        out[: len(values)] = values
        return out

    def condition(self, item: int, t: Tensor) -> Tensor:
        """The condition number of the eigenvalue t within its block."""
        best, distance = torch.ones((), dtype=torch.float64), torch.inf
        t = t.to(torch.complex128)
        for block in self.blocks(item):
            gap = float((block.values() - t).abs().min())
            if gap < distance:
                distance = gap
                best = torch.ones_like(best) if block.diagonal else eigenvectors(block.B[None], t[None])[1][0]
        return best


@dataclasses.dataclass(frozen=True)
class DiagonalBlock:
    """One diagonal block of A, ``(m, m)`` in float64."""

    B: Tensor
    closed: bool
    """Whether it has an eigenvalue 1 of its own, besides the one that is removed."""

    @property
    def diagonal(self) -> bool:
        """Whether it is a diagonal matrix."""
        return not bool((self.B - torch.diag(self.B.diagonal())).any())

    def values(self) -> Tensor:
        """Its eigenvalues, complex128; a closed block's 1 is exactly 1."""
        if self.diagonal:
            return self.B.diagonal().to(torch.complex128)
        values = eigenvalues(self.B)
        if self.closed:
            values[(values - 1).abs().argmin()] = 1
        return values


def union_of_heads(A: AttentionOperator) -> AttentionOperator:
    """The largest over heads: zero where every head is. Attention as queries and keys hides nothing: it stays."""
    if not isinstance(A, DenseAttention):
        return A
    return DenseAttention.trusted(A.A.amax(1), None if A.mask is None else A.mask[:, 0], A.causal, A.rounding)


def has_long_paths(flat: AttentionOperator) -> Tensor:
    """Whether some token does not see some other within two steps over links of more than 1e-6, ``(items,)``.

    In bands, chains and nearly causal attention, eigenvalues can be worse conditioned than a Krylov space shows.
    """
    if not isinstance(flat, DenseAttention) or flat.causal:
        return torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device)
    links = (flat.A > _LINK).to(flat.dtype)
    sees, seen = links.sum(-1), links.sum(-2)
    if flat.mask is not None:
        sees, seen = (torch.where(flat.mask, x, flat.tokens) for x in (sees, seen))
    # If what i sees and what sees j are together more than all tokens, some token is in both.
    far = sees.amin(-1) + seen.amin(-1) <= flat.valid_count()
    for part in far.nonzero()[:, 0].split(_HELD // flat.tokens**2 + 1):
        near = links[part] @ links[part] + links[part] > 0
        if flat.mask is not None:
            near |= ~flat.mask[part, None, :] | ~flat.mask[part, :, None]
        far[part] = ~near.flatten(1).all(-1)
    return far


def centred_block(A: DenseAttention, item: int) -> Tensor:
    """The matrix of one item's A on centred vectors, over the valid tokens, in float64."""
    keep = A.keep[item]
    return centred_matrix(DenseAttention.trusted(A.A[item].double()[keep][:, keep], None, A.causal))
