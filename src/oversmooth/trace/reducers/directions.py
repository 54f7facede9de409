"""The first singular values of a token array by a few directions that are followed from site to site.

The stream of a model changes little from one site to the next, so its singular directions do too: a fixed number of
steps of subspace iteration finds them, without waiting for a device, where a decomposition takes many times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.metrics.moments import Scaled, product, reducing

FOLLOWED = 16
"""Directions. On DeiT-Tiny, stories15m and MiniLM 16 leave σ₂/σ₁ off by 5e-4 at most, 12 by 3.3e-3, and two by 2 to
26 %; products with 8 to 16 columns take the same time."""
COLD, WARM = 4, 3
"""Steps where no directions are known yet, and from those of the site before, where two leave up to 5e-3."""
_RESOLVED = 1e-4
# σ₂/σ₁ below which float32 does not know three digits of it.


class Directions:
    """Singular directions of each array of a batch, over the sites of one pass: `COLD` steps at the first site, or
    where arrays change their shape, `WARM` at any other.
    """

    def __init__(self) -> None:
        self.basis: Tensor | None = None
        """``(batch, d, k)``: where the next site starts."""
        self.start = torch.empty(0)
        """``(batch, d, k)``: where the first one did."""
        self.used: Tensor | None = None
        """``(batch, d, k)``: the orthonormal directions of the last site."""

    @reducing
    def update(self, tokens: Scaled) -> Tensor:
        """Follow the directions to another site, ``(batch, n, d)``.

        Returns ``(batch, 2, k, k)``: ``(XV)ᵀ(XV)`` and ``(XᵀXV)ᵀ(XᵀXV)``, for `singular_values`; X divided by the
        largest unit of its tokens.
        """
        x, squared = tokens.quick, tokens.share.square()[..., None]
        shape = (x.shape[0], x.shape[2], min(FOLLOWED, *x.shape[1:]))
        warm = self.basis is not None and self.basis.shape == shape and self.basis.device == x.device
        if self.basis is None or not warm:
            self.start = self.basis = orthonormal(noise(shape, tokens.x))
        basis = self.basis
        for _ in range((WARM if warm else COLD) - 1):
            along = (x @ basis.to(x.dtype)) * squared.to(x.dtype)
            basis = orthonormal((x.mT @ along).to(basis.dtype))
        x = tokens.x if tokens.dtype == torch.float16 else x  # no digit may be lost in the last step
        along = product(x, basis)
        image = product(x.mT, along * squared)
        # Columns of an array of lower rank, or that are not numbers, are no start for the next.
        usable = image.square().sum(-2, keepdim=True)
        usable = (usable > 0) & usable.isfinite()
        self.used, self.basis = basis, orthonormal(torch.where(usable, image, self.start))
        along = along * tokens.share[..., None]
        return torch.stack([along.mT @ along, image.mT @ image], 1)


def orthonormal(v: Tensor) -> Tensor:
    """An orthonormal basis of the columns, ``(..., d, k)``; a column that depends on those before may come out short.

    By one Cholesky factor in float64: in float32 two fail where columns are as parallel as those of a first step are.
    """
    wide = v if v.device.type == "mps" else v.double()
    gram = wide.mT @ wide
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    length = gram.diagonal(dim1=-2, dim2=-1).sqrt().clamp(min=torch.finfo(v.dtype).tiny)
    equal = gram / length[..., None] / length[..., None, :]
    factor, _ = torch.linalg.cholesky_ex(equal + 10 * torch.finfo(gram.dtype).eps * eye)
    inverse = torch.linalg.solve_triangular(factor, eye.expand_as(gram), upper=False) / length[..., None, :]
    return (wide @ inverse.mT).to(v.dtype)


def noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Numbers from −1 to 1 that look random, the same for every array of a batch, ``(batch, d, k)``.

    No generator draws them, so that a CUDA graph may be captured and no training's random numbers move on.
    """
    _, d, k = shape
    steps = torch.arange(1, d * k + 1, device=like.device)
    mixed = steps * 2654435769 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return ((mixed ^ (mixed >> 13)).to(like.dtype) / 2**31 - 1).reshape(d, k).expand(shape)


def singular_values(grams: Tensor) -> tuple[Tensor, Tensor]:
    """What the products of `Directions.update` say, ``(..., 2, k, k)``, on the host.

    Returns ``(..., k)``: singular values in descending order, in float64, and ``(...)``: the relative error of the
    first two that is to be expected; infinite where the second is too small for float32.
    """
    first, second = grams.double().unbind(-3)
    known = first.isfinite().all(-1).all(-1) & second.isfinite().all(-1).all(-1)
    first, second = (torch.where(known[..., None, None], gram, 0.0) for gram in (first, second))
    values, vectors = torch.linalg.eigh(first)
    there = values > 1e-14 * values[..., -1:]
    scale = torch.where(there, values.abs().rsqrt(), 0.0)
    # Those of XXᵀ on the columns of XV: nearer by half a step than those of XᵀX on V.
    better = torch.linalg.eigvalsh(scale[..., None] * (vectors.mT @ second @ vectors) * scale[..., None, :])
    plain, better = values.flip(-1).clamp(min=0), better.flip(-1).clamp(min=0)
    top, last = better[..., :2], better[..., -1:]
    # A share ε² of another direction, with eigenvalue μ, leaves λ − ε²(λ − μ) of an eigenvalue λ. Half a step later μ/λ
    # of that error is left; for what was not followed, μ lies below the last. Twice that was seen, so λ stands for σ.
    left = last / (top - last)
    error = ((top - plain[..., :2]).abs() / top * left).nan_to_num(0.0, torch.inf).amax(-1)
    if better.shape[-1] > 1:
        error = torch.where(better[..., 1] < _RESOLVED**2 * better[..., 0], torch.inf, error)
    return better.sqrt().where(known[..., None], torch.nan), error.where(known, torch.nan)


def ranks_of_directions(grams: Tensor, squares: Tensor) -> dict[str, Tensor]:
    """Stable rank, σ₂/σ₁ and the distance to rank one, ``(...)`` each, in float64, of such products and ``‖X‖_F²``
    ``(...)``, divided as X was; "directions_error" is the relative error to be expected of the worst of the three.
    """
    s, error = singular_values(grams)
    squares, first = squares.double(), s[..., 0].square()
    second = s[..., 1] if s.shape[-1] > 1 else torch.zeros_like(s[..., 0])
    # Near rank one the difference to one is rounding; there the directions hold nearly all.
    others = torch.maximum(1 - first / squares, s[..., 1:].square().sum(-1) / squares)
    return {
        "stable_rank": squares / first,
        "sigma_ratio": second / s[..., 0],
        "rank_one_distance": others.sqrt(),
        "directions_error": torch.maximum(error, torch.finfo(torch.float32).eps / others),
    }
