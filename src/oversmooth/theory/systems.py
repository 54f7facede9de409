"""The operators whose radii decide, as `LinearSystem`s: all heads jointly, and causal attention block by block.

Both are the update without its identity, ``Σ_h (A_h − s_h) Z W_V^h W_O^h``; the caller adds the residual connection
to the eigenvalues. s is NeuTRENO's λ̃, zero otherwise. Items share their weights, unless they were joined by `cat`.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.tokens import centre_tokens
from oversmooth.theory.weights import stack_heads, without_repeats


class JoinedHeads:
    """``Z ↦ P Σ_h (A_h − s_h) Z W_V^h W_O^h`` on centred n by d arrays, flattened (THEORY §3, multi-head theorem).

    A ``(items, heads, n, n)`` has the same mask for all heads; shift is s, ``(heads,)``. centred: False to act on all
    arrays, for a part of a larger A whose rows sum to less than one.
    """

    def __init__(self, A: AttentionOperator, W_V: Tensor, W_O: Tensor, shift: Tensor, *, centred: bool = True) -> None:
        self.A, self.centred, self.transpose = A, centred, False
        # (d, heads·k), (heads·k, d) and (heads,): the same for all items, or behind an axis of items.
        self.V, self.O = stack_heads(W_V, W_O)
        self.shift, self.shifted = shift, bool(shift.any())
        self.n, self.d = A.tokens, W_V.shape[-2]
        self.size, self.dtype, self.device = self.n * self.d, A.dtype, A.device

    @property
    def items(self) -> int:
        return self.A.shape[0]

    @property
    def rank(self) -> Tensor:
        return (self.A.valid_count()[:, 0] - int(self.centred)) * self.d

    @property
    def entries(self) -> int:
        """Of its weights, for each item where several are joined."""
        return 2 * self.V.shape[-2:].numel()

    @property
    def kind(self) -> Hashable:
        """What is equal where two can be joined by `cat`."""
        return self.A.kind, self.V.shape[-2:], self.shifted, self.centred, self.transpose

    @classmethod
    def cat(cls, several: Sequence[JoinedHeads]) -> JoinedHeads:
        """The items of all, each with its weights."""
        other = copy.copy(several[0])
        other.A = type(other.A).cat([one.A for one in several])
        for name, own in (("V", 2), ("O", 2), ("shift", 1)):
            parts = [(x := getattr(one, name)).expand(one.items, *x.shape[-own:]) for one in several]
            setattr(other, name, torch.cat(parts))
        return other

    def apply(self, v: Tensor) -> Tensor:
        return self.project(self.mix(v.view(-1, self.n, self.d)).reshape(len(v), -1))

    def mix(self, Z: Tensor) -> Tensor:
        """``Σ_h (A_h − s_h) Z W_V^h W_O^h`` without centring, ``(items, n, d)``."""
        values = self.values(Z).transpose(-3, -2)
        # Attention as queries and keys has no product with its transpose: it is formed as matrices.
        mixed = self.A.dense().A.mT @ values if self.transpose else self.A @ values
        if self.shifted:
            mixed = mixed - self.shift[..., None, None] * values
        return mixed.transpose(-3, -2).flatten(-2) @ self.O

    def by_weights(self, Z: Tensor, factor: Tensor) -> Tensor:
        """``Σ_h f_h Z W_V^h W_O^h``, without attention; f ``(heads,)``."""
        return self.outputs(self.values(Z), factor)

    def values(self, Z: Tensor) -> Tensor:
        """``Z W_V^h``, ``(..., n, heads, k)``."""
        return (Z @ self.V).unflatten(-1, (self.shift.shape[-1], -1))

    def outputs(self, values: Tensor, factor: Tensor) -> Tensor:
        """``Σ_h f_h V_h W_O^h``."""
        return (values * factor[:, None]).flatten(-2) @ self.O

    def project(self, v: Tensor) -> Tensor:
        if not self.centred:
            return v
        return centre_tokens(v.view(-1, self.n, self.d), self.A.token_mask).reshape(len(v), -1)

    def select(self, index: Tensor) -> JoinedHeads:
        other = copy.copy(self)
        other.A = self.A.select(index)
        if self.V.ndim > 2:
            other.V, other.O, other.shift = self.V[index], self.O[index], self.shift[index]
        return other

    def transposed(self) -> JoinedHeads:
        """``Z ↦ P Σ_h (A_h − s_h)ᵀ Z (W_V^h W_O^h)ᵀ``, whose right vectors are the left ones of this."""
        other = copy.copy(self)
        other.V, other.O, other.transpose = self.O.mT, self.V.mT, not self.transpose
        return other


class Matrices:
    """``x ↦ x M``, one item per matrix ``(items, m, m)``."""

    def __init__(self, M: Tensor) -> None:
        self.M = M
        self.items, self.size = M.shape[:2]
        self.entries = self.size**2  # of each item
        self.dtype, self.device = M.dtype, M.device

    @property
    def rank(self) -> Tensor:
        return torch.full((self.items,), self.size, device=self.device)

    @property
    def kind(self) -> Hashable:
        """What is equal where two can be joined by `cat`."""
        return self.size, self.dtype, self.device

    @classmethod
    def cat(cls, several: Sequence[Matrices]) -> Matrices:
        """The items of all."""
        return cls(torch.cat([one.M for one in several]))

    def apply(self, v: Tensor) -> Tensor:
        return (v[:, None] @ self.M)[:, 0]

    def project(self, v: Tensor) -> Tensor:
        return v

    def select(self, index: Tensor) -> Matrices:
        return Matrices(self.M[index])


class CausalBlocks:
    """``x ↦ Σ_h (a_h − s_h) x W_V^h W_O^h`` on d features, one item per token: the diagonal blocks of causal attention.

    With A lower triangular the update is block triangular over tokens, so these blocks have its whole spectrum.
    diagonal: ``(items, heads)``, A_h[i, i] − s_h.
    """

    entries = 0  # items share their weights: they are never joined

    def __init__(self, diagonal: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        self.diagonal, self.W_V, self.W_O = diagonal, W_V, W_O
        self.shared = without_repeats(W_V)
        self.V: Tensor | None = self.shared.movedim(0, 1).flatten(1)  # (d, value heads · k)
        self.O = W_O.flatten(0, 1)
        self.size, self.dtype, self.device = W_V.shape[-2], diagonal.dtype, diagonal.device

    @property
    def items(self) -> int:
        return len(self.diagonal)

    @property
    def rank(self) -> Tensor:
        return torch.full((self.items,), self.size, device=self.device)

    def apply(self, v: Tensor) -> Tensor:
        values = (v if self.V is None else v @ self.V).view(self.items, len(self.shared), 1, -1)
        by_head = values * self.diagonal.view(self.items, len(self.shared), -1, 1)
        return by_head.reshape(self.items, -1) @ self.O

    def project(self, v: Tensor) -> Tensor:
        return v

    def select(self, index: Tensor) -> CausalBlocks:
        other = copy.copy(self)
        other.diagonal = self.diagonal[index]
        return other

    def on_values(self) -> CausalBlocks:
        """The same blocks on values, ``x W_V`` of each value head in place of x: all eigenvalues that can differ from
        zero, by one product with a smaller matrix. Itself where that would not be smaller.
        """
        if self.V is None or self.V.shape[-1] > self.size:
            return self
        other = copy.copy(self)
        other.O, other.V, other.size = self.O @ self.V, None, self.V.shape[-1]
        return other

    def matrices(self) -> Tensor:
        """Each block as a matrix acting on row vectors, ``(items, size, size)``."""
        if self.V is None:
            O = self.O.unflatten(0, (len(self.shared), -1, self.W_V.shape[-1]))  # noqa: E741
            return torch.einsum("icg,cgam->icam", self.diagonal.view(self.items, *O.shape[:2]), O).flatten(1, 2)
        products = self.W_V @ self.W_O
        return (self.diagonal @ products.flatten(1)).unflatten(1, products.shape[1:])
