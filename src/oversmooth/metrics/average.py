"""Averages of a metric over batches and processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oversmooth.safety import arguments


@dataclass(frozen=True)
class Averaged:
    """The result of an `Average`."""

    mean: float
    """NaN before the first value."""
    spread: float
    """The standard deviation over the values (n − 1); NaN with fewer than two."""
    count: int
    """How many values are in the mean."""
    undefined: int
    """How many values were NaN."""


class Average:
    """Mean and spread of a metric over all batches it was updated with.

    Args:
        metric: a function of tokens ``(..., n, d)`` with a keyword ``mask``, such as `cosine`.
        skip_undefined: leave undefined values (NaN) out of the mean and count them in ``undefined``; otherwise a single
            one makes the mean NaN.
        **settings: passed to the metric.

    >>> from oversmooth.metrics import stable_rank
    >>> average = Average(stable_rank)
    >>> average.update(torch.eye(3).expand(2, 3, 3))
    >>> average.update(torch.ones(1, 3, 3))
    >>> averaged = average.compute()
    >>> round(averaged.mean, 4), round(averaged.spread, 4), averaged.count
    (2.3333, 1.1547, 3)
    """

    def __init__(self, metric: Callable[..., Tensor], *, skip_undefined: bool = False, **settings: Any) -> None:
        self.metric = metric
        self.settings = settings
        self.skip_undefined = skip_undefined
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        # count, mean, sum of squared deviations, undefined: Chan's formula merges them without cancellation.
        self._state = torch.zeros(4, dtype=torch.float64)
        self._device = torch.device("cpu")

    @torch.no_grad()
    def update(self, x: Tensor, *, mask: Tensor | None = None) -> None:
        """Add one batch; each of its leading entries counts once, whatever the batch's size.

        Args:
            x: ``(batch, ..., n, d)``, tokens by features.
            mask: ``(batch, ..., n)``, true for the tokens that count; None: all of them.
        """
        x = arguments.tensor(x, "a batch", "(batch, ..., n, d)", least=3)
        self._device = x.device
        values = self.metric(x, mask=mask, **self.settings).double().flatten()
        undefined = values.isnan()
        if self.skip_undefined:
            values = values[~undefined]
        if len(values):
            mean = values.mean()
            parts = [float(len(values)), mean, (values - mean).square().sum(), undefined.sum()]
            state = torch.stack([torch.as_tensor(p, dtype=torch.float64, device=x.device) for p in parts]).cpu()
        else:
            state = torch.tensor([0.0, 0.0, 0.0, float(undefined.sum())], dtype=torch.float64)
        self._state = _merge(self._state, state)

    def compute(self) -> Averaged:
        """Mean and spread so far.

        Under ``torch.distributed`` over the data of all processes, uneven shares included; every process must call it.
        """
        count, mean, deviations, undefined = self._gathered().tolist()
        return Averaged(
            mean=mean if count else math.nan,
            spread=math.sqrt(deviations / (count - 1)) if count > 1 else math.nan,
            count=int(count),
            undefined=int(undefined),
        )

    def _gathered(self) -> Tensor:
        if not (dist.is_available() and dist.is_initialized()):
            return self._state
        # NCCL gathers only what lies on the GPU, gloo what lies on either.
        device = self._device if dist.get_backend() == "nccl" else torch.device("cpu")
        states = [torch.empty(4, dtype=torch.float64, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(states, self._state.to(device))
        total = torch.zeros(4, dtype=torch.float64)
        for state in states:
            total = _merge(total, state.cpu())
        return total


def _merge(a: Tensor, b: Tensor) -> Tensor:
    count = a[0] + b[0]
    if a[0] == 0 or b[0] == 0:
        mean, deviations = (a if b[0] == 0 else b)[1:3]
        return torch.stack([count, mean, deviations, a[3] + b[3]])
    delta = b[1] - a[1]
    mean = (a[0] * a[1] + b[0] * b[1]) / count
    deviations = a[2] + b[2] + delta.square() * a[0] * b[0] / count
    return torch.stack([count, mean, deviations, a[3] + b[3]])
