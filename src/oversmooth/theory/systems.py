"""The operators whose radii decide, as `LinearSystem`s: all heads jointly, and causal attention block by block.

Both are the update without its identity, ``Σ_h (A_h − s_h) Z W_V^h W_O^h``; the caller adds the residual connection
to the eigenvalues. s is NeuTRENO's λ̃, zero otherwise. Weights are shared by all items.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.radii import real_and_imaginary
from oversmooth.theory.small_matrices import eigenvector, eigenvectors
from oversmooth.theory.tokens import centre_tokens
from oversmooth.theory.weights import stack_heads, without_repeats


class JoinedHeads:
    """``Z ↦ P Σ_h (A_h − s_h) Z W_V^h W_O^h`` on centred n by d arrays, flattened (THEORY §3, multi-head theorem).

    Args:
        A: ``(items, heads, n, n)``, attention.
        W_V: ``(heads, d, k)``, value weights.
        W_O: ``(heads, k, d)``, output weights.
        shift: ``(heads,)``, s.
        centred: False to act on all arrays, for a part of a larger A whose rows sum to less than one.
        transpose: whether to take ``(A_h − s_h)ᵀ`` instead.
    """

    def __init__(
        self,
        A: AttentionOperator,
        W_V: Tensor,
        W_O: Tensor,
        shift: Tensor,
        *,
        centred: bool = True,
        transpose: bool = False,
    ) -> None:
        self.centred, self.transpose = centred, transpose
        self.A, self.W_V, self.W_O, self.shift = A, W_V, W_O, shift
        self.V, self.O = stack_heads(W_V, W_O)
        self.items, self.heads, self.n = A.shape[0], A.shape[1], A.tokens
        self.d, self.k = W_V.shape[-2:]
        self.size = self.n * self.d
        self.rank = (A.valid_count()[:, 0] - int(centred)) * self.d
        self.dtype, self.device = A.dtype, A.device
        # The mask is the same for all heads of an item.
        self._tokens = A.mask[:, 0] if A.mask is not None else None

    def apply(self, v: Tensor) -> Tensor:
        return self.project(self.mix(v.view(-1, self.n, self.d)).reshape(len(v), -1))

    def mix(self, Z: Tensor) -> Tensor:
        """``Σ_h (A_h − s_h) Z W_V^h W_O^h`` without centring, ``(items, n, d)``."""
        values = (Z @ self.V).view(-1, self.n, self.heads, self.k).transpose(1, 2)
        # Attention as queries and keys has no product with its transpose: each layer in turn is formed as a matrix.
        mixed = self.A.dense().A.mT @ values if self.transpose else self.A @ values
        if self.shift.any():
            mixed = mixed - self.shift[:, None, None] * values
        return mixed.transpose(1, 2).reshape(-1, self.n, self.heads * self.k) @ self.O

    def project(self, v: Tensor) -> Tensor:
        if not self.centred:
            return v
        return centre_tokens(v.view(-1, self.n, self.d), self._tokens).reshape(len(v), -1)

    def select(self, index: Tensor) -> JoinedHeads:
        return self._with(self.A.select(index), self.W_V, self.W_O, self.transpose)

    def transposed(self) -> JoinedHeads:
        """``Z ↦ P Σ_h (A_h − s_h)ᵀ Z (W_V^h W_O^h)ᵀ``, whose right vectors are the left ones of this."""
        return self._with(self.A, self.W_O.mT, self.W_V.mT, not self.transpose)

    def _with(self, A: AttentionOperator, W_V: Tensor, W_O: Tensor, transpose: bool) -> JoinedHeads:
        return JoinedHeads(A, W_V, W_O, self.shift, centred=self.centred, transpose=transpose)


class CausalBlocks:
    """``x ↦ Σ_h (a_h − s_h) x W_V^h W_O^h`` on d features, one item per token: the diagonal blocks of causal attention.

    With A lower triangular the update is block triangular over tokens, so these blocks have its whole spectrum.

    Args:
        diagonal: ``(items, heads)``, A_h[i, i] − s_h.
        W_V: ``(heads, d, k)``, value weights.
        W_O: ``(heads, k, d)``, output weights.
    """

    def __init__(self, diagonal: Tensor, W_V: Tensor, W_O: Tensor) -> None:
        self.diagonal, self.W_V, self.W_O = diagonal, W_V, W_O
        self.shared = without_repeats(W_V)
        self.V: Tensor | None = self.shared.movedim(0, 1).flatten(1)  # (d, value heads · k)
        self.O = W_O.flatten(0, 1)
        self.items, self.heads = diagonal.shape
        self._on(W_V.shape[-2])

    def _on(self, size: int) -> None:
        self.size = size
        self.rank = torch.full((self.items,), size, device=self.diagonal.device)
        self.dtype, self.device = self.diagonal.dtype, self.diagonal.device

    def apply(self, v: Tensor) -> Tensor:
        return self._outputs(v if self.V is None else v @ self.V)

    def _outputs(self, values: Tensor) -> Tensor:
        shared = len(self.shared)
        by_head = values.view(len(values), shared, 1, -1) * self.diagonal.view(len(values), shared, -1, 1)
        return by_head.reshape(len(values), -1) @ self.O

    def project(self, v: Tensor) -> Tensor:
        return v

    def select(self, index: Tensor) -> CausalBlocks:
        other = copy.copy(self)
        other.diagonal, other.rank = self.diagonal[index], self.rank[index]
        other.items = len(other.diagonal)
        return other

    def transposed(self) -> CausalBlocks:
        return CausalBlocks(self.diagonal, self.W_O.mT, self.W_V.mT)

    def on_values(self) -> CausalBlocks:
        """The same blocks on values, ``x W_V`` of each value head in place of x: all eigenvalues that can differ from
        zero, by one product with a smaller matrix. Itself where that would not be smaller.
        """
        if self.V is None or self.V.shape[-1] > self.size:
            return self
        other = copy.copy(self)
        other.O, other.V = self.O @ self.V, None
        other._on(self.V.shape[-1])
        return other

    def matrices(self) -> Tensor:
        """Each block as a matrix acting on row vectors, ``(items, size, size)``."""
        shared = len(self.shared)
        by_value = self.diagonal.view(self.items, shared, -1)
        outputs = self.O.view(shared, by_value.shape[-1], -1, self.size)
        on_values = torch.einsum("isg,sgke->iske", by_value, outputs).flatten(1, 2)
        return on_values if self.V is None else self.V @ on_values

    def condition(self, theta: Tensor) -> Tensor:
        """The condition number of one eigenvalue θ of each block, ``(items,)``: by the block on values, unless θ is 0.

        From a row u with ``u N = θ u`` and a column w with ``N w = θ w`` there, `apply` without the last product and
        W_V make those of the block itself.
        """
        small = self.on_values()
        if small is self or self.V is None or bool((theta == 0).any()):
            return eigenvectors(self.matrices(), theta)[1]
        N = small.matrices()
        u, w = eigenvector(N.mT, theta), eigenvector(N, theta)
        values = real_and_imaginary(self._outputs, u)
        columns = w @ self.V.mT.to(w.dtype)
        lengths = torch.linalg.vector_norm(values, dim=-1) * torch.linalg.vector_norm(columns, dim=-1)
        overlap = (values * columns).sum(-1).abs()
        return lengths / overlap.nan_to_num(nan=0.0).clamp(min=torch.finfo(overlap.dtype).tiny)
