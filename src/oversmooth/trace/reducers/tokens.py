"""Metrics of tokens after every part of every block, per input."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oversmooth import metrics
from oversmooth.metrics import registry
from oversmooth.trace.plans import Plan, Site
from oversmooth.trace.reducers.base import PassFacts, Reducer, fetched

MASSIVE_RATIO = 5.0
"""A token is massive where its norm exceeds the median norm of its input's tokens by this factor."""
_BANDS, _COSINES = ("log_hfc", "log_lfc"), ("cos", "abs_cos")
Place = tuple[int, int]
"""(call, stage); stage -1 is what entered the block."""


@dataclass
class TokenNumbers:
    """What was measured, over inputs in order; inputs with fewer than two valid tokens are left out."""

    at: dict[Place, dict[str, Tensor]] = field(default_factory=dict)
    """``(inputs,)`` per metric; ranks of the first inputs only."""
    without_massive: dict[Place, dict[str, Tensor]] = field(default_factory=dict)
    massive: dict[Place, list[tuple[int, int, float]]] = field(default_factory=dict)
    """(input, position, norm over the median) of each massive token."""


class TokenMetrics(Reducer):
    """HFC/LFC at every site; cosines, ranks, registered metrics and massive tokens at the main ones.

    Args:
        plan: of the model.
        ranks: inputs whose ranks are computed, the first ones.
    """

    result: TokenNumbers

    def __init__(self, plan: Plan, ranks: int = 4) -> None:
        self.plan, self.ranks = plan, ranks
        self._start = 0
        self._extra = registry.extra()
        self._rows: dict[tuple[Place, str], list[Tensor]] = defaultdict(list)
        self._without: dict[tuple[Place, str], list[Tensor]] = defaultdict(list)
        self._massive: dict[Place, list[tuple[int, int, float]]] = {}

    def begin(self, start: int, inputs: int) -> None:
        del inputs
        self._start = start

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        if site.part == "enter" and site.call and self.plan.blocks[site.call].continues:
            return  # as the block before left it
        place = (site.call, site.stage)
        summary = metrics.summary(x, mask=mask, cosines=site.main)
        self._write(self._rows, place, summary, site.main)
        if not site.main:
            return
        if self._start < self.ranks:
            few = self.ranks - self._start
            s = metrics.singular_values(x[:few], mask=None if mask is None else mask[:few])
            for name, value in metrics.ranks_of(s).items():
                self._rows[place, name].append(value)
        for metric in self._extra:
            assert metric.of is not None
            self._rows[place, metric.name].append(metric.of(x, mask=mask))
        norms = summary.token_norms
        counted = norms > 0
        middle = torch.where(counted, norms, torch.nan).nanmedian(-1, keepdim=True).values
        massive = norms > MASSIVE_RATIO * middle
        if bool(massive.any()):
            rest = counted & ~massive
            for i, position in massive.nonzero().tolist():
                ratio = float(norms[i, position] / middle[i])
                self._massive.setdefault(place, []).append((self._start + i, position, ratio))
            affected = massive.any(-1)
            summary = _replace(summary, affected, metrics.summary(x[affected], mask=rest[affected]))
        self._write(self._without, place, summary, True)

    @staticmethod
    def _write(
        rows: dict[tuple[Place, str], list[Tensor]], place: Place, summary: metrics.Summary, cosines: bool
    ) -> None:
        for name in (*_BANDS, *(_COSINES if cosines else ())):
            rows[place, name].append(getattr(summary, name))

    def finish(self, facts: PassFacts) -> None:
        keep = facts.lengths > 1
        found = TokenNumbers()
        for target, rows in ((found.at, self._rows), (found.without_massive, self._without)):
            for (place, name), value in fetched(rows).items():
                target.setdefault(place, {})[name] = value[keep[: len(value)]]
            for columns in target.values():
                columns["log_hfc_lfc"] = columns["log_hfc"] - columns["log_lfc"]
                columns["hfc_lfc"] = columns["log_hfc_lfc"].exp()
        for call in facts.varies:  # sums with a factor that is not these inputs' own have no meaning
            for index, stage in enumerate(self.plan.blocks[call].stages):
                if stage.where == "sum":
                    unread = {name: value * torch.nan for name, value in found.at[call, index].items()}
                    found.at[call, index] = unread
        kept = keep.tolist()
        massive = {place: [row for row in rows if kept[row[0]]] for place, rows in self._massive.items()}
        found.massive = {place: rows for place, rows in massive.items() if rows}
        self.result = found


def _replace(summary: metrics.Summary, at: Tensor, other: metrics.Summary) -> metrics.Summary:
    values = {}
    for name in (*_BANDS, *_COSINES):
        value = getattr(summary, name).clone()
        value[at] = getattr(other, name).to(value.dtype)
        values[name] = value
    return metrics.Summary(**values, token_norms=summary.token_norms)
