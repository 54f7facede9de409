"""Attention that falls apart: the strongly connected components of its graph (THEORY §3), and its spectrum by blocks.

Taken by every route where an entry of A is exactly zero. With tokens ordered so that none sees a later component, A is
block lower triangular, and its spectrum is that of its diagonal blocks: exact where blocks are single tokens, however
far from normal A is. A component is closed if it sees only itself; each closed one has an eigenvalue 1 of its own.
Zero means exactly zero: a link of 1e-38 closes a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator, DenseAttention, centred_matrix
from oversmooth.theory.small_matrices import eigenvalues, eigenvectors

_LINK = 1e-6
# Entries of arrays of links held at once.
_HELD = 1 << 26


def components(seen: Tensor, keep: Tensor | None = None) -> list[tuple[Tensor, bool]]:
    """The strongly connected components of the graph in which token i sees token j where ``seen[i, j]``: each one's
    tokens, and whether it is closed; none sees a later one. keep: ``(n,)``, true for the valid tokens.
    """
    valid = torch.arange(len(seen), device=seen.device) if keep is None else keep.nonzero()[:, 0]
    reach = seen[valid][:, valid] | torch.eye(len(valid), dtype=torch.bool, device=seen.device)
    # Each product doubles the length of the paths, until none is new.
    while not torch.equal(longer := reach.float() @ reach.float() > 0, reach):
        reach = longer
    mutual = reach & reach.mT
    closed, label = (reach == mutual).all(-1), mutual.int().argmax(-1)
    # A token that sees a component reaches all that it reaches, and more: sorted by the number of tokens reached, every
    # component comes after those it sees.
    first = label.unique()
    first = first[reach.sum(-1)[first].argsort(stable=True)].tolist()
    return [(valid[label == own], bool(closed[own])) for own in first]


@dataclass(frozen=True)
class Parts:
    """One array that falls apart."""

    A: Tensor
    """``(n, n)``"""
    components: list[tuple[Tensor, bool]]
    """Each one's tokens, and whether it is closed; none sees a later one. Hidden tokens belong to none."""

    @property
    def triangular(self) -> bool:
        """Whether every component is a single token, so that the eigenvalues are on the diagonal."""
        return all(len(tokens) == 1 for tokens, _ in self.components)

    @property
    def order(self) -> Tensor:
        """Its tokens, ordered so that none sees a later component, hidden ones last, ``(n,)``."""
        valid = torch.cat([tokens for tokens, _ in self.components])
        hidden = torch.ones(len(self.A), dtype=torch.bool, device=valid.device).index_fill(0, valid, False)
        return torch.cat([valid, hidden.nonzero()[:, 0]])

    @cached_property
    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Matrices in float64 that have all eigenvalues of A but one 1, each with its own, complex128.

        Single tokens form one diagonal matrix. The 1 of another closed component is exactly 1.
        """
        struck, singles, larger = False, [self.A.new_zeros(0, dtype=torch.float64)], []
        for tokens, closed in self.components:
            block = self.A[tokens][:, tokens].double()
            if closed and not struck:
                struck, closed, block = True, False, centred_matrix(DenseAttention.trusted(block, None, False))
            if len(tokens) == 1:
                singles.append(torch.ones_like(block[0]) if closed else block.diagonal())
                continue
            values = eigenvalues(block)
            if closed:
                values[(values - 1).abs().argmin()] = 1
            larger.append((block, values))
        own = torch.cat(singles)
        return [(torch.diag(own), own.to(torch.complex128)), *larger] if len(own) else larger

    def condition(self, t: Tensor) -> Tensor:
        """The condition number of the eigenvalue t within its block."""
        t = t.to(torch.complex128)
        block, _ = min(self.blocks, key=lambda one: float((one[1] - t).abs().min()))
        if torch.equal(block, torch.diag(block.diagonal())):
            return torch.ones((), dtype=torch.float64)
        return eigenvectors(block[None], t[None])[1][0]


def fallen_apart(flat: AttentionOperator) -> dict[int, Parts]:
    """The arrays of ``(items, n, n)`` that fall apart, by their index.

    Looked for only where an entry is exactly zero, and not in causal attention, with one token per block.
    """
    if not isinstance(flat, DenseAttention) or flat.causal:
        return {}
    A, mask = flat.A, flat.mask
    has_zeros = A.amin((-2, -1)) <= 0  # rounding may have left entries below
    if mask is not None:
        has_zeros = ((A == 0) & mask[:, None, :] & mask[:, :, None]).any(-1).any(-1)
    of = {i: components(A[i] != 0, None if mask is None else mask[i]) for i in has_zeros.nonzero()[:, 0].tolist()}
    return {i: Parts(A[i], found) for i, found in of.items() if len(found) > 1}


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
