"""How far a score may lie from the same score again."""

from __future__ import annotations

import math

_ACCURACY = 0.003  # a share of the images
_PERPLEXITY = 0.01  # relative
_ROUNDED_ACCURACY, _ROUNDED_PERPLEXITY = 0.005, 0.02


def tested_again(score: str, value: float, share: float, tested: int) -> float:
    """Where the same file is tested on another device, or on a share of the test images.

    Args:
        score: its name.
        value: what it was.
        share: of the images that it was of.
        tested: their number now; 0 where it is none of images.
    """
    if "perplexity" in score:
        return _PERPLEXITY * value
    allowed = _ACCURACY
    if share < 1:  # three standard errors of a sample's share
        allowed += 3 * math.sqrt(max(value * (1 - value), 1e-4) * (1 - share) / max(1, tested))
    return allowed


def weights_rounded(score: str, value: float, tested: int) -> float:
    """Where weights were rounded to bf16: of few images, by two of them."""
    if "perplexity" in score:
        return _ROUNDED_PERPLEXITY * value
    return max(_ROUNDED_ACCURACY, 2 / tested if tested else 0.0)
