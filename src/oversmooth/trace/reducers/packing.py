"""Numbers that stay on their device until one copy fetches all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K")


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU, by one copy per dtype and device.

    Args:
        tensors: of any shapes.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        alike.setdefault((tensor.dtype, tensor.device), []).append(index)
    found: dict[int, Tensor] = {}
    for indices in alike.values():
        packed = torch.cat([tensors[index].detach().reshape(-1) for index in indices]).cpu()
        parts = packed.split([tensors[index].numel() for index in indices])
        found |= {index: part.reshape(tensors[index].shape) for index, part in zip(indices, parts, strict=True)}
    return [found[index] for index in range(len(tensors))]


def fetch_rows(rows: Sequence[Mapping[K, Tensor]]) -> list[dict[K, Tensor]]:
    """As `fetch`, for tensors by name.

    Args:
        rows: one per site, say.
    """
    values = iter(fetch([value for row in rows for value in row.values()]))
    return [{name: next(values) for name in row} for row in rows]
