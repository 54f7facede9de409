"""Verdicts over a batch, nested as a tensor's `tolist` would nest them."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

Words: TypeAlias = Any
"""A str for one case, nested lists of them for a batch; which of the two depends on the shape of the arguments."""


def nested(words: Sequence[str], shape: Sequence[int]) -> Words:
    """The words of a batch, nested by its shape.

    Args:
        words: one per entry of the batch, in the order of its flattened entries.
        shape: of the batch.

    >>> nested(["rough", "smooth"], (2, 1)), nested(["tie"], ())
    ([['rough'], ['smooth']], 'tie')
    """
    if not shape:
        return words[0]
    inner = math.prod(shape[1:])
    return [nested(words[i * inner : (i + 1) * inner], shape[1:]) for i in range(shape[0])]
