"""Metrics of tokens, per input: after every part of every block, or by depth alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oversmooth.metrics import registry
from oversmooth.trace.plans import Plan, Site
from oversmooth.trace.reducers.base import PassFacts, Reducer, fetched
from oversmooth.trace.reducers.sites import SiteMetrics, SiteNumbers

SiteKey = tuple[int, int]
"""(call, stage); stage -1 is what entered the block."""


@dataclass
class TokenNumbers:
    """What was measured, over inputs in order; inputs with fewer than two valid tokens are left out."""

    at: dict[SiteKey, dict[str, Tensor]] = field(default_factory=dict)
    """``(inputs,)`` per metric; ranks of the first inputs only."""
    without_massive: dict[SiteKey, dict[str, Tensor]] = field(default_factory=dict)
    massive: dict[SiteKey, list[tuple[int, int, float]]] = field(default_factory=dict)
    """(input, position, norm over the median) of massive tokens, of each input the 16 longest."""
    massive_count: dict[SiteKey, int] = field(default_factory=dict)  # how many there are
    errors: dict[str, float] = field(default_factory=dict)
    """By metric that is no exact figure: the largest error to be expected; relative, but for "abs_cos"."""


class TokenMetrics(Reducer):
    """HFC/LFC at every site; cosines, ranks, registered metrics and massive tokens at the main ones.

    Args:
        plan: of the model.
        ranks: inputs whose metrics of rank are computed, the first ones; sketched for arrays of more than 1,024 tokens
            and features, else exact.
        absolute: whether to take the mean absolute cosine; sampled above 4,096 tokens.
        directions: take stable rank and σ₂/σ₁ of all inputs, of the others from directions followed from site to site.
        exact: no sketch, no sample, no followed directions.
    """

    STATE = ("_rows", "_main", "_others")
    result: TokenNumbers

    def __init__(
        self, plan: Plan, ranks: int = 4, *, absolute: bool = True, directions: bool = False, exact: bool = False
    ) -> None:
        self.plan = plan
        self._main = SiteMetrics(absolute=absolute, ranks=ranks, directions=directions, exact=exact)
        self._others = SiteMetrics(absolute=False)
        self._extra = registry.extra()
        self._rows: dict[tuple[SiteKey, str], list[Tensor]] = defaultdict(list)

    def begin(self, start: int, inputs: int) -> None:
        del inputs
        self._main.begin(start)

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        if site.part == "enter" and site.call and self.plan.blocks[site.call].continues:
            return  # as the block before left it
        key = (site.call, site.stage)
        (self._main if site.main else self._others).update(key, x, mask)
        for metric in self._extra if site.main else ():
            assert metric.of is not None
            self._rows[key, metric.name].append(metric.of(x, mask=mask))

    def finish(self, facts: PassFacts) -> None:
        keep = facts.lengths > 1
        kept, found = keep.tolist(), TokenNumbers()

        def those(columns: dict[str, Tensor]) -> dict[str, Tensor]:
            columns = {name: value[keep[: len(value)]] for name, value in columns.items()}
            return {**columns, "hfc_lfc": columns["log_hfc_lfc"].exp()}

        for key, numbers in {**self._main.finish(), **self._others.finish()}.items():
            assert isinstance(key, tuple)
            found.at[key] = those(numbers.tokens)
            found.without_massive[key] = those(numbers.without_massive)
            if massive := [row for row in numbers.massive if kept[row[0]]]:
                found.massive[key] = massive
                found.massive_count[key] = int(numbers.massive_count[keep].sum())
            for name, errors in numbers.errors.items():
                here = errors[keep[: len(errors)]].nan_to_num(0.0, posinf=torch.inf)
                worst = float(here.max()) if len(here) else 0.0
                found.errors[name] = max(worst, found.errors.get(name, 0.0))
        for (key, name), value in fetched(self._rows).items():
            found.at[key][name] = value[keep]
        for call in facts.input_dependent:  # sums with a factor that is not these inputs' own have no meaning
            for index, stage in enumerate(self.plan.blocks[call].stages):
                if stage.where == "sum":
                    unread = {name: value * torch.nan for name, value in found.at[call, index].items()}
                    found.at[call, index] = unread
        found.errors = {name: error for name, error in found.errors.items() if error > 0}
        self.result = found


class DepthMetrics(Reducer):
    """Metrics of what enters the first block and of what every block returns, from one pass or from several. Blocks
    that run several times are several depths.

    Args:
        ranks: inputs of which ranks are computed, the first ones; 0 for none. As for `TokenMetrics`, they are sketched
            for arrays of more than 1,024 tokens and features.
        absolute: whether to take the mean absolute cosine; sampled above 4,096 tokens.
        exact: no sketch and no sample.
        ranks_at_end: whether exact ranks wait until all inputs have passed, whatever memory their tokens take.
    """

    result: list[SiteNumbers]

    def __init__(
        self, *, ranks: int = 4, absolute: bool = True, exact: bool = False, ranks_at_end: bool = False
    ) -> None:
        self.numbers = SiteMetrics(ranks=ranks, absolute=absolute, exact=exact, ranks_at_end=ranks_at_end)

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
