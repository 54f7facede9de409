"""Several processes, each of which takes snapshots: the mean over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from oversmooth.monitor.names import Row
from oversmooth.results.facts import plain


def mean_over(rows: list[Row | None]) -> Row | None:
    """The mean over the snapshots of all processes; None where one failed."""
    seen = [row for row in rows if row is not None]
    if len(seen) < len(rows):
        return None
    mean: Row = {"step": seen[0]["step"]}
    for name, first in seen[0].items():
        values = [row.get(name) for row in seen]
        if name != "step" and all(value is not None for value in values):
            several = isinstance(first, list)
            mean[name] = [_average(column) for column in zip(*values, strict=False)] if several else _average(values)
    return mean


def _average(values: Iterable[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return plain(sum(known) / len(known)) if known else None


def fingerprint(p: Tensor) -> float:
    local: Tensor = p.to_local() if hasattr(p, "to_local") else p
    return float(local.detach().flatten()[:4096].double().sum())
