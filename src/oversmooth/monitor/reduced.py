"""Arrays of a training reduced to numbers that stay on their device: nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor


def token_numbers(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means over a batch of log HFC/LFC and of the mean cosine, without waiting for a device.

    Inputs with fewer than two tokens that count are left out; NaN where none is left, or a token is not finite.

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
    mean = x.sum(-2) / tokens.clamp(min=1)[:, None]
    centred = (x - mean[:, None]) * shown[..., None]
    high = torch.linalg.vector_norm(centred, dim=(-2, -1))
    low = torch.linalg.vector_norm(mean, dim=-1) * tokens.sqrt()
    norms = torch.linalg.vector_norm(x, dim=-1)
    unit = x / torch.where(norms == 0, 1.0, norms)[..., None]
    directed = (norms != 0).sum(-1).float()  # NaN counts, and makes the mean NaN
    cos = (unit.sum(-2).square().sum(-1) - directed) / (directed * (directed - 1)).clamp(min=1)
    finite = x.isfinite().all(-1).all(-1)
    counts = (directed > 1) | ~finite
    ratios = torch.where(finite, high.log() - low.log(), torch.nan)
    cosines = torch.where(finite, cos.clamp(-1, 1), torch.nan)
    log_ratio, cosine = (torch.where(counts, values, 0.0).sum() / counts.sum() for values in (ratios, cosines))
    return log_ratio, cosine


def band_norms(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """‖G‖ and the share of ‖G‖² that lies in the band in which tokens differ.

    Args:
        gradient: ``(batch, n, d)``.

    Returns:
        ``()`` each, in float32.
    """
    gradient = gradient.detach().float()
    total = torch.linalg.vector_norm(gradient)
    high = torch.linalg.vector_norm(gradient - gradient.mean(-2, keepdim=True))
    return total, torch.where(total > 0, (high / torch.where(total > 0, total, 1.0)).square(), 0.0)
