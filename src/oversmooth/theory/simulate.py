"""What depth does to tokens: the update applied layer after layer, with all metrics recorded on the way.

Without a norm the update is linear, and its centred and constant parts are carried separately, each with a
logarithmic scale of its own (the multi-head theorem makes the centred one autonomous). So the ratio HFC/LFC is correct
down to e^-10,000 and below, where an array that is divided by its own norm would show rounding errors from 1e-16 on.
Logarithms are float64 whatever the tokens are: at 40,000 a float32 moves in steps of 0.004, and a layer adds no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal

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
    A: Tensor | AttentionOperator | Sequence[Tensor | AttentionOperator],
    W_V: Tensor | Sequence[Tensor],
    W_O: Tensor | Sequence[Tensor],
    layers: int,
    *,
    residual: bool | float | Sequence[float] = True,
    bias: Tensor | Sequence[Tensor | None] | None = None,
    neutreno: float | Tensor = 0.0,
    norm: Norm = "none",
    gamma: Tensor | float = 1.0,
    beta: Tensor | float = 0.0,
    eps: float = 1e-6,
    every: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Apply ``X ← X + Σ_h A_h X W_V^h W_O^h`` layer after layer, and record the metrics of X.

    A single A, W_V, W_O, residual and bias are repeated for every layer; lists of them are a stack, which starts over
    when it ends.

    Args:
        X: ``(..., n, d)``, the input tokens.
        A: ``(..., heads, n, n)``, attention, or an operator of that shape; or a list, one per layer.
        W_V: ``(..., heads, d, k)``, value weights; or a list, one per layer.
        W_O: ``(..., heads, k, d)``, output weights; or a list, one per layer.
        layers: how many to apply.
        residual: False leaves X itself out, a number takes that many times X; or a list, one number per layer.
        bias: ``(d,)``, added to every token at every layer; or a list, one per layer, None where a layer has none.
        neutreno: ``()`` or ``(heads,)``, λ̃; every layer but the first adds ``λ̃ (V⁰ − V)``, V⁰ the values of the first.
        norm: LayerNorm before the layer ("pre") or after it ("post").
        gamma: ``()`` or ``(d,)``, of the norm.
        beta: ``()`` or ``(d,)``, of the norm.
        eps: of the norm.
        every: record metrics only every this many layers, and at the end.
        progress: called with the number of layers done.

    Raises:
        InputError: shapes that do not fit, entries that are not finite, or masks that differ between layers or heads.
    """
    X, given = arguments.tensor(X, "tokens", "(..., n, d)"), _one_by_one(A, W_V, W_O, bias, residual)
    layers = arguments.whole(layers, "layers", least=1, most=MOST_LAYERS)
    every = arguments.whole(every, "every", least=1)
    arguments.choice(norm, "norm", ("none", "pre", "post"))
    eps = float(arguments.number(eps, "eps", "give a number, 0 or more", least=0))
    if not X.isfinite().all():
        raise InputError("the tokens have NaN or infinite entries; start from finite ones")
    operators = [as_operator(one) for one, *_ in given]
    X = X.to(reduce(torch.promote_types, [operator.dtype for operator in operators], X.dtype))
    strength = one_per_head(neutreno, check_weights(*given[0][1:3])[0], "neutreno").to(X)
    stack = [_layer(X, operator, strength, *rest) for operator, (_, *rest) in zip(operators, given, strict=True)]
    # NeuTRENO leaves the first layer alone.
    first = _layer(X, operators[0], 0 * strength, *given[0][1:])
    tokens = operators[0].token_mask
    for index, layer in enumerate(stack):
        mask = layer.heads.A.token_mask
        same = mask is tokens if mask is None or tokens is None else bool(mask.eq(tokens).all())
        if not same:
            raise InputError(f"layer {index}: the mask differs from the first layer's; give one for all")
        if layer.heads.shifted and layer.heads.V.shape != first.heads.V.shape:
            raise InputError(
                "NeuTRENO adds the first layer's values to every layer's; give all layers heads of one shape"
            )
    X = X.expand(*arguments.broadcast(X.shape[:-2], *(layer.batches for layer in stack)), *X.shape[-2:])
    gamma, beta = one_per_feature(gamma, X, "gamma"), one_per_feature(beta, X, "beta")
    if norm == "none":
        states = _linear(X, first, stack)
    else:
        normed = partial(_layer_norm, gamma=gamma, beta=beta, eps=eps, tokens=tokens)
        states = _normed(X, first, stack, normed, before=norm == "pre")
    return _measure(states, layers, every, progress, tokens)


def _one_by_one(*given: Any) -> list[tuple[Any, ...]]:
    """A, W_V, W_O, bias and residual of every layer of the stack, from one or a list of each."""
    listed = [list(x) if isinstance(x, (list, tuple)) else [x] for x in given]
    depth = max(map(len, listed))
    if any(len(x) not in (1, depth) for x in listed):
        counts = "{} A, {} W_V, {} W_O, {} biases and {} residuals".format(*map(len, listed))
        raise InputError(f"the stack has {counts}; give one or as many of each")
    if len(listed[3]) > 1 and not all(b is None or isinstance(b, Tensor) for b in listed[3]):
        raise InputError("bias is a list of numbers; give a tensor, or a list of tensors, one per layer")
    return [tuple(x[index % len(x)] for x in listed) for index in range(depth)]


@dataclass(frozen=True)
class _Layer:
    """``X ← keep X + heads(X) + bias``."""

    heads: JoinedHeads
    keep: float
    bias: Tensor
    batches: torch.Size


def _layer(X: Tensor, A: AttentionOperator, strength: Tensor, W_V: Any, W_O: Any, bias: Any, residual: Any) -> _Layer:
    W_V, W_O = check_weights(W_V, W_O)
    if X.shape[-2:] != (A.tokens, W_V.shape[-2]) or A.shape[-3:-2] != W_V.shape[-3:-2]:
        raise InputError(
            f"tokens {tuple(X.shape)}, attention {tuple(A.shape)} and W_V {tuple(W_V.shape)} do not fit; "
            "they must be (..., n, d), (..., heads, n, n) and (..., heads, d, k)"
        )
    check_token_mask(A)
    batches = dict(tokens=X.shape[:-2], attention=A.shape[:-3], W_V=W_V.shape[:-3], W_O=W_O.shape[:-3])
    arguments.check_broadcast(**batches)
    heads = JoinedHeads(A.to(X.dtype), W_V.to(X), W_O.to(X), strength)
    added = one_per_feature(0.0 if bias is None else bias, X, "bias")
    return _Layer(heads, float(check_residual(residual)), added, arguments.broadcast(*batches.values()))


def _in_order(V0: Tensor, first: _Layer, stack: list[_Layer]) -> Iterator[tuple[_Layer, Tensor | None]]:
    """The layers as they are applied, without end, each with what NeuTRENO's V⁰ adds to its output."""
    # The same at every pass.
    later = [(one, one.heads.outputs(V0, one.heads.shift) if one.heads.shifted else None) for one in stack]
    yield first, None
    yield from itertools.islice(itertools.cycle(later), 1, None)


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


def _linear(X: Tensor, first: _Layer, stack: list[_Layer]) -> Iterator[TokenParts]:
    """The states of the linear update, the input first, without end."""
    tokens, zero = first.heads.A.token_mask, torch.zeros_like(X[..., :1, :1], dtype=torch.float64)
    yield (state := split(X, tokens))
    for layer, inflow in _in_order(first.heads.values(X), first, stack):
        heads, keep, m, s, Z, z = layer.heads, layer.keep, state.m, state.s, state.Z, state.z
        # The centred part feeds itself and the constant part; the constant part feeds itself alone.
        mixed, own = heads.mix(Z), heads.by_weights(m, 1 - heads.shift)
        constant = [(keep * m + own, s), (token_mean(mixed, tokens), z), (layer.bias.expand_as(m), zero)]
        # Centring the sum matters: a constant part that rounding leaves in Z would persist and outlast all else.
        centred = [(centre_tokens(keep * Z + mixed, tokens), z)]
        if inflow is not None:
            constant.append((token_mean(inflow, tokens), zero))
            centred.append((centre_tokens(inflow, tokens), zero))
        yield (state := TokenParts(*summed(constant), *summed(centred)))


def _layer_norm(X: Tensor, gamma: Tensor, beta: Tensor, eps: float, tokens: Tensor | None) -> Tensor:
    X = torch.nn.functional.layer_norm(X, X.shape[-1:], eps=eps) * gamma + beta
    return X if tokens is None else X * tokens[..., None]


def _normed(
    X: Tensor, first: _Layer, stack: list[_Layer], norm: Callable[[Tensor], Tensor], *, before: bool
) -> Iterator[TokenParts]:
    """The states with LayerNorm, which keeps X in range (Post-LN) or makes it grow linearly (Pre-LN)."""
    V0 = first.heads.values(norm(X) if before else X)
    for layer, inflow in _in_order(V0, first, stack):
        yield split(X, first.heads.A.token_mask)
        Y = layer.heads.mix(norm(X) if before else X)
        X = layer.keep * X + Y + layer.bias + (0 if inflow is None else inflow)
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
