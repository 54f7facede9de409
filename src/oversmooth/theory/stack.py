"""Which eigenvalue dominates when a whole stack of different layers is repeated (THEORY §3, depth).

Each layer keeps constant arrays constant and carries the centred part to the centred part, so their product does, and
the multi-head theorem holds for it: the radius of ``Π_l (I + W_V^l W_O^l)`` against that of the product of the T_P's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.errors import InputError
from oversmooth.theory.dominance import TIE, Verdict
from oversmooth.theory.krylov import extremal, modulus
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.small import eigenvalues
from oversmooth.theory.spectrum import DEFAULT_TOLERANCE
from oversmooth.theory.systems import JoinedHeads
from oversmooth.theory.weights import check_weights, stack_heads

# Arnoldi: basis vectors before a restart, and restarts at most.
_STEPS, _RESTARTS = 48, 12


@dataclass(frozen=True)
class StackDominance:
    """Logarithms of the radii of one pass through the stack: products of many layers overflow otherwise."""

    log_rho_smooth: float
    log_rho_rough: float
    residual: float
    """Of the Ritz pair behind rho_rough, relative to the modulus of its eigenvalue."""
    layers: int
    tolerance: float
    smooth_floor: float = -math.inf

    @property
    def margin(self) -> float:
        """Of the logarithms. Positive: smoothing dominates."""
        return max(self.log_rho_smooth, self.smooth_floor) - self.log_rho_rough

    @property
    def verdict(self) -> Verdict:
        return "smooth" if self.margin > self.tolerance else "rough" if self.margin < -self.tolerance else "tie"

    @property
    def rate(self) -> float:
        """Factor on HFC/LFC a layer, in the end, where smoothing dominates; 1 where it does not."""
        return math.exp(-max(0.0, self.margin) / self.layers)


class _Product:
    """``Z ↦ T_P^L … T_P^1 Z`` on centred arrays, each layer divided by `scale`."""

    def __init__(self, layers: list[JoinedHeads], scale: float) -> None:
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


@torch.no_grad()
def stack_dominance(
    A: Sequence[Tensor | AttentionOperator],
    W_V: Sequence[Tensor],
    W_O: Sequence[Tensor],
    *,
    bias: bool = False,
    tolerance: float | None = None,
    seed: int = 0,
) -> StackDominance:
    """The stack ``X ← X + Σ_h A_h X W_V^h W_O^h``, layer after layer, repeated. A ``(heads, n, n)`` each.

    bias: whether a constant is added to every token somewhere; such a mode keeps its size, so smoothing counts with
    a radius of at least 1.

    >>> A = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> W = torch.eye(2)[None]
    >>> stack_dominance([A, A], [W, W], [W, -0.1 * W]).verdict
    'smooth'
    """
    if not len(A) == len(W_V) == len(W_O) or not A:
        raise InputError(f"the stack has {len(A)} A, {len(W_V)} W_V and {len(W_O)} W_O; give as many of each")
    # A product of layers is far from normal, so that its eigenvalues need all the precision there is.
    operators = [as_operator(a).to(torch.float64) for a in A]
    dtype = operators[0].dtype
    if len({(a.shape[-1], v.shape[-2]) for a, v in zip(operators, W_V, strict=True)}) > 1:
        raise InputError("layers have different numbers of tokens or features; give arrays of one size")
    systems, product, log_size = [], None, 0.0
    for operator, v, o in zip(operators, W_V, W_O, strict=True):
        v, o = (W.to(operator.device, dtype) for W in check_weights(v, o))
        if operator.shape[-3:-2] != v.shape[:1] or operator.shape[:-3].numel() != 1 or v.ndim != 3:
            raise InputError(
                f"attention {tuple(operator.shape)} and W_V {tuple(v.shape)} do not fit; give (heads, n, n) and "
                "(heads, d, k), one array at a time"
            )
        none = torch.zeros(len(v), dtype=dtype, device=operator.device)
        systems.append(JoinedHeads(operator.flatten(keep=1), v, o, none))
        V, O = stack_heads(v, o)  # noqa: E741
        layer = torch.eye(v.shape[-2], dtype=torch.float64, device=operator.device) + V.double() @ O.double()
        product = layer if product is None else product @ layer
        size = float(torch.linalg.matrix_norm(product))
        product, log_size = product / size, log_size + math.log(size)
    assert product is not None
    log_smooth = log_size + _log(float(eigenvalues(product).abs().max()))
    tolerance = DEFAULT_TOLERANCE[dtype] if tolerance is None else tolerance
    rough = residual = 0.0
    # Residuals are relative to 1 or more, so the product is brought to about that size first.
    log_scale = max(log_smooth, 0.0) / len(systems)
    if int(systems[0].rank.max()) > 0:
        how = dict(tolerance=tolerance, most=_STEPS, restarts=_RESTARTS, seed=seed)
        found = extremal(_Product(systems, math.exp(log_scale)), modulus(0.0), **how)  # type: ignore[arg-type]
        rough = float(found.score[0])
        residual = float(found.residual[0]) / max(rough, 1e-300)
    return StackDominance(
        log_rho_smooth=log_smooth,
        log_rho_rough=log_scale * len(systems) + _log(rough),
        residual=residual,
        layers=len(systems),
        tolerance=max(TIE[dtype], residual),
        smooth_floor=0.0 if bias else -math.inf,
    )


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
