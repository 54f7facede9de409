"""All numbers of the tokens of a site: small tensors that stay on the device until `SiteMetrics.finish`.

A site is whatever its key says: a depth, or a call and a stage. Nothing waits for the device before the end, but exact
metrics of rank on a GPU whose arrays no longer fit into the memory set aside for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.metrics.moments import MASSIVE_RATIO, abs_cosine, moments, reducing, scaled
from oversmooth.metrics.rank import ranks_of, singular_values
from oversmooth.trace.reducers.base import Together, fetch
from oversmooth.trace.reducers.directions import Directions, ranks_of_directions
from oversmooth.trace.reducers.sketch import EXACT_RANKS, SKETCH_ERROR, effective_rank_of, quadrature

_AT_ONCE = {"cpu": 2**20}
"""Entries of the arrays reduced at once: what is made on the way then stays in the cache of a CPU."""
_WAITING, _SKETCHED = {"cuda": 2**26}, {"cuda": 2**28}
"""Bytes of tokens that wait for others, by device, where ranks are exact and where they are sketched."""
_AT_THE_END = {"cpu": 2**62, "cuda": 2**62}


@dataclass
class SiteNumbers:
    """What one site showed, over inputs in order, in float64 on the CPU."""

    tokens: dict[str, Tensor]
    """``(inputs,)`` per metric; ranks of the first inputs only. NaN with fewer than two valid tokens."""
    without_massive: dict[str, Tensor]  # the same without massive tokens, for the metrics that are not of ranks
    count: Tensor  # (inputs,): valid tokens
    massive: list[tuple[int, int, float]]
    """(input, position, norm over the median) of massive tokens, of each input the 16 longest."""
    massive_count: Tensor  # (inputs,): how many there are
    errors: dict[str, Tensor]
    """By metric that may be no exact figure, as ``tokens``: its expected error; relative but for "abs_cos"."""


@reducing
def exact_ranks(x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """The four metrics of rank of tokens ``(batch, n, d)``, from their singular values."""
    exact = torch.zeros(len(x), device=x.device)
    return {**ranks_of(singular_values(x, mask=mask)), "directions_error": exact, "sketch_error": exact}


class SiteMetrics:
    """The reducer of tokens: HFC, LFC, cosines, massive tokens and ranks at every site.

    Args:
        absolute: whether to take the mean absolute cosine.
        ranks: inputs whose metrics of rank are taken, the first ones; exact with min(n, d) up to `EXACT_RANKS`, above
            from directions that are followed from site to site, and a sketch.
        directions: whether to take stable rank, σ₂/σ₁ and the distance to rank one of all inputs, of the others than
            those from directions.
        exact: True for no shortcut: every pair of tokens, and metrics of rank from singular values alone.
        ranks_at_end: whether exact ranks wait until `finish`, whatever memory their tokens take.
    """

    STATE = ("rows", "ranked", "begun", "_kept")

    def __init__(
        self,
        *,
        absolute: bool = True,
        ranks: int = 0,
        directions: bool = False,
        exact: bool = False,
        ranks_at_end: bool = False,
    ) -> None:
        self.absolute, self.ranks, self.directions, self.exact = absolute, ranks, directions, exact
        self.rows: dict[Hashable, list[dict[str, Tensor]]] = defaultdict(list)
        """By site, one per part of a batch."""
        self.ranked: dict[Hashable, list[dict[str, Tensor]]] = defaultdict(list)
        """Metrics of rank by site: one per batch where they are exact, or per part of it where they are not."""
        self.begun: dict[Hashable, int] = defaultdict(int)
        """By site: inputs that were reduced."""
        self._singular = Together(exact_ranks, _AT_THE_END if ranks_at_end else _WAITING)
        self._sketches = Together(lambda *arrays: {"lanczos": quadrature(*arrays)}, _SKETCHED)
        self._followed: dict[int, Directions] = {}
        """By the index of a part of its batch."""
        self._kept: dict[int, dict[int, Directions]] = defaultdict(dict)
        """The same, by the first input of each batch that is sketched: another batch may run between two blocks."""
        self._reached: set[Hashable] = set()
        self._found: dict[Hashable, SiteNumbers] | None = None

    def begin(self, start: int) -> None:
        """A batch runs, or goes on with its next block, by the number of its first input."""
        self._reached, self._followed = set(), self._kept[start] if start < self.ranks else {}

    @torch.no_grad()
    def update(self, site: Hashable, x: Tensor, mask: Tensor | None = None) -> None:
        """Reduce the tokens of a site, ``(batch, n, d)`` of any floating type, by its key; a site that is reached a
        second time begins another pass. mask: ``(batch, n)``: valid tokens, None for all; the others may hold NaN.
        """
        x, mask, self._found = x.detach(), None if mask is None else mask.expand(x.shape[:2]), None
        if site in self._reached:
            self._reached, self._followed = set(), {}
        self._reached.add(site)
        few = max(0, self.ranks - self.begun[site])
        sketched = few if min(x.shape[1:]) > EXACT_RANKS and not self.exact else 0
        if few and not sketched:
            row: dict[str, Tensor] = {}
            self.ranked[site].append(row)
            # Copied, as blocks may write into what they passed on.
            self._singular.add(row, x[:few].clone(), None if mask is None else mask[:few])
        size = max(1, _AT_ONCE.get(x.device.type, x.numel()) // max(1, x[:1].numel()))
        for part, some in enumerate(x.split(size)):
            valid = None if mask is None else mask[part * size : (part + 1) * size]
            exact, those = (max(0, count - part * size) for count in (few - sketched, sketched))
            self.rows[site].append(self._row(some, valid, site, part, exact, those))
        self.begun[site] += len(x)

    def _row(
        self, x: Tensor, mask: Tensor | None, site: Hashable, part: int, exact: int, sketched: int
    ) -> dict[str, Tensor]:
        tokens = scaled(x, mask)
        found = moments(tokens, MASSIVE_RATIO)
        row = {"count": found.count, "log_hfc": found.log_hfc, "log_lfc": found.log_lfc, "cos": found.cos}
        row["ratios"], row["positions"] = found.longest()
        if self.absolute:
            row["abs_cos"], row["abs_cos_error"] = abs_cosine(tokens, found, exact=self.exact)
        some = slice(exact, len(x) if self.directions and not self.exact else sketched)
        if some.start < some.stop:
            few, followed = tokens.part(some), self._followed.setdefault(part, Directions())
            ranks = {"grams": followed.update(few)}
            ranks["squares"] = (found.norms / tokens.unit.amax(-1, keepdim=True)).square().sum(-1)[some]
            if sketched:
                few, counts = tokens.part(slice(sketched)), found.count[:sketched, 0]
                ranks["side"] = counts if x.shape[1] < x.shape[2] else torch.full_like(counts, x.shape[2])
                assert followed.used is not None
                self._sketches.add(ranks, few.quick, few.share[..., None], few.valid, followed.used[:sketched])
            self.ranked[site].append(ranks)
        return row

    def finish(self) -> dict[Hashable, SiteNumbers]:
        """The numbers of every site; the one time that the device is waited for."""
        if self._found is None:
            self._singular.finish()
            self._sketches.finish()
            _add_ranks([row for rows in self.ranked.values() for row in rows if "grams" in row])
            tables = (*self.rows.values(), *self.ranked.values())
            host = iter(fetch([value for rows in tables for row in rows for value in row.values()]))
            rows, ranks = (
                {site: [{name: next(host) for name in row} for row in rows] for site, rows in table.items()}
                for table in (self.rows, self.ranked)
            )
            self._found = {site: _numbers(rows[site], ranks.get(site, [])) for site in rows}
        return self._found


def _numbers(rows: list[dict[str, Tensor]], ranked: list[dict[str, Tensor]]) -> SiteNumbers:
    whole = _joined(rows, ("count", "log_hfc", "log_lfc", "cos", "abs_cos", "abs_cos_error"))
    count = whole.pop("count")
    whole = {name: torch.where(count > 1, values, torch.nan) for name, values in whole.items()}
    whole["log_hfc_lfc"] = whole["log_hfc"] - whole["log_lfc"]
    errors = {"abs_cos": whole.pop("abs_cos_error")[:, 0]} if "abs_cos" in whole else {}
    tokens, rest = ({name: values[:, one] for name, values in whole.items()} for one in (0, 1))
    if ranked:
        ranks = _joined(ranked, ranked[0])
        errors |= dict.fromkeys(("stable_rank", "sigma_ratio", "rank_one_distance"), ranks.pop("directions_error"))
        if "sketch_error" in ranks:
            errors["effective_rank"] = ranks.pop("sketch_error")
        tokens |= ranks
    massive_count = count[:, 0] - count[:, 1]
    return SiteNumbers(tokens, rest, count[:, 0], list(_massive(rows)), massive_count, errors)


def _add_ranks(rows: list[dict[str, Tensor]]) -> None:
    """To each row what its directions and its sketch say, in their place; of many rows at once, on their device."""
    directions = Together(ranks_of_directions, _AT_THE_END)
    sketches = Together(_sketched, _AT_THE_END)
    for row in rows:
        found = [row.pop(name) for name in ("grams", "squares", "lanczos", "side") if name in row]
        grams, squares, *sketch = (x.cpu() if x.device.type == "mps" else x for x in found)  # has no float64
        directions.add(row, grams, squares)
        if sketch:
            lanczos, side = sketch
            sketches.add(row, lanczos, grams[: len(side)], squares[: len(side)], side)
    directions.finish()
    sketches.finish()


def _sketched(*arrays: Tensor) -> dict[str, Tensor]:
    rank = effective_rank_of(*arrays)
    return {"effective_rank": rank, "sketch_error": torch.full_like(rank, SKETCH_ERROR)}


def _joined(rows: list[dict[str, Tensor]], names: Iterable[str]) -> dict[str, Tensor]:
    """Of names that not all rows have, the first ones do."""
    return {name: torch.cat([row[name].double() for row in rows if name in row]) for name in names if name in rows[0]}


def _massive(rows: list[dict[str, Tensor]]) -> Iterator[tuple[int, int, float]]:
    start = 0
    for row in rows:
        for one, token in (row["ratios"] > MASSIVE_RATIO).nonzero().tolist():
            yield start + one, int(row["positions"][one, token]), float(row["ratios"][one, token])
        start += len(row["ratios"])
