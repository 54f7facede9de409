"""What X tends to when the rough part wins: an eigenarray of the update, and its ratio, angle and rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.metrics import cosine, input_convergence, sigma_ratio

_PHASES = 16


@dataclass(frozen=True)
class LimitArray:
    """``X_L ∝ Re(e^{iφ_L} X)``: one array if the dominating eigenvalue is real, a turning one if it is complex.

    Each number is given as its (smallest, largest) value over the turn, ``(...)`` each; the two agree where nothing
    turns.
    """

    array: Tensor
    """X, ``(..., n, d)`` complex, of unit norm."""
    turns: Tensor
    hfc_lfc: tuple[Tensor, Tensor]
    cos: tuple[Tensor, Tensor]
    abs_cos: tuple[Tensor, Tensor]
    sigma_ratio: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, array: Tensor, eigenvalue: Tensor, mask: Tensor | None) -> LimitArray:
        """From an eigenarray ``(..., n, d)`` of any phase and length, its eigenvalue ``(...)`` and the tokens that
        count.
        """
        flat = array.flatten(-2)
        largest = flat.gather(-1, flat.abs().argmax(-1, keepdim=True))
        # A real eigenvalue's array is real up to one phase; give it that one.
        flat = flat * (largest.conj() / largest.abs())
        flat = flat / torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
        array = flat.reshape(array.shape)
        eps = torch.finfo(array.real.dtype).eps
        turns = eigenvalue.imag.abs() > eps**0.5 * eigenvalue.abs()
        phases = [math.pi * p / _PHASES for p in range(_PHASES)]
        turned = torch.stack([math.cos(p) * array.real - math.sin(p) * array.imag for p in phases])
        turned = torch.where(turns[..., None, None], turned, array.real)
        keep = None if mask is None else mask.expand(turned.shape[:-1])

        def span(values: Tensor) -> tuple[Tensor, Tensor]:
            return values.amin(0), values.amax(0)

        return cls(
            array=array,
            turns=turns,
            hfc_lfc=span(input_convergence(turned, mask=keep)),
            cos=span(cosine(turned, mask=keep)),
            abs_cos=span(cosine(turned, absolute=True, mask=keep)),
            sigma_ratio=span(sigma_ratio(turned, mask=keep)),
        )
