"""Does bounded sharpening gain accuracy, on seeds and subsets that nobody had seen before the question was asked?

    oversmooth reproduce sharpening --seeds 7 --at-once 6        28 runs, about 51 minutes of an H200
    oversmooth reproduce sharpening-dose --at-once 6             how tight the bound should be, 12 runs
    oversmooth reproduce sharpening-half --at-once 2             on half of the data, 5 runs

The protocol, written before the runs, is docs/sharpening.md: four arms on 10 % of CIFAR-100, seeds 3 to 9, each seed
with a subset of its own that the arms share. Nothing of this was published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import agreement, table_text
from oversmooth_papers.tables.base import Case, Rows, last_snapshots
from oversmooth_papers.tables.cells import Available
from oversmooth_papers.tables.forms import Forms, SharpeningTable
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images.recipe import PAPER, Recipe

SEEDS = tuple(range(3, 10))
_BOUNDED = "spectral:mode=sharpen,start=cold,bounded"
ARMS = {
    "plain": Case("plain (ViT-Ti)", {"variant": "plain"}),
    "sharpen": Case("sharpen, all blocks", {"variant": "sharpen"}),
    "bounded": Case("sharpen, |λ| < 1", {"variant": _BOUNDED}),
    "front-6": Case("sharpen, blocks 0 to 5", {"variant": "sharpen", "layers": "0-5"}),
}
PRIMARY = ("bounded", "plain")
SECONDARY = (("sharpen", "plain"), ("front-6", "plain"), ("bounded", "sharpen"), ("bounded", "front-6"))


@dataclass(frozen=True, kw_only=True)
class Sharpening(SharpeningTable):
    """Bounded sharpening against the unmodified model, paired over seeds, as docs/sharpening.md lays down."""

    name = "sharpening"
    cells_help = "The cells to run: an arm (bounded), a seed (seed-3), or both (bounded:seed-3); by default all."

    cells_from: ClassVar = {}  # no other table has these subsets
    note = (
        "10% of CIFAR-100, the recipe of table 2, seeds 3 to 9, each with its own subset of 5,000 training images "
        "(share_seed = seed). Accuracy of the 10,000 test images after the last epoch, mean ± standard deviation "
        "over seeds (their number). Differences are paired by seed. The protocol is docs/sharpening.md; the claim "
        "rests on all seven seeds."
    )

    def cases(self) -> Mapping[str, Case]:
        if self.quick:  # four blocks
            return {**ARMS, "front-6": Case("sharpen, blocks 0 and 1", {"variant": "sharpen", "layers": "0-1"})}
        return ARMS

    def recipe(self, name: str, seed: int = SEEDS[0]) -> Recipe:
        return replace(super().recipe(name, seed), share_seed=seed)

    def recipes(self) -> list[Any]:
        """Of the first so many of the protocol's seeds, seed by seed."""
        return [self.recipe(name, seed) for seed in SEEDS[: self.seeds] for name in self.cases()]

    def names_of(self, recipe: Recipe) -> dict[str, str]:
        return {**super().names_of(recipe), "seed": f"seed-{recipe.seed}"}

    def rows(self, available: Available) -> Rows:
        """The arms, then the paired differences in points."""
        rows = [
            [case.title, table_text.counted(self.charted(available, name)), "", "", self.whose()]
            for name, case in self.cases().items()
        ]
        gains = {pair: self.gains(available, *pair) for pair in (PRIMARY, *SECONDARY)}
        adjusted = dict(zip(SECONDARY, holm([_p_value(gains[pair]) for pair in SECONDARY]), strict=True))
        for pair, gain in gains.items():
            p = "primary" if pair == PRIMARY else "–" if adjusted[pair] is None else f"{adjusted[pair]:.2g}"
            shown = table_text.counted(gain, "+.2f")
            rows.append([" − ".join(pair), shown, agreement.interval_text(gain), p, self.whose()])
        return ["", "accuracy, %; difference, points", "95% t interval", "Holm's p", "whose"], rows


@dataclass(frozen=True, kw_only=True)
class SharpeningDose(SharpeningTable):
    """How tight the bound should be: λ in (−s, 0] for five s, accuracy and HFC/LFC at the end."""

    name = "sharpening-dose"
    case_by_name: ClassVar = {
        "0.25": Case("0.25", {"variant": f"{_BOUNDED},bound=0.25"}),
        "0.5": Case("0.5", {"variant": f"{_BOUNDED},bound=0.5"}),
        "1": Case("1", {"variant": _BOUNDED}),
        "2": Case("2", {"variant": f"{_BOUNDED},bound=2"}),
        "4": Case("4", {"variant": f"{_BOUNDED},bound=4"}),
    }
    cells_from: ClassVar = {"1": Forms}
    rows_are = "s"

    def chart(self, available: Available) -> Any:
        """Accuracy, and HFC/LFC of what leaves the last block, against s."""
        accuracy, ends = [], []
        for name in self.cases():
            accuracy += table_charts.over_seeds("bounded", self.whose(), self.charted(available, name), x=float(name))
            last = last_snapshots(self.cells(available, name), 1)
            ends += table_charts.over_seeds("bounded", self.whose(), last, x=float(name))
        panels = [("accuracy", accuracy, self.label), ("tokens after the last block", ends, "HFC/LFC")]
        return table_charts.lines(panels, "s")


@dataclass(frozen=True, kw_only=True)
class SharpeningHalf(SharpeningTable):
    """Does the gain carry over to half of CIFAR-100? Bounded sharpening beside the unmodified model."""

    name = "sharpening-half"
    full: ClassVar = replace(PAPER, share=0.5)
    case_by_name: ClassVar = {name: ARMS[name] for name in PRIMARY}
    cells_from: ClassVar = {"plain": Table2}
    title = "50 % of CIFAR-100"
    note = (
        "50% of CIFAR-100, the recipe of table 2. Accuracy of the 10,000 test images after the last epoch, mean ± "
        "standard deviation over seeds (their number); the difference is paired by seed."
    )

    def rows(self, available: Available) -> Rows:
        """The two, then their difference with its 95 % interval."""
        head, rows = super().rows(available)
        gain = self.gains(available, *PRIMARY)
        interval = f"95%: {agreement.interval_text(gain)}"
        rows.append([f"{' − '.join(PRIMARY)}, points", table_text.counted(gain, "+.2f"), interval, "", self.whose()])
        return head, rows


def _p_value(differences: Sequence[float]) -> float | None:
    """Of a paired t test, two-sided; None for fewer than two differences."""
    if len(differences) < 2:
        return None
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment; where one is not known yet, none is.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = [p for p in p_values if p is not None]
    if len(known) < len(p_values):
        return [None] * len(p_values)
    adjusted, highest = [0.0] * len(known), 0.0
    for rank, place in enumerate(sorted(range(len(known)), key=known.__getitem__)):
        highest = max(highest, min(1.0, (len(known) - rank) * known[place]))
        adjusted[place] = highest
    return list(adjusted)
