"""Exact metrics of rank, of a few inputs.

On a GPU their arrays wait for others of the same shape: to decompose many takes hardly longer than one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from oversmooth.metrics.rank import ranks_of, singular_values

_WAITING = {"cuda": 2**26}
"""Bytes of tokens that wait for others, by device; elsewhere none wait, as nothing is gained by it."""


class ExactRanks:
    """The four metrics of rank by site, ``(inputs,)`` each per batch."""

    def __init__(self) -> None:
        self.found: dict[Hashable, list[dict[str, Tensor]]] = defaultdict(list)
        self.waiting: list[tuple[Hashable, Tensor, Tensor | None]] = []

    def add(self, site: Hashable, x: Tensor, mask: Tensor | None) -> None:
        """Decompose arrays, now or with others.

        Args:
            site: where they were found.
            x: ``(batch, n, d)``: tokens.
            mask: ``(batch, n)``: valid tokens; None: all.
        """
        waits = x.nbytes < _WAITING.get(x.device.type, 0) - sum(tokens.nbytes for _, tokens, _ in self.waiting)
        self.waiting.append((site, x.clone() if waits else x, mask))  # blocks may write into what they passed on
        if not waits:
            self.finish()

    def finish(self) -> dict[Hashable, list[dict[str, Tensor]]]:
        """Everything that was added, by site."""
        waiting, self.waiting = self.waiting, []
        rows = ranks_together([(x, mask) for _, x, mask in waiting])
        for (site, _, _), row in zip(waiting, rows, strict=True):
            self.found[site].append(row)
        return self.found


@torch.no_grad()
def ranks_together(samples: Sequence[tuple[Tensor, Tensor | None]]) -> list[dict[str, Tensor]]:
    """The four metrics of rank of each sample, ``(batch,)`` each; arrays of one shape in one call.

    Args:
        samples: tokens ``(batch, n, d)``, and which of them are valid.
    """
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, (x, mask) in enumerate(samples):
        alike[x.shape, x.dtype, x.device, mask is None].append(index)
    found: dict[int, dict[str, Tensor]] = {}
    for indices in alike.values():
        x = torch.stack([samples[index][0] for index in indices])
        masks = [mask for mask in (samples[index][1] for index in indices) if mask is not None]
        with torch.autocast(x.device.type, enabled=False):
            ranks = ranks_of(singular_values(x, mask=torch.stack(masks) if masks else None))
        found |= {index: {name: of[place] for name, of in ranks.items()} for place, index in enumerate(indices)}
    return [found[index] for index in range(len(samples))]
