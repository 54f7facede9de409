"""Attention that falls into several strongly connected components: its spectrum, block by block, with one 1 struck."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from oversmooth.theory.components import Components, components
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.small import eigenvalues, eigenvectors
from oversmooth.theory.spectrum import centred_matrix


class Reducible:
    """Which of some attention arrays ``(items, n, n)`` are reducible, and their parts."""

    def __init__(self, A: Tensor, mask: Tensor | None, which: Tensor, parts: Components | None) -> None:
        self._A, self._mask, self.which, self._parts = A, mask, which, parts
        self._row = torch.cumsum(which, 0) - 1

    @classmethod
    def of(cls, flat: AttentionOperator) -> Reducible:
        """Looked for only where an entry is exactly zero, and not in causal attention, which is one token a block."""
        none = torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device)
        if not isinstance(flat, DenseAttention) or flat.causal:
            return cls(torch.empty(0), None, none, None)
        A, mask = flat.A, flat.mask
        if mask is None:
            has_zeros = A.amin((-2, -1)) == 0
        else:
            has_zeros = ((A == 0) & mask[:, None, :] & mask[:, :, None]).any(-1).any(-1)
        if not bool(has_zeros.any()):
            return cls(A, mask, none, None)
        index = has_zeros.nonzero()[:, 0]
        found = components(A[index] != 0, None if mask is None else mask[index])
        apart = ~found.connected
        which = none.clone()
        which[index[apart]] = True
        fields = (found.order, found.label, found.size, found.closed)
        return cls(A, mask, which, Components(*(field[apart] for field in fields)))

    def triangular(self, item: int) -> bool:
        """Whether every component is a single token: then the eigenvalues stand on the diagonal."""
        assert self._parts is not None
        return bool(self._parts.triangular[self._row[item]])

    def order(self, item: int) -> Tensor:
        """Its tokens so that nobody sees a later component, ``(n,)``."""
        assert self._parts is not None
        return self._parts.order[self._row[item]]

    def components(self, item: int) -> Iterator[tuple[Tensor, bool]]:
        """Each as its tokens and whether it is closed, in that order."""
        assert self._parts is not None
        return self._parts.blocks(int(self._row[item]))

    def blocks(self, item: int) -> list[Tensor]:
        """Matrices in float64 that have all eigenvalues of A but one 1; single tokens are one diagonal matrix."""
        A = self._A[item].double()
        struck, singles, found = False, [], []
        for tokens, closed in self.components(item):
            if len(tokens) == 1:
                if closed and not struck:
                    struck = True
                else:
                    singles.append(A[tokens[0], tokens[0]] * 0 + 1 if closed else A[tokens[0], tokens[0]])
                continue
            block = A[tokens][:, tokens]
            if closed and not struck:
                struck, block = True, centred_matrix(DenseAttention.trusted(block, None, False))
            found.append(block)
        return [torch.diag(torch.stack(singles)), *found] if singles else found

    def values(self, item: int) -> Tensor:
        """All eigenvalues but one 1, ``(n − 1,)`` complex128, NaN in the place of hidden tokens."""
        n = self._A.shape[-1]
        out = torch.full((n - 1,), torch.nan, dtype=torch.complex128, device=self._A.device)
        found = torch.cat([_block_values(B) for B in self.blocks(item)])
        out[: len(found)] = found
        return out

    def condition(self, item: int, t: Tensor) -> Tensor:
        """Of the eigenvalue t in its own block."""
        best, distance = torch.ones((), dtype=torch.float64), torch.inf
        for B in self.blocks(item):
            gap = float((_block_values(B) - t.to(torch.complex128)).abs().min())
            if gap < distance:
                distance = gap
                diagonal = not bool((B - torch.diag(B.diagonal())).any())
                best = best * 0 + 1 if diagonal else eigenvectors(B[None], t.to(torch.complex128)[None])[1][0]
        return best


def _block_values(B: Tensor) -> Tensor:
    if not bool((B - torch.diag(B.diagonal())).any()):
        return B.diagonal().to(torch.complex128)
    return eigenvalues(B)


def centred_block(A: DenseAttention, item: int) -> Tensor:
    """The matrix of one item's A on centred vectors, over the tokens that count, in float64."""
    one = A.A[item].double()
    if A.mask is not None:
        keep = A.mask[item]
        one = one[keep][:, keep]
    return centred_matrix(DenseAttention.trusted(one, None, A.causal))
