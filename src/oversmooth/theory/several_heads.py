"""Radii of all heads jointly (THEORY §3, the multi-head theorem and components).

Taken by `dominance` for several heads. Arrays are grouped by weights; those whose graph, the union over heads, falls
apart are taken component by component, all others whole, each by `shared_weights`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import Radii, Search, Update
from oversmooth.theory.reducible import Reducible, union_of_heads
from oversmooth.theory.shared_weights import Rough, SharedWeights
from oversmooth.theory.small_matrices import complex_of


def radii(A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search) -> Radii:
    """The radii of all heads jointly, ``(...)``.

    Args:
        A: ``(..., heads, n, n)``, attention.
        W_V: ``(..., heads, d, k)``, value weights, with A's batch, part of it or none.
        W_O: ``(..., heads, k, d)``, output weights; likewise.
        update: what is applied.
        search: how to look for eigenvalues.
    """
    batch, flat = A.shape[:-3], A.flatten(keep=1)
    lead = torch.broadcast_shapes(W_V.shape[:-3], W_O.shape[:-3])
    V, O = (W.expand(*lead, *W.shape[-3:]).reshape(-1, *W.shape[-3:]) for W in (W_V, W_O))  # noqa: E741
    if len(V) == 1:
        flat_radii = _shared(flat, V[0], O[0], update, search)
    else:
        # Weights that differ over the batch (layers, say): one group of items per set of weights.
        group = torch.arange(len(V), device=A.device).reshape(lead).expand(batch).reshape(-1)
        order = torch.argsort(group, stable=True)
        members = order.split(torch.bincount(group, minlength=len(V)).tolist())
        parts = [_shared(flat.select(m), V[g], O[g], update, search) for g, m in enumerate(members) if len(m)]
        back = torch.argsort(order)
        flat_radii = Radii.cat(parts).map(lambda x: x[back])
    return flat_radii.map(lambda x: x.reshape((*batch, *x.shape[1:])))


def _shared(A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, search: Search) -> Radii:
    """All items under the same weights; one whose graph, the union over heads, falls apart is taken part by part."""
    apart = Reducible.of(union_of_heads(A))
    if search.method == "arnoldi" or not bool(apart.which.any()):
        return SharedWeights(A, W_V, W_O, update, search).radii()
    whole, *others = (~apart.which).nonzero()[:, 0], *apart.which.nonzero()
    pieces = [SharedWeights(A.select(whole), W_V, W_O, update, search).radii()] if len(whole) else []
    pieces += [_in_parts(A.select(i).dense(), apart, int(i), W_V, W_O, update, search) for i in others]
    back = torch.argsort(torch.cat([whole, *others]))
    return Radii.cat(pieces).map(lambda x: x[back])


def _in_parts(
    A: DenseAttention, parts: Reducible, item: int, W_V: Tensor, W_O: Tensor, update: Update, search: Search
) -> Radii:
    """One item ``(1, heads, n, n)`` whose graph falls apart: the update is block triangular over its components."""
    if parts.triangular(item):
        # Causal, once its tokens are reordered.
        order = parts.order(item)
        mask = None if A.mask is None else A.mask[..., order]
        lower = DenseAttention.trusted(A.A[..., order, :][..., order], mask, True, A.rounding)
        radii = SharedWeights(lower, W_V, W_O, update, search).radii()
        if radii.eigenarray is None:
            return radii
        return dataclasses.replace(radii, eigenarray=radii.eigenarray[..., torch.argsort(order), :])
    whole = SharedWeights(A, W_V, W_O, update, search)
    smooth, _ = whole.smooth_radius
    zero, struck, singles = torch.zeros_like(smooth)[None], False, []
    worst: list[tuple[Tensor, Tensor, Tensor]] = []  # eigenvalue, residual and error, (1,) each
    for tokens, closed in parts.components(item):
        if closed and struck:
            # Its own constant arrays are a second family like the smooth one.
            worst.append((smooth[None].to(complex_of(A.dtype)), zero, zero))
        if len(tokens) == 1 and not closed:
            singles.append(int(tokens[0]))
        elif len(tokens) > 1:
            block = DenseAttention.trusted(A.A[..., tokens, :][..., tokens], None, False, A.rounding)
            rough = SharedWeights(block, W_V, W_O, update, search, centred=closed).rough()
            worst.append((rough.mu, rough.residual, rough.error))
        struck = struck or closed
    if singles:
        worst.append(whole.largest_of_blocks(A.diagonal()[0][:, singles].mT - update.shift))
    mu, residual, errors = (torch.cat(column) for column in zip(*worst, strict=True))
    best = mu.abs().argmax(keepdim=True)
    # Within its own error another component may have the largest. What X tends to is not computed.
    error = torch.maximum((mu.abs() + errors).max() - mu[best].abs(), errors[best])
    known = torch.zeros_like(mu[best].abs())
    return whole.result(Rough(mu[best], residual[best], error, above=known, repeated=known == 0))
