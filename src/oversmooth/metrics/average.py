"""Averages of a metric over batches and processes. The metric is the truth; this only sums."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oversmooth.safety import arguments


class Average:
    """Mean and spread of a metric over everything it was shown.

    ``update`` takes one batch ``(batch, ..., n, d)``; every leading entry counts once, whatever the batch's size.
    Under ``torch.distributed`` the results are those of all processes' data together, uneven shares included; every
    process must then ask for them. An undefined value (NaN) makes the mean NaN, unless ``skip_undefined``:
    then it is left out and counted in ``undefined``.

    >>> from oversmooth.metrics import stable_rank
    >>> average = Average(stable_rank)
    >>> average.update(torch.eye(3).expand(2, 3, 3))
    >>> average.update(torch.ones(1, 3, 3))
    >>> round(average.mean(), 4), average.count()
    (2.3333, 3)
    """

    def __init__(self, metric: Callable[..., Tensor], *, skip_undefined: bool = False, **settings: Any) -> None:
        self.metric = metric
        self.settings = settings
        self.skip_undefined = skip_undefined
        self.reset()

    def reset(self) -> None:
        # count, mean, sum of squared deviations, undefined: Chan's formula merges them without cancellation.
        self._state = torch.zeros(4, dtype=torch.float64)
        self._device = torch.device("cpu")

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
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

    def mean(self) -> float:
        """The mean; NaN before the first value."""
        total = self._gathered()
        return total[1].item() if total[0] > 0 else float("nan")

    def spread(self) -> float:
        """The standard deviation over the values (n − 1); NaN with fewer than two."""
        total = self._gathered()
        return (total[2] / (total[0] - 1)).sqrt().item() if total[0] > 1 else float("nan")

    def count(self) -> int:
        """How many values are in the mean."""
        return int(self._gathered()[0])

    def undefined(self) -> int:
        """How many values were NaN."""
        return int(self._gathered()[3])

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
