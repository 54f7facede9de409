"""Arrays of a training reduced to numbers that stay on their device: nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.metrics.moments import moments, reducing, scaled


@reducing
def token_numbers(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means over a batch of log HFC/LFC and of the mean cosine, ``()`` each in float32, without waiting for a device.

    Inputs with fewer than two valid tokens are left out; NaN where none is left, or a token is not finite, and the
    cosine where one has fewer than two tokens that are not zero. mask: ``(batch, n)``, not 0 for valid tokens, None for
    all.
    """
    found = moments(scaled(x, None if mask is None else mask != 0))
    measured, ratios = found.count[:, 0] > 1, (found.log_hfc - found.log_lfc)[:, 0]
    one, two = (torch.where(measured, values, 0.0).sum() / measured.sum() for values in (ratios, found.cos[:, 0]))
    return one, two


def band_norms(gradient: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """‖G‖ of all that is there, and the share of ‖G‖² of valid tokens that lies in the band where they differ.

    gradient: ``(batch, n, d)``; mask and results as above.
    """
    found = moments(scaled(gradient, None if mask is None else mask != 0))
    measured = found.count[:, 0] > 1  # one token alone differs from none
    high, low = (torch.where(measured, 2 * log[:, 0], -torch.inf) for log in (found.log_hfc, found.log_lfc))
    share = (high.logsumexp(0) - torch.logaddexp(high, low).logsumexp(0)).exp()
    share = torch.where(torch.where(measured, found.norms.sum(-1), 0.0).sum() == 0, 0.0, share)
    everything = scaled(gradient.reshape(1, -1, gradient.shape[-1]))
    norm = torch.linalg.vector_norm(everything.x * everything.share[..., None]) * everything.unit.amax()
    return norm, torch.where(measured.any(), share, torch.nan)
