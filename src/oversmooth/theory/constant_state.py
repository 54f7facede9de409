"""Tokens that are nearly equal, and a block repeated: the rate at which their differences shrink or grow.

Attention whose rows sum to one keeps equal tokens equal. Near such a state differences follow a linear map, the
derivative of the block on centred arrays (THEORY §3 (g)). Behind a norm on the stream there is a state that the block
leaves as it is, and differences change by the radius of that map, per block. In a pre-norm block tokens grow along a
direction, and HFC/LFC goes as a power of depth. The map is never formed: backpropagation through one evaluation gives
products with its transpose, and Arnoldi the extremal eigenvalue.

For causal attention the map is far from normal, and the rate is reached at no depth that anybody has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.theory.depth import Block
from oversmooth.theory.krylov import extremal
from oversmooth.theory.reasons import Reason, finite
from oversmooth.theory.tokens import centre_tokens, token_mean

# The depth whose tokens stand for infinite depth: exponents are off by about its inverse, and float32 still resolves
# what a block adds.
_DEEP = 1000.0
_STEPS, _REACHED = 100, 5e-3  # towards the state; what it may still change by, relative to its size
_KEPT = 1e-2  # of what a block adds to equal tokens, by which it may differ between them
_LARGEST_ERROR = 0.1  # of a rate


@dataclass(frozen=True)
class ConstantState:
    """How HFC/LFC changes near a state in which all tokens are equal."""

    way: Literal["log time", "geometric"]
    rate: float
    """log time: the exponent of depth, −1 at least; geometric: of log(HFC/LFC) per block. Above 0 nearly equal tokens
    drift apart. NaN where it is undecided.
    """
    error: float
    """By which the rate may be off."""
    why: Reason | None
    """Why it is undecided."""


def constant_state(
    block: Block, x: Tensor, way: Literal["log time", "geometric"], *, mask: Tensor | None = None, seed: int = 0
) -> ConstantState:
    """The rate of HFC/LFC near the constant state that the mean token of x leads to.

    Args:
        block: tokens to tokens, differentiable.
        x: ``(..., n, d)``; of several arrays the highest rate is given.
        way: log time for blocks whose tokens grow, geometric for others: `DepthPrediction.way`.
        mask: ``(..., n)``, True for the tokens that are measured.
        seed: of the random start of Arnoldi.
    """
    arguments.choice(way, "way", ("log time", "geometric"))
    if torch.finfo(x.dtype).eps > 1e-6:
        return ConstantState(way, math.nan, math.nan, Reason("half_precision"))
    grows = way == "log time"

    def image(y: Tensor) -> Tensor:
        """Of tokens: of their direction, what the block adds far out; else what it returns."""
        return block(_DEEP * y) - _DEEP * y if grows else block(y.clone())

    def length(x: Tensor) -> float:
        return float(torch.linalg.vector_norm(x))

    with torch.no_grad():
        y = token_mean(x, mask).expand_as(x)
        y = y * (length(image(y)) / length(y)) if grows else y
        step, before = 0.5 if grows else 1.0, math.inf
        for _ in range(_STEPS):
            there = image(y)
            mean = token_mean(there, mask).expand_as(x)
            if not length(centre_tokens(there, mask)) <= _KEPT * length(mean):
                return ConstantState(way, math.nan, math.nan, Reason("equal_tokens_part"))
            if (moved := length(mean - y) / length(mean)) <= _REACHED:
                break
            if grows:  # the flow ẏ = b(y) − y, with steps that do not overshoot
                step = min(0.5, 1.2 * step) if moved < 1.05 * before else step / 2
            y, before = y + step * (mean - y), moved
        else:
            return ConstantState(way, math.nan, math.nan, Reason("no_fixed_point"))
        at = _DEEP * y if grows else y
        system = _Derivative(block, at, mask, _DEEP if grows else None)
        score = (lambda t, reach, _: t.real + reach) if grows else (lambda t, reach, _: t.abs() + reach)
        found = extremal(system, score, tolerance=1e-2, most=48, restarts=4, seed=seed)
    value, error = float(found.score), float(found.slack)
    rate = value - 1 if grows else math.log(value) if value > 0 else -math.inf
    error = error if grows or not value else error / value
    if not bool(found.converged) or error > _LARGEST_ERROR:
        return ConstantState(way, math.nan, error, Reason("search_unfinished", error=finite(error)))
    return ConstantState(way, rate, error, None)


class _Derivative:
    """The derivative of a block on centred arrays, transposed, as a `LinearSystem` of one item; where tokens grow, of
    what the block adds.
    """

    items = 1

    def __init__(self, block: Block, at: Tensor, mask: Tensor | None, scale: float | None) -> None:
        self.at, self.mask, self.scale = at.clone().requires_grad_(), mask, scale
        with torch.enable_grad():
            self.returned = block(self.at.clone())
        self.size, self.dtype, self.device = at.numel(), at.dtype, at.device
        valid = at.shape[:-1].numel() if mask is None else int(mask.sum())
        self.rank = torch.tensor([(valid - at.shape[:-2].numel()) * at.shape[-1]], device=at.device)

    def apply(self, v: Tensor) -> Tensor:
        z = v.view_as(self.at)
        with torch.enable_grad():
            along = (self.returned * z).sum()  # a gradient along z; torch imports sympy for one that is given
        (product,) = torch.autograd.grad(along, self.at, retain_graph=True)
        return self.project(product if self.scale is None else self.scale * (product - z))

    def project(self, v: Tensor) -> Tensor:
        return centre_tokens(v.view_as(self.at), self.mask).reshape(1, -1)

    def select(self, index: Tensor) -> _Derivative:  # noqa: ARG002, of its one item
        return self
