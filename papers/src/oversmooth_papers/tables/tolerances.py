"""How far a score may lie from the same score again."""

from __future__ import annotations

import math


def allowed(score: str, value: float, *, share: float = 1.0, tested: int = 0, rounded: bool = False) -> float:
    """The largest difference where the same file is tested on another device.

    Args:
        score: its name.
        value: what it was.
        share: of the images that it was of, where only some are tested: three standard errors are allowed for that.
        tested: the number of images now; 0 where it is none of images.
        rounded: whether one of the two is of the weights before they were rounded to bf16. Of few images, two may
            change sides.
    """
    if "perplexity" in score:
        return (0.03 if rounded else 0.01) * value
    sampling = 3 * math.sqrt(max(value * (1 - value), 1e-4) * (1 - share) / max(1, tested))
    return 0.003 + sampling + (max(0.005, 2 / tested if tested else 0.0) if rounded else 0.0)
