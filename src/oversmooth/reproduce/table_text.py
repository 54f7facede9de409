"""Tables as the terminal and as Markdown show them: a heading, rows, and in the last column whose figures they are;
and figures over seeds as they stand in them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oversmooth.safety.foreign import visible

if TYPE_CHECKING:
    from rich.table import Table


def terminal(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Figures to the right, names and whose to the left; what is published is dimmed. It fits any width."""
    from rich import box  # lazily: machines that train need not have it

    from oversmooth.reproduce.fitting_table import FittingTable

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
    """The mean and the standard deviation over seeds (n − 1), which one seed has not."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def percent_over_seeds(shares: Sequence[float], digits: int = 2) -> str:
    """``32.47 ± 0.90 (3)``: in %, with the number of seeds; a dash for none."""
    if not shares:
        return "–"
    mean, spread = mean_and_spread([100 * share for share in shares])
    return f"{mean:.{digits}f}{'' if spread is None else f' ± {spread:.2f}'} ({len(shares)})"
