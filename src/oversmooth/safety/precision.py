"""How products of float32 matrices are computed: a GPU may round what it multiplies to TF32, where it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Within the block products have this precision, of those that `torch.set_float32_matmul_precision` takes.

    Where the setting was made by backend (`torch.backends.cuda.matmul.fp32_precision`), which torch does not let be
    mixed with this one, it is left alone.
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
