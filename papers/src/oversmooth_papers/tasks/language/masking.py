"""Which tokens a masked model must find, and what stands in their place: BERT's rule."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth_papers.tasks.language.model import IGNORED

_MASKED, _OTHER = 0.8, 0.1  # of those to be found; the rest stand as they are


def hide(
    ids: Tensor, kinds: Tensor, fillers: Tensor, share: float, mask: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets, a pure function of the random numbers.

    Args:
        ids: ``(b, n)``.
        kinds: ``(b, n)`` uniform in [0, 1): below ``share`` a token is to be found; of those, 8 in 10 are masked, one
            in 10 is another token and one in 10 stands as it is.
        fillers: ``(b, n)`` uniform in [0, 1): which other token.
        share: of tokens to be found.
        mask: the token that hides one.
        vocabulary: kinds of tokens.
    """
    wanted, masked, other = kinds < share, kinds < share * _MASKED, kinds < share * (_MASKED + _OTHER)
    filler = (fillers * vocabulary).to(ids.dtype).clamp(max=vocabulary - 1)
    seen = torch.where(masked, mask, torch.where(other, filler, ids))
    return seen, torch.where(wanted, ids, IGNORED)
