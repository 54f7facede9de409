"""Precision of float32 matrix products, which a GPU may round to TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Set the precision, as in `torch.set_float32_matmul_precision`, within the block.

    A setting by backend (`torch.backends.cuda.matmul.fp32_precision`) stays: torch does not allow both.
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
