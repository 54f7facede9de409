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
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from oversmooth import metrics
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.dominance import check_residual
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.simulated_layers import Layer, one_per_feature, stack_of_layers
from oversmooth.theory.tokens import centre_tokens, token_mean
from oversmooth.theory.weights import one_per_head

Norm = Literal["none", "pre", "post"]
MOST_LAYERS = 10**8
"""A day or more of the smallest layers."""
_METRICS = ("cos", "abs_cos", "sigma_ratio", "rank_one_distance", "stable_rank", "effective_rank")
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
    log_hfc_lfc_spectral: Tensor
    """The same in the spectral norm."""
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
    def log_hfc(self) -> Tensor:
        """``log ‖HFC‖_F``; its differences are the growth of the high-frequency band, layer by layer."""
        return self.log_norm - softplus(-2 * self.log_hfc_lfc) / 2

    @property
    def log_lfc(self) -> Tensor:
        """``log ‖LFC‖_F``."""
        return self.log_norm - softplus(2 * self.log_hfc_lfc) / 2

    @property
    def rate(self) -> Tensor:
        """``(...)``, the factor per layer by which HFC/LFC changes, over the second half of the run."""
        half = min(len(self.depth) // 2, len(self.depth) - 2)
        rise = self.log_hfc_lfc[-1] - self.log_hfc_lfc[half]
        return (rise / (self.depth[-1] - self.depth[half])).exp()


@dataclass(frozen=True)
class SimulationSettings:
    """The rare settings of `simulate`, which takes them as keywords and explains them."""

    norm: Norm = "none"
    gamma: Tensor | float = 1.0
    beta: Tensor | float = 0.0
    eps: float = 1e-6
    every: int = 1
    bands_only: bool = False
    progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        arguments.choice(self.norm, "norm", ("none", "pre", "post"))
        arguments.number(self.eps, "eps", "give a number, 0 or more", least=0)
        arguments.whole(self.every, "every", least=1)
        arguments.flag(self.bands_only, "bands_only")


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
    **settings: Any,
) -> Simulation:
    """Apply ``X ← X + Σ_h A_h X W_V^h W_O^h`` layer after layer, and record the metrics of X.

    A single A, W_V, W_O and bias are repeated for every layer; lists of them are a stack, which starts over when it
    ends.

    Args:
        X: ``(..., n, d)``, the input tokens.
        A: ``(..., heads, n, n)``, attention, or an operator of that shape; or a list, one per layer.
        W_V: ``(..., heads, d, k)``, value weights; or a list, one per layer.
        W_O: ``(..., heads, k, d)``, output weights; or a list, one per layer.
        layers: how many to apply.
        residual: False leaves X itself out, a number takes that many times X; or a list, one number per layer.
        bias: ``(d,)``, added to every token at every layer; or a list, one per layer, None where a layer has none.
        neutreno: ``()`` or ``(heads,)``, λ̃; every layer but the first adds ``λ̃ (V⁰ − V)``, V⁰ the values of the first.
        settings: ``norm``, LayerNorm before the layer ("pre") or after it ("post"), with ``gamma`` and ``beta``, ``()``
            or ``(d,)``, and ``eps``; ``every``, to record metrics only every this many layers, and at the end;
            ``bands_only``, to leave cosines, ranks and the spectral norm NaN, which is several times faster;
            ``progress``, called with the number of layers done.

    Raises:
        InputError: shapes that do not fit, entries that are not finite, or masks that differ between layers or heads.
    """
    X = arguments.tensor(X, "tokens", "(..., n, d)")
    stack = stack_of_layers(X, A, W_V, W_O, bias)
    first, how = stack[0], SimulationSettings(**settings)
    layers = arguments.whole(layers, "layers", least=1, most=MOST_LAYERS)
    if not X.isfinite().all():
        raise InputError("the tokens have NaN or infinite entries; start from finite ones")
    X = X.to(first.A.dtype).expand(*arguments.broadcast(X.shape[:-2], first.batch_shape), *X.shape[-2:])
    strength = one_per_head(neutreno, first.W_V, "neutreno")
    if strength.any() and any(layer.W_V.shape[-3:] != first.W_V.shape[-3:] for layer in stack):
        raise InputError("NeuTRENO adds the first layer's values to every layer's; give all layers heads of one shape")
    listed = isinstance(residual, (list, tuple))
    keeps = [float(check_residual(keep)) for keep in cast(Any, residual if listed else [residual] * len(stack))]
    if len(keeps) != len(stack):
        raise InputError(f"residual has {len(keeps)} numbers and the stack {len(stack)} layers; give one per layer")
    gamma, beta = one_per_feature(how.gamma, X, "gamma"), one_per_feature(how.beta, X, "beta")
    if how.norm == "none":
        states = _linear(X, stack, keeps, strength)
    else:
        norm = partial(_layer_norm, gamma=gamma, beta=beta, eps=float(how.eps), tokens=first.tokens)
        states = _normed(X, stack, keeps, strength, norm, before=how.norm == "pre")
    return _measure(states, layers, how, first.tokens)


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


def _linear(X: Tensor, stack: list[Layer], keeps: list[float], strength: Tensor) -> Iterator[TokenParts]:
    """The states of the linear update, the input first, without end."""
    tokens, zero = stack[0].tokens, torch.zeros_like(X[..., :1, :1], dtype=torch.float64)
    V0, steer = stack[0].values(X), bool(strength.any())
    # What V⁰ adds is the same at every pass.
    inflow = [layer.outputs(strength[:, None, None] * V0) for layer in stack] if steer else []
    yield (state := split(X, tokens))
    for depth in itertools.count():
        m, s, Z, z = state.m, state.s, state.Z, state.z
        at = depth % len(stack)
        layer, base = stack[at], keeps[at]
        source = steer and depth > 0  # NeuTRENO leaves the first layer alone
        # The centred part feeds itself and the constant part; the constant part feeds itself alone.
        mixed = layer.mix(Z, torch.zeros_like(V0) if source else None, strength)
        own = layer.outputs(layer.values(m) * (1 - strength if source else torch.ones_like(strength))[:, None, None])
        constant = [(base * m + own, s), (token_mean(mixed, tokens), z)]
        # Centring the sum matters: a constant part that rounding leaves in Z would persist and outlast all else.
        centred = [(centre_tokens(base * Z + mixed, tokens), z)]
        if source:
            constant.append((token_mean(inflow[at], tokens), zero))
            centred.append((centre_tokens(inflow[at], tokens), zero))
        if layer.bias is not None:
            constant.append((layer.bias.expand_as(m), zero))
        yield (state := TokenParts(*summed(constant), *summed(centred)))


def _layer_norm(X: Tensor, gamma: Tensor, beta: Tensor, eps: float, tokens: Tensor | None) -> Tensor:
    X = torch.nn.functional.layer_norm(X, X.shape[-1:], eps=eps) * gamma + beta
    return X if tokens is None else X * tokens[..., None]


def _normed(
    X: Tensor, stack: list[Layer], keeps: list[float], strength: Tensor, norm: Callable[[Tensor], Tensor], before: bool
) -> Iterator[TokenParts]:
    """The states with LayerNorm, which keeps X in range (Post-LN) or makes it grow linearly (Pre-LN)."""
    V0, source = stack[0].values(norm(X) if before else X), None
    for layer, keep in itertools.cycle(zip(stack, keeps, strict=True)):
        yield split(X, layer.tokens)
        Y = layer.mix(norm(X) if before else X, source, strength)
        X = keep * X + Y + (0 if layer.bias is None else layer.bias)
        X = X if before else norm(X)
        source = V0 if strength.any() else None


def _measure(states: Iterator[TokenParts], layers: int, how: SimulationSettings, tokens: Tensor | None) -> Simulation:
    depths, ratios, norms, kept, rows = [], [], [], [], []
    for depth, state in zip(range(layers + 1), states, strict=False):
        if depth % how.every == 0 or depth == layers:
            n = state.Z.shape[-2] if tokens is None else tokens.sum(-1)[..., None, None]
            log_high, log_low = state.z, state.s + torch.as_tensor(n, dtype=torch.float64).log() / 2
            depths.append(depth)
            ratios.append((log_high - log_low)[..., 0, 0])
            norms.append(torch.logaddexp(2 * log_high, 2 * log_low)[..., 0, 0] / 2)
            kept.append((_tokens_of(state, tokens), state.Z))
        if len(kept) == _KEPT or (kept and depth == layers):
            arrays, centred = (torch.stack(part) for part in zip(*kept, strict=True))
            if how.bands_only:
                nothing = torch.full(arrays.shape[:-2], torch.nan, dtype=arrays.dtype, device=arrays.device)
                rows.append(dict.fromkeys((*_METRICS, "spectral"), nothing))
            else:
                rows.append(_metrics(arrays, tokens) | {"spectral": metrics.singular_values(centred)[..., 0].log()})
            last, kept = arrays[-1], []
        if how.progress is not None and depth:
            how.progress(depth)
    columns = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    spectral = columns.pop("spectral").double()
    return Simulation(
        depth=torch.tensor(depths, dtype=torch.float64, device=last.device),
        log_hfc_lfc=torch.stack(ratios),
        log_hfc_lfc_spectral=torch.stack(ratios) + spectral,
        log_norm=torch.stack(norms),
        X=last / torch.linalg.matrix_norm(last, keepdim=True),
        **columns,
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
    return {
        "cos": metrics.cosine(X, mask=mask),
        "abs_cos": metrics.cosine(X, absolute=True, mask=mask),
        **{name: getattr(metrics, name)(X, mask=mask) for name in _METRICS[2:]},
    }
