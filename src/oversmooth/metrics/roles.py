"""Tokens by role: how those of one role differ among themselves and from the others, such as [CLS] from patches."""

import torch
from torch import Tensor

from oversmooth.metrics._tokens import safe_sqrt
from oversmooth.metrics.angle import over_pairs
from oversmooth.metrics.moments import reducing


@reducing
def by_role(x: Tensor, roles: Tensor) -> dict[str, Tensor]:
    """Metrics of the tokens of each role, ``(..., R)`` each, NaN where they have no meaning.

    "norm" is the mean norm over that of all tokens; "hfc_lfc" and "cos" are those of the role's tokens alone, and need
    two of them; "cos_others" is the mean cosine with tokens of all other roles.

    Args:
        x: ``(..., n, d)``, tokens by features.
        roles: ``(..., R, n)``, true where a token has a role; a token has one at most, or none.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    of, used = roles.to(x.dtype), roles.any(-2)
    x = torch.where(used[..., None], x, 0.0)
    norms, count = torch.linalg.vector_norm(x, dim=-1), of.sum(-1)
    # About the mean of all, so that no digits are lost where tokens are nearly equal.
    centre = x.sum(-2, keepdim=True) / used.sum(-1)[..., None, None]
    away = torch.linalg.vector_norm(x - centre, dim=-1, keepdim=True).square()
    means = of @ x / count[..., None]
    squares = (of @ away)[..., 0] - count * (means - centre).square().sum(-1)
    sums = (of / torch.where(norms > 0, norms, 1.0)[..., None, :]) @ x  # of directions
    others = count.sum(-1, keepdim=True) - count
    cosines = (sums * (sums.sum(-2, keepdim=True) - sums)).sum(-1)
    ratio = safe_sqrt(squares.clamp(min=0) / (count * means.square().sum(-1)))
    return {
        "norm": (of @ norms[..., None])[..., 0] / count / (norms.sum(-1) / used.sum(-1))[..., None],
        "hfc_lfc": torch.where(count > 1, ratio, torch.nan),
        "cos": over_pairs(sums.square().sum(-1) - count, count, -1.0),
        "cos_others": torch.where((count > 0) & (others > 0), cosines / (count * others), torch.nan),
    }
