"""Which tokens reach which through attention: the strongly connected components of its graph (THEORY §3).

With tokens ordered so that none sees a later component, A is block lower triangular, and its spectrum is that of its
diagonal blocks: exact where blocks are single tokens, however far from normal A is. A component is closed if it sees
only itself; each closed one has an eigenvalue 1 of its own. Zero means exactly zero: a link of 1e-38 closes a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Entries of boolean arrays held at once.
_HELD = 1 << 26


@dataclass(frozen=True)
class Components:
    """The components of a batch of graphs over n tokens; hidden tokens belong to none."""

    order: Tensor
    """``(items, n)``, tokens ordered so that each sees only its own component and earlier ones; hidden ones last."""
    label: Tensor
    """``(items, n)``, the component of each token, named by its first token; −1 if hidden."""
    size: Tensor
    """``(items, n)``, the size of each token's component; 0 if hidden."""
    closed: Tensor
    """``(items, n)``, whether a token's component sees only itself."""

    @property
    def connected(self) -> Tensor:
        """Whether all tokens that count form one component, ``(items,)``."""
        return (self.size == (self.label >= 0).sum(-1, keepdim=True)).logical_or(self.label < 0).all(-1)

    @property
    def triangular(self) -> Tensor:
        """Whether every component is a single token, ``(items,)``."""
        return (self.size <= 1).all(-1)

    def blocks(self, item: int) -> Iterator[tuple[Tensor, bool]]:
        """The components of one item, each as its tokens and whether it is closed, in order."""
        order = self.order[item]
        labels = self.label[item][order]
        for label in dict.fromkeys(labels.tolist()):
            if label >= 0:
                tokens = order[labels == label]
                yield tokens, bool(self.closed[item, tokens[0]])


def components(seen: Tensor, mask: Tensor | None = None) -> Components:
    """The strongly connected components of graphs in which token i sees token j where ``seen[:, i, j]``.

    Args:
        seen: ``(items, n, n)``, which token sees which.
        mask: ``(items, n)``, true for the tokens that count; None: all of them.
    """
    n = seen.shape[-1]
    rows = max(1, _HELD // (n * n))
    masks = [None] * len(seen) if mask is None else list(mask.split(rows))
    parts = [_components(part, m) for part, m in zip(seen.split(rows), masks, strict=False)]
    return Components(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _components(seen: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    n = seen.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=seen.device)
    reach = seen | eye
    if mask is not None:
        reach = reach & mask[:, None, :] & mask[:, :, None] | eye
    # Each product doubles the length of the paths, until none is new.
    while True:
        ones = reach.to(torch.float32)
        longer = ones @ ones > 0
        if torch.equal(longer, reach):
            break
        reach = longer
    mutual = reach & reach.mT
    label = mutual.int().argmax(-1)
    size = mutual.sum(-1)
    closed = (reach == mutual).all(-1)
    # A token that sees a component reaches all that it reaches, and more: sorted by the number of tokens reached, every
    # component comes after those it sees, and tokens of one component stay together.
    rank = reach.sum(-1) * n + label
    if mask is not None:
        label, size = torch.where(mask, label, -1), torch.where(mask, size, 0)
        closed, rank = closed & mask, torch.where(mask, rank, n * n + n)
    return torch.argsort(rank, dim=-1, stable=True), label, size, closed
