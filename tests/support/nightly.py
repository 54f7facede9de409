"""What takes long runs in `make nightly` alone; `make test` takes a fixed sample of it, `make quick` a smaller one."""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

NIGHTLY = bool(os.environ.get("OVERSMOOTH_NIGHTLY"))
QUICK = bool(os.environ.get("OVERSMOOTH_QUICK"))
T = TypeVar("T")

nightly = pytest.mark.skipif(not NIGHTLY, reason="takes long; runs in make nightly")


def few(examples: int) -> int:
    """So many examples of a property that takes long, and ten times as many at night."""
    return 10 * examples if NIGHTLY else examples


def some(items: Iterable[T], every: int) -> list[T]:
    """One in so many, and all of them at night."""
    return list(items)[:: 1 if NIGHTLY else every]
