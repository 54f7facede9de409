"""Arrays of a training reduced to numbers that stay on their device: nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.trace.depths import mean_of_counted


def token_numbers(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means over a batch of log HFC/LFC and of the mean cosine, without waiting for a device.

    Inputs with fewer than two tokens that count are left out; NaN where none is left, or a token is not finite, and the
    cosine where one has fewer than two tokens that are not zero.

    Args:
        x: ``(batch, n, d)``: tokens.
        mask: ``(batch, n)``: not 0 for tokens that count; None: all.

    Returns:
        ``()`` each, in float32.
    """
    x = x.float()
    shown = torch.ones(x.shape[:2], device=x.device) if mask is None else (mask != 0).float()
    x = torch.where(shown[..., None] > 0, x, 0.0)
    tokens = shown.sum(-1)
    # At unit size squares neither overflow nor underflow; each token has its own for its direction.
    sizes = x.abs().amax(-1)
    finite = sizes.isfinite().all(-1)
    directions = x / _divisor(sizes)[..., None]
    norms = torch.linalg.vector_norm(directions, dim=-1)
    unit = directions / torch.where(norms == 0, 1.0, norms)[..., None]
    directed = (norms != 0).sum(-1).float()
    pairs = directed * (directed - 1)
    cos = (unit.sum(-2).square().sum(-1) - directed) / pairs.clamp(min=1)
    x = x / _divisor(sizes.amax(-1))[:, None, None]
    mean = x.sum(-2) / tokens.clamp(min=1)[:, None]
    centred = (x - mean[:, None]) * shown[..., None]
    high = torch.linalg.vector_norm(centred, dim=(-2, -1))
    low = torch.linalg.vector_norm(mean, dim=-1) * tokens.sqrt()
    ratios = torch.where(finite, high.log() - low.log(), torch.nan)
    cosines = torch.where(finite & (pairs > 0), cos.clamp(-1, 1), torch.nan)
    return mean_of_counted(ratios, tokens > 1), mean_of_counted(cosines, tokens > 1)


def band_norms(gradient: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖G‖ of all that is there, and the share of ‖G‖² of tokens that count which lies in the band where they differ.

    Args:
        gradient: ``(batch, n, d)``.
        mask: ``(batch, n)``: not 0 for tokens that count; None: all.

    Returns:
        ``()`` each, in float32.
    """
    gradient = gradient.detach().float()
    shown = torch.ones(gradient.shape[:2], device=gradient.device) if mask is None else (mask != 0).float()
    shown = shown * (shown.sum(-1, keepdim=True) > 1)  # one token alone differs from none
    size = _divisor(gradient.abs().amax())
    gradient = gradient / size
    norm = torch.linalg.vector_norm(gradient) * size
    gradient = torch.where(shown[..., None] > 0, gradient, 0.0)
    mean = gradient.sum(-2, keepdim=True) / shown.sum(-1).clamp(min=1)[:, None, None]
    total = torch.linalg.vector_norm(gradient)
    high = torch.linalg.vector_norm((gradient - mean) * shown[..., None])
    share = torch.where(total == 0, 0.0, (high / total).square())
    return norm, torch.where(shown.any(), share, torch.nan)


def _divisor(size: Tensor) -> Tensor:
    """1 where it is zero or not finite."""
    return torch.where((size > 0) & size.isfinite(), size, 1.0)
