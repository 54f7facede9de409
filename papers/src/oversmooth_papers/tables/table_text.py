"""Tables as the terminal and as Markdown show them: a heading, rows, and in the last column whose figures they are;
and figures over seeds as they stand in them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from oversmooth.safety.foreign import visible

if TYPE_CHECKING:
    from rich.table import Table


def terminal(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Figures to the right, names and whose to the left; what is published is dimmed. It fits any width."""
    from rich import box  # lazily: machines that train need not have it

    from oversmooth_papers.tables.fitting_table import FittingTable

    out = FittingTable(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column, heading in enumerate(head):
        last = column == len(head) - 1
        # Where it is narrow, figures break over lines; headings, and whose figures they are, never do.
        out.add_column(
            heading,
            justify="right" if column and not last else "left",
            no_wrap=last,
            min_width=max(map(len, heading.split()), default=0),
        )
    for row in rows:
        out.add_row(*row, style="dim" if row[-1].startswith("published") else None)
    return out


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """The table, and under it the notes, a paragraph each; names in it stay on their line."""
    lines = [head, ["---"] * len(head), *rows]
    shown = [[visible(" ".join(cell.splitlines())).replace("|", "\\|") for cell in line] for line in lines]
    text = "\n".join("| " + " | ".join(line) + " |" for line in shown)
    return "\n\n".join([text, *map(visible, notes)]) + "\n"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation over seeds (n − 1), None for a single seed."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def over_seeds(
    values: Sequence[float],
    form: str = ".2f",
    *,
    spread_form: str = ".2g",
    count: Literal["always", "several", "never"] = "never",
) -> str:
    """``91.09 ± 0.4 (3)``: mean, spread, and the number of seeds; a dash where there are none.

    count: whether the number stands there always, where there are several, or never.
    """
    if not values:
        return "–"
    mean, spread = mean_and_spread(values)
    shown = f"{mean:{form}}" if spread is None else f"{mean:{form}} ± {spread:{spread_form}}"
    counted = count == "always" or (count == "several" and len(values) > 1)
    return f"{shown} ({len(values)})" if counted else shown


def percent_over_seeds(shares: Sequence[float]) -> str:
    """``32.47 ± 0.90 (3)``: in %, with the number of seeds; a dash for none."""
    return over_seeds([100 * share for share in shares], spread_form=".2f", count="always")
