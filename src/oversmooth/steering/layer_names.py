"""Layers as a command line names them: ``first-half``, ``0,2,4-7``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from oversmooth.safety.errors import InputError


def layers_named(text: str) -> str | Iterator[int]:
    """Indices and ranges of indices, or a word that `steer` knows.

    A range is never made as a list: the first index that a model does not have ends it.

    >>> list(layers_named("0,2,4-6")), layers_named("first-half")
    ([0, 2, 4, 5, 6], 'first-half')
    """
    if not any(character.isdigit() for character in text):
        return text
    ranges: list[range] = []
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-") if not entry.strip().startswith("-") else (entry, "", "")
        try:
            ranges.append(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise InputError(f"layers {text!r} cannot be read at {entry!r}; give places such as 0,2,4-7") from None
    return itertools.chain.from_iterable(ranges)
