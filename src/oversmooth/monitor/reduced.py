"""Gradients reduced to numbers that stay on their device: nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.metrics.moments import moments, scaled


def band_norms(gradient: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖G‖ of all that is there, and the share of ‖G‖² of valid tokens that lies in the band where they differ.

    gradient: ``(batch, n, d)``. mask: ``(batch, n)``: not 0 for valid tokens, None for all. Both are ``()`` in float32,
    and no device is waited for.
    """
    found = moments(scaled(gradient, None if mask is None else mask != 0))
    measured = found.count[:, 0] > 1  # one token alone differs from none
    high, low = (torch.where(measured, 2 * log[:, 0], -torch.inf) for log in (found.log_hfc, found.log_lfc))
    share = (high.logsumexp(0) - torch.logaddexp(high, low).logsumexp(0)).exp()
    share = torch.where(torch.where(measured, found.norms.sum(-1), 0.0).sum() == 0, 0.0, share)
    everything = scaled(gradient.reshape(1, -1, gradient.shape[-1]))
    norm = torch.linalg.vector_norm(everything.x * everything.share[..., None]) * everything.unit.amax()
    return norm, torch.where(measured.any(), share, torch.nan)
