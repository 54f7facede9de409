"""Radii of a whole stack of different layers, repeated: one pass is a product of updates (THEORY §3, depth).

Taken by `diagnosis.extrapolate` for all blocks, under attention frozen as it was observed. Each layer keeps constant
arrays constant and maps centred arrays to centred arrays, so their product does too, and the multi-head theorem holds
for it: the radius of ``Π_l (I + W_V^l W_O^l)`` against that of the product of the T_P's.

Constants that layers add to every token make a pass affine, ``X ↦ T(X) + 1c`` with ``c = Σ_l c_l Π_{j>l} (I + W_j)``:
one more smooth mode, of eigenvalue 1. For generic X₀ and c tokens converge if max(1, ρ_smooth) > ρ_rough, and do not if
max(1, ρ_smooth) < ρ_rough: the constant part then grows no faster than the centred part that feeds it.

Products of layers are far from normal, so a small residual alone says little: an eigenvalue may be off by its residual
times its condition number ‖y‖‖x‖/|yᴴx|, y and x its left and right vectors. Both are computed, and where that error
exceeds the margin the verdict is "undecided". Causal layers are block triangular over tokens, and so is their
product: its spectrum is that of its diagonal blocks, ``Π_l (I + Σ_h A_h^l[i, i] W_V^h W_O^h)`` for token i, which are
small and far better conditioned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.dominance import Verdict, is_biased
from oversmooth.theory.errors import eigenvalue_error
from oversmooth.theory.krylov import extremal
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.radii import TIE
from oversmooth.theory.reasons import Reason, finite
from oversmooth.theory.small_matrices import eigenvalues
from oversmooth.theory.spectrum import check_tolerance
from oversmooth.theory.systems import CausalBlocks, JoinedHeads
from oversmooth.theory.tokens import real_and_imaginary
from oversmooth.theory.weights import check_weights, on_constant_arrays

# Arnoldi: basis vectors before the first check, which beats most causal tokens, and before a restart; restarts at most.
_FIRST, _STEPS, _RESTARTS = 12, 48, 12
# Up to this many entries attention of all layers is kept as matrices (half a GiB): products are then several times
# faster than from queries and keys.
_DENSE = 1 << 26
# Relative residual of a left vector that is good enough for a condition number: its parts along other left vectors are
# orthogonal to the right one.
_LEFT = 1e-3
# Power steps for the norm of the product, of which only the order of magnitude is needed.
_NORM_STEPS = 4


@dataclass(frozen=True)
class StackDominance:
    """The radii of one pass through the stack, as logarithms, since products of many layers overflow."""

    log_rho_smooth: float
    """Of the radius on constant arrays."""
    log_rho_rough: float
    """Of the radius on centred arrays."""
    residual: float
    """Of the Ritz pair behind rho_rough, relative to the modulus of its eigenvalue."""
    layers: int
    """In one pass."""
    tolerance: float
    """Margins below this give no verdict: the larger of the margin that counts as a tie and `error`."""
    smooth_floor: float = -math.inf
    """0 with biases: a constant offset is a smooth mode of eigenvalue 1."""
    condition: float = 1.0
    """Of that eigenvalue, ‖y‖‖x‖/|yᴴx|; infinite where its left vector did not converge."""
    error: float = 0.0
    """How far off the margin may be: residual and rounding, times the condition number, as a logarithm."""
    converged: bool = True
    """Whether no other Ritz value can still turn out larger."""

    @property
    def margin(self) -> float:
        """Of the logarithms; positive where smoothing dominates."""
        return max(self.log_rho_smooth, self.smooth_floor) - self.log_rho_rough

    @property
    def verdict(self) -> Verdict:
        """What dominates; a "tie" is known to be one, "undecided" are radii that differ by less than their error."""
        if self.margin < -self.tolerance:
            return "rough"  # a hidden Ritz value could only be larger
        if self.margin > self.tolerance:
            return "smooth" if self.converged else "undecided"
        return "tie" if self.error < self.tolerance and self.converged else "undecided"

    @property
    def reason(self) -> str:
        """Why the verdict is undecided, in words; empty where it is decided."""
        return "" if self.why is None else f"undecided: {self.why}"

    @property
    def why(self) -> Reason | None:
        """Why the verdict is undecided; None where it is decided."""
        if self.verdict != "undecided":
            return None
        if self.margin > self.tolerance or self.error < self.tolerance:
            return Reason("search_unfinished")
        if math.isinf(self.condition):
            return Reason("left_vector_unknown")
        error, residual = finite(self.error), finite(self.residual)
        return Reason("logarithms_too_close", finite(self.margin), error, residual, finite(self.condition))

    @property
    def rate(self) -> float:
        """The asymptotic factor on HFC/LFC per layer where smoothing dominates; 1 where it does not."""
        return math.exp(-max(0.0, self.margin) / self.layers)


_Layer = JoinedHeads | CausalBlocks


class _Product:
    """``v ↦ T_L … T_1 v`` with ``T_l = I + layers[l]``, each layer divided by `scale`."""

    def __init__(self, layers: Sequence[_Layer], scale: float) -> None:
        self.layers, self.scale = layers, scale
        first = layers[0]
        self.items, self.size, self.rank = first.items, first.size, first.rank
        self.dtype, self.device = first.dtype, first.device

    def apply(self, v: Tensor) -> Tensor:
        for layer in self.layers:
            v = (v + layer.apply(v)) / self.scale
        return v

    def project(self, v: Tensor) -> Tensor:
        return self.layers[0].project(v)

    def select(self, index: Tensor) -> _Product:
        return _Product([layer.select(index) for layer in self.layers], self.scale)

    def transposed(self) -> _Product:
        """The transposed product, whose right vectors are the left ones of this."""
        return _Product([layer.transposed() for layer in reversed(self.layers)], self.scale)


@torch.no_grad()
def stack_dominance(
    A: Sequence[Tensor | AttentionOperator],
    W_V: Sequence[Tensor],
    W_O: Sequence[Tensor],
    *,
    bias: Tensor | Sequence[Tensor | None] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> StackDominance:
    """Compare the smoothing eigenvalue with all others for a stack of layers that is repeated.

    Args:
        A: ``(heads, n, n)`` each, attention, or operators of that shape, one per layer.
        W_V: ``(heads, d, k)`` each, value weights, one per layer.
        W_O: ``(heads, k, d)`` each, output weights, one per layer.
        bias: ``(d,)``, what is added to every token, or a list of that, one per layer, as in `simulate`. Unless all are
            zero, smoothing counts with a radius of at least 1.
        tolerance: relative residual at which an eigenvalue has converged.
        seed: of the random start of Arnoldi.

    Raises:
        InputError: lists of different lengths, or shapes that do not fit.

    >>> A = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> W = torch.eye(2)[None]
    >>> stack_dominance([A, A], [W, W], [W, -0.1 * W]).verdict
    'smooth'
    """
    for name, given in (("A", A), ("W_V", W_V), ("W_O", W_O)):
        if not isinstance(given, (list, tuple)):
            raise InputError(f"{name} is {arguments.kind(given)}; give a list, an array for each layer")
    if not len(A) == len(W_V) == len(W_O) or not A:
        raise InputError(f"the stack has {len(A)} A, {len(W_V)} W_V and {len(W_O)} W_O; give as many of each")
    biases: list[Any] = list(bias) if isinstance(bias, (list, tuple)) else [bias]
    biased = any(is_biased(b) for b in biases)
    seed = arguments.seed(seed)
    tolerance = check_tolerance(tolerance, torch.float64)
    # A product of layers is far from normal, so its eigenvalues need all the precision there is.
    operators = [as_operator(a).to(torch.float64) for a in A]
    dtype = operators[0].dtype
    checked = [check_weights(v, o) for v, o in zip(W_V, W_O, strict=True)]
    if len({(a.shape[-1], v.shape[-2]) for a, (v, _) in zip(operators, checked, strict=True)}) > 1:
        raise InputError("layers have different numbers of tokens or features; give arrays of one size")
    weights = []
    for operator, pair in zip(operators, checked, strict=True):
        v, o = (W.to(operator.device, dtype) for W in pair)
        if operator.shape[-3:-2] != v.shape[:1] or operator.shape[:-3].numel() != 1 or v.ndim != 3:
            raise InputError(
                f"attention {tuple(operator.shape)} and W_V {tuple(v.shape)} do not fit; give (heads, n, n) and "
                "(heads, d, k), one array at a time"
            )
        weights.append((v, o))
    operators = [operator.flatten(keep=1) for operator in operators]
    (log_smooth, smooth_error), floor = _smooth(weights), 0.0 if biased else -math.inf
    rough = _rough(_systems(operators, weights), log_smooth, floor, tolerance, seed)
    error = rough.pop("error", 0.0) + (smooth_error if log_smooth > floor else 0.0)  # the floor is exact
    return StackDominance(
        log_rho_smooth=log_smooth,
        layers=len(weights),
        tolerance=max(TIE[dtype], error),
        smooth_floor=floor,
        error=error,
        **rough,
    )


def _smooth(weights: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """The logarithm of the radius of ``Π_l (I + W_V^l W_O^l)``, and how far off it may be."""
    first = weights[0][0]
    product, log_size = torch.eye(first.shape[-2], dtype=first.dtype, device=first.device), 0.0
    for v, o in weights:
        V, O = on_constant_arrays(v, o)  # noqa: E741
        product = product + product @ V @ O
        size = float(torch.linalg.matrix_norm(product))
        if size == 0:
            return -math.inf, 0.0
        product, log_size = product / size, log_size + math.log(size)
    values = eigenvalues(product)
    largest = values[values.abs().argmax()]
    radius = float(largest.abs())
    if radius == 0:
        return -math.inf, 0.0
    eps = torch.finfo(product.dtype).eps
    return log_size + math.log(radius), float(eigenvalue_error(product[None], largest[None], eps)) / radius


def _systems(operators: list[AttentionOperator], weights: list[tuple[Tensor, Tensor]]) -> Sequence[_Layer]:
    """The layers without their identity, on centred arrays; empty with fewer than two tokens."""
    first, counted = operators[0], operators[0].keep[:, 0]
    if int(counted.sum()) < 2:
        return []
    if all(operator.causal for operator in operators):
        rest = counted & (counted.cumsum(-1) > 1)  # the first token sees only itself: its block is the smooth part
        return [CausalBlocks(A.diagonal().mT[rest], v, o) for A, (v, o) in zip(operators, weights, strict=True)]
    if sum(operator.shape.numel() for operator in operators) <= _DENSE:
        operators = [operator.dense() for operator in operators]
    none = torch.zeros(1, dtype=first.dtype, device=first.device)
    return [JoinedHeads(A, v, o, none.expand(len(v))) for A, (v, o) in zip(operators, weights, strict=True)]


def _rough(systems: Sequence[_Layer], log_smooth: float, floor: float, tolerance: float, seed: int) -> dict[str, Any]:
    """The radius of the product on centred arrays, as a logarithm, and how well it is known."""
    if not systems:
        return dict(log_rho_rough=-math.inf, residual=0.0)
    layers = len(systems)
    # Causal: the tokens compete; otherwise there is only one item, which has no others to be beaten by.
    one_group = torch.zeros(systems[0].items, dtype=torch.long, device=systems[0].device)
    first = _FIRST if systems[0].items > 1 else _STEPS
    search = partial(extremal, first=first, most=_STEPS, restarts=_RESTARTS, vectors=True, seed=seed)
    # Residuals are relative to 1 or more, so the product is brought to about that size first.
    log_scale = max(log_smooth, 0.0) / layers
    product = _Product(systems, math.exp(log_scale))
    ritz = search(product, lambda theta, reach, _: theta.abs() + reach, tolerance=tolerance, group=one_group)
    assert ritz.vector is not None
    item = ritz.score.argmax(keepdim=True)
    radius, value, x = float(ritz.score[item]), ritz.value[item], ritz.vector[item]
    log_radius = layers * log_scale + _log(radius)
    converged = bool(ritz.settled.all())
    if radius == 0:
        return dict(log_rho_rough=log_radius, residual=0.0, converged=converged)
    product = product.select(item)
    x, norm = x / torch.linalg.vector_norm(x), _norm(product, seed)
    # Arnoldi's own residual leaves out rounding; where it used all dimensions, only rounding is left.
    residual = float(ritz.residual[item])
    if residual > 0:
        rest = real_and_imaginary(product.apply, x) - value[:, None] * x
        residual = max(float(torch.linalg.vector_norm(rest)), residual)
    rounding = layers * torch.finfo(product.dtype).eps * norm
    condition = 1.0
    if radius > rounding:
        # For its left vector the product is scaled to a radius of one.
        target = value / radius
        turned = _Product(product.layers, math.exp(log_radius / layers)).transposed()
        left = search(turned, lambda theta, reach, _: reach - (theta - target[:, None]).abs(), tolerance=_LEFT)
        assert left.vector is not None
        overlap = float((left.vector * x).sum().abs() / torch.linalg.vector_norm(left.vector))
        condition = 1 / overlap if bool(left.converged[0]) and overlap > 0 else math.inf
    reach = condition * (residual + rounding)
    if max(log_smooth, floor) > log_radius:
        # No eigenvalue is larger than the norm, which power steps find to well within a factor of two.
        error = _log(min(radius + reach, 2 * max(norm, radius))) - _log(radius)
    else:
        error = _log(radius) - _log(max(0.0, radius - reach))
    return dict(
        log_rho_rough=log_radius, residual=residual / radius, condition=condition, error=error, converged=converged
    )


def _norm(product: _Product, seed: int) -> float:
    """An estimate of the spectral norm, by power steps."""
    generator = torch.Generator(device=product.device).manual_seed(seed)
    v = torch.randn(1, product.size, dtype=product.dtype, device=product.device, generator=generator)
    v, turned, size = product.project(v), product.transposed(), 0.0
    for _ in range(_NORM_STEPS):
        v = product.apply(v / torch.linalg.vector_norm(v))
        size = float(torch.linalg.vector_norm(v))
        if size == 0:
            break
        v = turned.apply(v / size)
    return size


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
