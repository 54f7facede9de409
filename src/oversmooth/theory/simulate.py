"""What depth does to tokens: the update applied layer after layer, with all metrics recorded on the way.

Without a norm the update is linear, and its centred and constant parts are carried separately, each with a
logarithmic scale of its own (the multi-head theorem makes the centred one autonomous). So the ratio HFC/LFC is correct
down to e^-10,000 and below, where an array that is divided by its own norm would show rounding errors from 1e-16 on.
Logarithms are float64 whatever the tokens are: at 40,000 a float32 moves in steps of 0.004, and a layer adds no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from oversmooth import metrics
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.dominance import check_residual, check_token_mask
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.systems import JoinedHeads
from oversmooth.theory.tokens import centre_tokens, token_mean
from oversmooth.theory.weights import check_weights, one_per_feature, one_per_head

Norm = Literal["none", "pre", "post"]
MOST_LAYERS = 10**8
"""A day or more of the smallest layers."""
# Arrays kept before their metrics are taken all at once.
_KEPT = 64


@dataclass(frozen=True)
class Simulation:
    """Metrics of X at the recorded depths, ``(depths, ...)`` each, the input first.

    Depths and logarithms are float64, the others have the precision of the tokens.
    """

    depth: Tensor
    """``(depths,)``, the number of layers applied."""
    log_hfc_lfc: Tensor
    """``log(‖HFC‖/‖LFC‖)``, which does not underflow; -inf where HFC is zero."""
    log_norm: Tensor
    """``log ‖X‖_F``."""
    cos: Tensor
    """Mean cosine."""
    abs_cos: Tensor
    """Mean absolute cosine."""
    sigma_ratio: Tensor
    """``σ₂/σ₁``."""
    rank_one_distance: Tensor
    """``‖X − X₁‖_F / ‖X‖_F``, X₁ the nearest array of rank one."""
    stable_rank: Tensor
    """``‖X‖_F² / ‖X‖₂²``."""
    effective_rank: Tensor
    """The exponential of the entropy of ``σ/Σσ``."""
    X: Tensor
    """``(..., n, d)``, the last array, of unit norm."""

    @property
    def hfc_lfc(self) -> Tensor:
        """``‖HFC‖/‖LFC‖``; zero below the smallest float."""
        return self.log_hfc_lfc.exp()

    @property
    def rate(self) -> Tensor:
        """``(...)``, the factor per layer by which HFC/LFC changes, over the second half of the run."""
        half = min(len(self.depth) // 2, len(self.depth) - 2)
        rise = self.log_hfc_lfc[-1] - self.log_hfc_lfc[half]
        return (rise / (self.depth[-1] - self.depth[half])).exp()


def simulate(
    X: Tensor,
    A: Tensor | AttentionOperator,
    W_V: Tensor,
    W_O: Tensor,
    layers: int,
    *,
    residual: bool | float = True,
    bias: Tensor | None = None,
    neutreno: float | Tensor = 0.0,
    norm: Norm = "none",
    gamma: Tensor | float = 1.0,
    beta: Tensor | float = 0.0,
    eps: float = 1e-6,
    every: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Apply ``X ← X + Σ_h A_h X W_V^h W_O^h`` again and again, and record the metrics of X.

    Args:
        X: ``(..., n, d)``, the input tokens.
        A: ``(..., heads, n, n)``, attention, or an operator of that shape.
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.
        layers: how many to apply.
        residual: False leaves X itself out, a number takes that many times X.
        bias: ``(d,)``, added to every token at every layer.
        neutreno: ``()`` or ``(heads,)``, λ̃; every layer but the first adds ``λ̃ (V⁰ − V)``, V⁰ the values of the first.
        norm: LayerNorm before the layer ("pre") or after it ("post").
        gamma: ``()`` or ``(d,)``, of the norm.
        beta: ``()`` or ``(d,)``, of the norm.
        eps: of the norm.
        every: record metrics only every this many layers, and at the end.
        progress: called with the number of layers done.

    Raises:
        InputError: shapes that do not fit, entries that are not finite, or a mask that differs between heads.
    """
    X, A = arguments.tensor(X, "tokens", "(..., n, d)"), as_operator(A)
    W_V, W_O = check_weights(W_V, W_O)
    layers = arguments.whole(layers, "layers", least=1, most=MOST_LAYERS)
    every = arguments.whole(every, "every", least=1)
    arguments.choice(norm, "norm", ("none", "pre", "post"))
    eps = float(arguments.number(eps, "eps", "give a number, 0 or more", least=0))
    if X.shape[-2:] != (A.tokens, W_V.shape[-2]) or A.shape[-3:-2] != W_V.shape[-3:-2]:
        raise InputError(
            f"tokens {tuple(X.shape)}, attention {tuple(A.shape)} and W_V {tuple(W_V.shape)} do not fit; "
            "they must be (..., n, d), (..., heads, n, n) and (..., heads, d, k)"
        )
    if not X.isfinite().all():
        raise InputError("the tokens have NaN or infinite entries; start from finite ones")
    check_token_mask(A)
    batches = dict(tokens=X.shape[:-2], attention=A.shape[:-3], W_V=W_V.shape[:-3], W_O=W_O.shape[:-3])
    arguments.check_broadcast(**batches)
    A = A.to(torch.promote_types(X.dtype, A.dtype))
    X = X.to(A.dtype).expand(*arguments.broadcast(*batches.values()), *X.shape[-2:])
    W_V, W_O = W_V.to(X), W_O.to(X)
    strength = one_per_head(neutreno, W_V, "neutreno")
    # NeuTRENO leaves the first layer alone.
    first, later = (JoinedHeads(A, W_V, W_O, shift) for shift in (0 * strength, strength))
    named = {"gamma": gamma, "beta": beta, "bias": 0.0 if bias is None else bias}
    gamma, beta, added = (one_per_feature(value, X, name) for name, value in named.items())
    keep = float(check_residual(residual))
    if norm == "none":
        states = _linear(X, first, later, keep, added)
    else:
        normed = partial(_layer_norm, gamma=gamma, beta=beta, eps=eps, tokens=A.token_mask)
        states = _normed(X, first, later, keep, added, normed, before=norm == "pre")
    return _measure(states, layers, every, progress, A.token_mask)


@dataclass(frozen=True)
class TokenParts:
    """X as constant part and centred part, each with its scale in float64: ``X = e^s (1 m) + e^z Z``."""

    m: Tensor  # (..., 1, d)
    s: Tensor  # (..., 1, 1)
    Z: Tensor  # (..., n, d)
    z: Tensor  # (..., 1, 1)


def rescaled(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """x of unit norm, and the scale that compensates for it, ``-inf`` for zero."""
    # The logarithm is that of the same number that x is divided by, so that nothing is lost between the two.
    size = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float64).to(x.dtype)
    return x / torch.where(size == 0, 1.0, size), scale + size.double().log()


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """``e^scale · x`` in the precision of x."""
    return x * torch.exp(scale).to(x.dtype)


def summed(terms: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """``Σ e^scale · x`` of unit norm, and its own scale, however far apart the scales are."""
    terms = [rescaled(x, scale) for x, scale in terms]
    if len(terms) == 1:
        return terms[0]
    top = torch.stack([scale for _, scale in terms]).amax(0)
    top = torch.where(top.isneginf(), 0.0, top)
    total = torch.stack([scaled(x, scale - top) for x, scale in terms]).sum(0)
    return rescaled(total, top)


def split(X: Tensor, tokens: Tensor | None) -> TokenParts:
    """X as its constant and centred parts."""
    zero = torch.zeros_like(X[..., :1, :1], dtype=torch.float64)
    return TokenParts(*rescaled(token_mean(X, tokens), zero), *rescaled(centre_tokens(X, tokens), zero))


def _linear(X: Tensor, first: JoinedHeads, later: JoinedHeads, keep: float, bias: Tensor) -> Iterator[TokenParts]:
    """The states of the linear update, the input first, without end."""
    tokens, zero = first.A.token_mask, torch.zeros_like(X[..., :1, :1], dtype=torch.float64)
    inflow = later.by_weights(X, later.shift)  # what V⁰ adds
    yield (state := split(X, tokens))
    for layer in itertools.chain([first], itertools.repeat(later)):
        m, s, Z, z = state.m, state.s, state.Z, state.z
        # The centred part feeds itself and the constant part; the constant part feeds itself alone.
        mixed, own = layer.mix(Z), layer.by_weights(m, 1 - layer.shift)
        constant = [(keep * m + own, s), (token_mean(mixed, tokens), z), (bias.expand_as(m), zero)]
        # Centring the sum matters: a constant part that rounding leaves in Z would persist and outlast all else.
        centred = [(centre_tokens(keep * Z + mixed, tokens), z)]
        if layer.shifted:
            constant.append((token_mean(inflow, tokens), zero))
            centred.append((centre_tokens(inflow, tokens), zero))
        yield (state := TokenParts(*summed(constant), *summed(centred)))


def _layer_norm(X: Tensor, gamma: Tensor, beta: Tensor, eps: float, tokens: Tensor | None) -> Tensor:
    X = torch.nn.functional.layer_norm(X, X.shape[-1:], eps=eps) * gamma + beta
    return X if tokens is None else X * tokens[..., None]


def _normed(
    X: Tensor,
    first: JoinedHeads,
    later: JoinedHeads,
    keep: float,
    bias: Tensor,
    norm: Callable[[Tensor], Tensor],
    *,
    before: bool,
) -> Iterator[TokenParts]:
    """The states with LayerNorm, which keeps X in range (Post-LN) or makes it grow linearly (Pre-LN)."""
    inflow = later.by_weights(norm(X) if before else X, later.shift)
    for layer in itertools.chain([first], itertools.repeat(later)):
        yield split(X, layer.A.token_mask)
        X = keep * X + layer.mix(norm(X) if before else X) + bias + (inflow if layer.shifted else 0)
        X = X if before else norm(X)


def _measure(
    states: Iterator[TokenParts],
    layers: int,
    every: int,
    progress: Callable[[int], None] | None,
    tokens: Tensor | None,
) -> Simulation:
    depths, ratios, norms, kept, rows = [], [], [], [], []
    for depth, state in zip(range(layers + 1), states, strict=False):
        if depth % every == 0 or depth == layers:
            n = state.Z.shape[-2] if tokens is None else tokens.sum(-1)[..., None, None]
            log_high, log_low = state.z, state.s + torch.as_tensor(n, dtype=torch.float64).log() / 2
            depths.append(depth)
            ratios.append((log_high - log_low)[..., 0, 0])
            norms.append(torch.logaddexp(2 * log_high, 2 * log_low)[..., 0, 0] / 2)
            kept.append(_tokens_of(state, tokens))
        if len(kept) == _KEPT or (kept and depth == layers):
            rows.append(_metrics(torch.stack(kept), tokens))
            last, kept = kept[-1], []
        if progress is not None and depth:
            progress(depth)
    return Simulation(
        depth=torch.tensor(depths, dtype=torch.float64, device=last.device),
        log_hfc_lfc=torch.stack(ratios),
        log_norm=torch.stack(norms),
        X=last / torch.linalg.matrix_norm(last, keepdim=True),
        **{name: torch.cat([row[name] for row in rows]) for name in rows[0]},
    )


def _tokens_of(state: TokenParts, tokens: Tensor | None) -> Tensor:
    """Both parts together, at the scale of the larger one."""
    top = torch.maximum(state.s, state.z)
    top = torch.where(top.isfinite(), top, 0.0)
    common, own = scaled(state.m, state.s - top), scaled(state.Z, state.z - top)
    X = common + own
    X = X if tokens is None else X * tokens[..., None]
    # A token that cancels between its two parts is known only up to their rounding; its direction is noise.
    size, of_common, of_own = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (X, common, own))
    return torch.where(size > 1e3 * torch.finfo(X.dtype).eps * (of_common + of_own), X, 0.0)


def _metrics(X: Tensor, tokens: Tensor | None) -> dict[str, Tensor]:
    mask = None if tokens is None else tokens.expand(X.shape[:-1])
    ranks = metrics.ranks_of(metrics.singular_values(X, mask=mask))
    return {
        "cos": metrics.cosine(X, mask=mask),
        "abs_cos": metrics.cosine(X, absolute=True, mask=mask),
        **{name: rank.to(X.dtype) for name, rank in ranks.items()},
    }
