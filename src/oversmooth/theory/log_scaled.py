"""Arrays of unit norm with a logarithmic scale of their own, however large or small they become."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.theory.tokens import centre_tokens, token_mean


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


def no_scale(X: Tensor) -> Tensor:
    """A scale of one, ``(..., 1, 1)``, as a logarithm."""
    return torch.zeros_like(X[..., :1, :1], dtype=torch.float64)


def split(X: Tensor, tokens: Tensor | None) -> TokenParts:
    """X as its constant and centred parts."""
    zero = no_scale(X)
    return TokenParts(*rescaled(token_mean(X, tokens), zero), *rescaled(centre_tokens(X, tokens), zero))
