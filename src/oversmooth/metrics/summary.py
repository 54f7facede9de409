"""The cheap metrics of a token array in one sweep, for observing a model while it runs.

Each value is that of the function of the same name; this only shares the passes over memory, which are what slows a
forward pass on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.metrics._tokens import count, largest, prepare
from oversmooth.safety import arguments

# Entries of one block of pairwise cosines: 4 MiB in float32, which stays in the cache.
_BLOCK = 1 << 20
# HFC/LFC below which the rounding of the mean shows.
_NEARLY_EQUAL = 1e-3
_SMALL, _LARGE = 1e-12, 1e12  # norms whose squares, and their sums, are far from the ends of float32


@dataclass(frozen=True)
class Summary:
    """The metrics that `summary` takes, ``(...)`` each."""

    log_hfc: Tensor
    """``log ‖HFC‖_F``."""
    log_lfc: Tensor
    """``log ‖LFC‖_F``."""
    cos: Tensor
    """Mean cosine."""
    abs_cos: Tensor
    """Mean absolute cosine."""
    token_norms: Tensor
    """``(..., n)``, the length of each token; zero where hidden."""

    @property
    def log_hfc_lfc(self) -> Tensor:
        """``log(‖HFC‖_F / ‖LFC‖_F)``."""
        return self.log_hfc - self.log_lfc


@torch.no_grad()
def summary(x: Tensor, *, mask: Tensor | None = None, cosines: bool = True) -> Summary:
    """HFC, LFC, both cosines and the token norms of x, in one sweep.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the tokens that count; None: all of them.
        cosines: False leaves them NaN, and saves most of the time.
    """
    x, mask = prepare(x, mask)
    cosines = arguments.flag(cosines, "cosines")
    tokens = count(x, mask)
    directions, norms = x, torch.linalg.vector_norm(x, dim=-1)
    log_scale = torch.zeros((), dtype=x.dtype, device=x.device)
    lengths = norms
    if not bool(((norms > _SMALL) & (norms < _LARGE)).all()):
        # Squares may overflow or underflow (or a token is hidden, or zero): at unit size they do not. For directions
        # every token has a size of its own, as one may be far shorter than another.
        own, scale = (_finite(largest(x, dim)) for dim in (-1, (-2, -1)))
        directions, x = x / own, x / scale
        norms, log_scale = torch.linalg.vector_norm(directions, dim=-1), scale.log().expand(*x.shape[:-2], 1, 1)
        log_scale, lengths = log_scale[..., 0, 0], norms * own.expand(*x.shape[:-1], 1)[..., 0]
    mean = x.sum(-2, keepdim=True) / tokens[..., None, None]
    centred = x - mean if mask is None else (x - mean).mul_(mask[..., None])
    high = torch.linalg.vector_norm(centred, dim=(-2, -1))
    low = torch.linalg.vector_norm(mean, dim=(-2, -1)) * tokens.sqrt()
    if bool((high < _NEARLY_EQUAL * low).any()):
        # Centring twice removes the rounding error of the mean itself, as in `hfc`: equal tokens give zero.
        centred = centred - centred.sum(-2, keepdim=True) / tokens[..., None, None]
        centred = centred if mask is None else centred.mul_(mask[..., None])
        high = torch.linalg.vector_norm(centred, dim=(-2, -1))
    high, low = high.log() + log_scale, low.log() + log_scale
    if not cosines:
        none = torch.full_like(high, torch.nan)
        return Summary(high, low, none, none, lengths)
    # centred is no longer needed
    unit = torch.div(directions, torch.where(norms == 0, 1.0, norms)[..., None], out=centred)
    directed = (norms > 0).sum(-1).to(x.dtype)
    pairs = directed * (directed - 1)
    total = unit.sum(-2).square().sum(-1)

    def over_pairs(summed: Tensor, least: float) -> Tensor:
        # Within what a cosine can be, which rounding oversteps, as in `cosine`.
        return torch.where(pairs > 0, ((summed - directed) / pairs.clamp(min=1)).clamp(least, 1.0), torch.nan)

    return Summary(high, low, over_pairs(total, -1.0), over_pairs(_absolute(unit), 0.0), lengths)


def _finite(scale: Tensor) -> Tensor:
    """1 where it is not."""
    return torch.where(scale.isfinite(), scale, 1.0)


def _absolute(unit: Tensor) -> Tensor:
    """Sum of absolute cosines over all pairs, each with itself included."""
    n, d = unit.shape[-2:]
    flat = unit.reshape(unit.shape[:-2].numel(), n, d)
    arrays = max(1, _BLOCK // max(1, n * n))
    rows = max(1, min(n, _BLOCK // max(1, n)))
    sums = []
    for part in flat.split(arrays):
        total, columns = part.new_zeros(len(part)), part.mT.contiguous()  # laid out so, products are a fifth faster
        for some in part.split(rows, dim=1) if n else ():
            total = total + (some @ columns).abs_().sum((-2, -1))
        sums.append(total)
    return torch.cat(sums).reshape(unit.shape[:-2]) if sums else unit.new_zeros(unit.shape[:-2])
