"""Radii of all heads jointly (THEORY §3, the multi-head theorem and components).

Taken by `dominance` for several heads. Arrays are grouped by weights; those whose graph, the union over heads, falls
apart are taken component by component, all others whole, each by `shared_weights`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.theory.operators import AttentionOperator, DenseAttention
from oversmooth.theory.radii import Radii, Settings, Update
from oversmooth.theory.reducible import Parts, fallen_apart, union_of_heads
from oversmooth.theory.shared_weights import Rough, SharedWeights
from oversmooth.theory.small_matrices import complex_of
from oversmooth.theory.together import Search


def radii(A: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, how: Settings) -> Search[Radii]:
    """The radii of all heads jointly, ``(...)``; weights have A's batch, part of it or none."""
    batch, flat = A.shape[:-3], A.flatten(keep=1)
    lead = arguments.broadcast(W_V.shape[:-3], W_O.shape[:-3])
    V, O = (W.expand(*lead, *W.shape[-3:]).reshape(-1, *W.shape[-3:]) for W in (W_V, W_O))  # noqa: E741
    # Weights may differ over the batch (layers, say): one group of items per set of weights.
    group = torch.arange(len(V)).reshape(lead).expand(batch).reshape(-1)
    apart = {} if how.method == "arnoldi" else fallen_apart(union_of_heads(flat))
    order: list[int] = []
    pieces = []
    for g, weights in enumerate(zip(V, O, strict=True)):
        members = (group == g).nonzero()[:, 0].tolist()
        whole = [i for i in members if i not in apart]
        if whole:
            own = flat if len(whole) == len(group) else flat.select(torch.tensor(whole, device=A.device))
            pieces.append((yield from SharedWeights(own, *weights, update, how).radii()))
        others = [i for i in members if i in apart]
        for i in others:
            one = flat.select(torch.tensor([i], device=A.device)).dense()
            pieces.append((yield from _in_parts(one, apart[i], *weights, update, how)))
        order += [*whole, *others]
    back = torch.argsort(torch.tensor(order, device=A.device))
    return Radii.cat(pieces).map(lambda x: x[back].reshape((*batch, *x.shape[1:])))


def _in_parts(
    A: DenseAttention, parts: Parts, W_V: Tensor, W_O: Tensor, update: Update, how: Settings
) -> Search[Radii]:
    """One item ``(1, heads, n, n)`` whose graph falls apart: the update is block triangular over its components."""
    if parts.triangular:
        # Causal, once its tokens are reordered.
        order = parts.order
        mask = None if A.mask is None else A.mask[..., order]
        lower = DenseAttention.trusted(A.A[..., order, :][..., order], mask, True, A.rounding)
        radii = yield from SharedWeights(lower, W_V, W_O, update, how).radii()
        if radii.eigenarray is None:
            return radii
        return replace(radii, eigenarray=radii.eigenarray[..., torch.argsort(order), :])

    def part(block: Tensor, *, causal: bool = False, centred: bool = True) -> Search[Rough]:
        own = DenseAttention.trusted(block, None, causal, A.rounding)
        here = replace(how, limit=False, method="auto" if causal else how.method)
        return SharedWeights(own, W_V, W_O, update, here, centred=centred).rough()

    whole = SharedWeights(A, W_V, W_O, update, how)
    smooth = yield from whole.smooth_radius()
    struck, singles, found = False, [], []
    for tokens, closed in parts.components:
        if closed and struck:
            # Its own constant arrays are a second family like the smooth one.
            found.append(replace(Rough.nothing(A), mu=smooth[0][None].to(complex_of(A.dtype))))
        if len(tokens) == 1 and not closed:
            singles.append(int(tokens[0]))
        elif len(tokens) > 1:
            found.append((yield from part(A.A[..., tokens, :][..., tokens], centred=closed)))
        struck = struck or closed
    if singles:  # as causal attention without links, whose first token is left out
        found.append((yield from part(torch.diag_embed(A.diagonal()[..., [0, *singles]]), causal=True)))
    mu, residual, errors = (
        torch.cat([getattr(rough, name) for rough in found]) for name in ("mu", "residual", "largest_error")
    )
    best = mu.abs().argmax(keepdim=True)
    # Within its own error another component may have the largest. What X tends to is not computed.
    error = torch.maximum((mu.abs() + errors).max() - mu[best].abs(), errors[best])
    known = torch.zeros_like(mu[best].abs())
    return whole.result(smooth, Rough(mu[best], residual[best], error, above=known, repeated=known == 0))
