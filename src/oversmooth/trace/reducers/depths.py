"""Metrics of tokens by depth alone: what enters the first block, then what every block returns."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from oversmooth.trace.plans import Site
from oversmooth.trace.reducers.base import PassFacts, Reducer
from oversmooth.trace.reducers.sites import SiteMetrics, SiteNumbers


class DepthMetrics(Reducer):
    """Numbers by depth, from one pass or from several. Blocks that run several times are several depths.

    Args:
        ranks: inputs of which ranks are computed, the first ones; 0 for none.
        absolute: whether to take the mean absolute cosine.
    """

    result: list[SiteNumbers]

    def __init__(self, *, ranks: int = 4, absolute: bool = True) -> None:
        self.numbers = SiteMetrics(absolute=absolute, ranks=ranks, exact=True)

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        if site.depth is not None:
            self.numbers.update(site.depth, x, mask)

    def finish(self, facts: PassFacts | None = None) -> None:
        del facts
        found = self.numbers.finish()
        self.result = [found[depth] for depth in range(len(found))]

    def by_input(self, depth: int) -> dict[str, Tensor]:
        """``(inputs,)`` per metric, in float64; without inputs that have fewer than two valid tokens."""
        found = self.result[depth]
        return {name: values[found.count[: len(values)] > 1] for name, values in found.tokens.items()}

    def means(self, names: Sequence[str]) -> dict[str, list[float]]:
        """By metric: one number per depth. HFC/LFC is the geometric mean over inputs. Inputs with fewer than two valid
        tokens are left out; NaN where none is left.

        Args:
            names: of metrics; those that were not measured are left out.
        """
        rows = [self.by_input(depth) for depth in range(len(self.result))]
        row = {name: [columns[name].mean() for columns in rows] for name in (rows[0] if rows else ())}
        row["hfc_lfc"] = [mean.exp() for mean in row.get("log_hfc_lfc", [])]
        return {name: [float(mean) for mean in row[name]] for name in names if row.get(name)}
