"""What X tends to when the rough part wins: an eigenarray of the update, and its ratio, angle and rank (THEORY §3).

Taken by `dominance` wherever a route built the eigenarray: whether its rank is one decides about two notions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.metrics import cosine, hfc, input_convergence, lfc, sigma_ratio

# A turn is searched at this many phases (cosines, which are cheap and turn fast, at twice as many), and around so many
# peaks of them so many times again, at these many phases between the neighbours of the best.
_PHASES, _PEAKS, _ZOOMS, _NEAR = 32, 2, 3, 7


@dataclass(frozen=True)
class LimitArray:
    """The limit ``X_L ∝ Re(e^{iφ_L} X)``, fixed if the dominating eigenvalue is real, turning if it is complex.

    Each metric is given as its (smallest, largest) value over the turn, ``(...)`` each; the two agree where nothing
    turns. Those of the ratio are exact, the others come from a search over the phase, which may miss a narrow peak:
    where a token passes near zero its direction turns fast.
    """

    array: Tensor
    """``(..., n, d)`` complex, X, of unit norm."""
    turns: Tensor
    """``(...)``, whether the eigenvalue is complex."""
    hfc_lfc: tuple[Tensor, Tensor]
    """``‖HFC‖_F / ‖LFC‖_F``."""
    cos: tuple[Tensor, Tensor]
    """Mean cosine."""
    abs_cos: tuple[Tensor, Tensor]
    """Mean absolute cosine."""
    sigma_ratio: tuple[Tensor, Tensor]
    """``σ₂/σ₁``."""

    @classmethod
    def of(cls, array: Tensor, eigenvalue: Tensor, mask: Tensor | None) -> LimitArray:
        """The limit that an eigenarray ``(..., n, d)`` stands for, of any phase and length, by its eigenvalue."""
        flat = array.flatten(-2)
        largest = flat.gather(-1, flat.abs().argmax(-1, keepdim=True))
        # A real eigenvalue's array is real up to a phase, which is removed.
        flat = flat * (largest.conj() / largest.abs())
        flat = flat / torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
        array = flat.reshape(array.shape)
        eps = torch.finfo(array.real.dtype).eps
        turns = eigenvalue.imag.abs() > eps**0.5 * eigenvalue.abs()
        still = input_convergence(array.real, mask=mask)
        low, high = _ratio_over_a_turn(array, mask)

        def span(metric: Callable[..., Tensor], phases: int = _PHASES) -> tuple[Tensor, Tensor]:
            return _over_a_turn(array, turns, mask, metric, phases)

        return cls(
            array=array,
            turns=turns,
            hfc_lfc=(torch.where(turns, low.to(still), still), torch.where(turns, high.to(still), still)),
            cos=span(cosine, 2 * _PHASES),
            abs_cos=span(lambda x, mask: cosine(x, absolute=True, mask=mask), 2 * _PHASES),
            sigma_ratio=span(sigma_ratio),
        )


def _ratio_over_a_turn(array: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The least and the greatest ‖HFC‖/‖LFC‖ of ``cos φ Re X − sin φ Im X``, ``(...)`` each; ∞ where LFC vanishes.

    Their squares are the roots x of ``det(high − x low)``, of both parts' 2 by 2 Gram matrices.
    """
    pair = torch.stack([array.real.double(), -array.imag.double()], dim=-3)
    keep = None if mask is None else mask.expand(array.shape[:-1])[..., None, :].expand(pair.shape[:-1])
    low, high = (part @ part.mT for part in (lfc(pair, mask=keep).flatten(-2), hfc(pair, mask=keep).flatten(-2)))
    rounding = max((16 * torch.finfo(array.real.dtype).eps) ** 2, 8 * torch.finfo(pair.dtype).eps)

    def determinant(G: Tensor) -> Tensor:
        ad, bc = G[..., 0, 0] * G[..., 1, 1], G[..., 0, 1].square()
        size = (G[..., 0, 0] + G[..., 1, 1]).square()
        return torch.where(ad - bc <= rounding * size, 0.0, ad - bc)

    mixed = low[..., 0, 0] * high[..., 1, 1] + low[..., 1, 1] * high[..., 0, 0] - 2 * low[..., 0, 1] * high[..., 0, 1]
    of_low, of_high = determinant(low), determinant(high)
    larger = mixed + (mixed.square() - 4 * of_low * of_high).clamp(min=0).sqrt()
    least = torch.where(larger == 0, torch.inf, 2 * of_high / larger)
    return least.sqrt(), torch.where(of_low == 0, torch.inf, larger / (2 * of_low)).sqrt()


def _over_a_turn(
    array: Tensor, turns: Tensor, mask: Tensor | None, metric: Callable[..., Tensor], phases: int
) -> tuple[Tensor, Tensor]:
    """The least and the greatest of a metric over the turn, ``(...)`` each."""
    still = metric(array.real, mask=mask)
    least, greatest = still.clone(), still.clone()
    if bool(turns.any()):
        keep = None if mask is None else mask.expand(array.shape[:-1])[turns]
        least[turns], greatest[turns] = _extremes(array[turns], keep, metric, phases)
    return least, greatest


def _extremes(array: Tensor, mask: Tensor | None, metric: Callable[..., Tensor], phases: int) -> tuple[Tensor, Tensor]:
    """Of arrays ``(items, n, d)`` that turn: searched around the best peaks of a grid, as there may be several."""

    def at(phase: Tensor) -> Tensor:
        """The metric at phases ``(phases, items)``."""
        c, s = phase.cos()[..., None, None], phase.sin()[..., None, None]
        turned = c * array.real - s * array.imag
        return metric(turned, mask=None if mask is None else mask.expand(turned.shape[:-1]))

    dtype, device = array.real.dtype, array.device
    grid = (math.pi / phases * torch.arange(phases, dtype=dtype, device=device))[:, None].expand(-1, len(array))
    around = torch.linspace(-1, 1, _NEAR, dtype=dtype, device=device)[:, None]
    values, ends = torch.cat([at(part) for part in grid.split(_NEAR)]), []
    for sign in (-1.0, 1.0):
        height = (sign * values).nan_to_num(nan=-torch.inf)
        # Half a turn only changes the array's sign, so that the first phase follows the last.
        is_peak = (height >= height.roll(1, 0)) & (height >= height.roll(-1, 0))
        peaks = torch.where(is_peak, height, -torch.inf).topk(_PEAKS, dim=0).indices
        best = (sign * values).amax(0)
        for peak in peaks:
            middle, width = grid.gather(0, peak[None]), math.pi / phases
            for _ in range(_ZOOMS):
                phase = middle + width * around
                near = sign * at(phase)
                middle, width = phase.gather(0, near.argmax(0, keepdim=True)), 2 * width / (_NEAR - 1)
                best = torch.maximum(best, near.amax(0))
        ends.append(sign * best)
    return ends[0], ends[1]
