"""Tables as the terminal and as Markdown show them: a heading, rows, and in the last column whose figures they are;
and figures over seeds as they stand in them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from oversmooth.safety.foreign import visible

_ANY_WIDTH = 10_000


def terminal(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Figures to the right, names and whose to the left; what is published is dimmed. It fits any width."""
    out = _FittingTable(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1), collapse_padding=True)
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


class _FittingTable(Table):
    """As rich draws it where that breaks no word; else every row as a name, with a line per column under it.

    Rich itself cuts words and leaves out columns, the last first, without a sign of it.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=_ANY_WIDTH)
        if self.__rich_measure__(console, unlimited).maximum <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        texts = [[str(column.header), *map(str, column.cells)] for column in self.columns]
        whole = [max(cell_len(line) for text in each for line in text.splitlines() or [""]) for each in texts]
        for column, each, most in zip(self.columns, texts, whole, strict=True):
            words = [cell_len(word) for text in each for word in text.split()]
            column.width = most if column.no_wrap else max(words, default=0)
        left = options.max_width - self.__rich_measure__(console, unlimited).maximum
        if left < 0:
            rows = list(zip(*texts, strict=True))[1:]
            yield Group(*(part for row in rows for part in self._stacked(row)), Text(""))
            return
        for _ in range(left):  # more to those that break most
            most_broken = max(range(len(whole)), key=lambda place: whole[place] - (self.columns[place].width or 0))
            self.columns[most_broken].width = (self.columns[most_broken].width or 0) + 1
        yield from super().__rich_console__(console, options)

    def _stacked(self, row: Sequence[str]) -> list[Text | Table]:
        """What is not known is left out: there would be a line of dashes for each."""
        lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        lines.add_column(style="dim")
        lines.add_column()
        for column, cell in list(zip(self.columns, row, strict=True))[1:]:
            if cell not in ("", "–"):
                lines.add_row(f"  {' '.join(str(column.header).split())}", Text(cell))
        return [Text(""), Text(row[0], style="bold"), lines]


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


def counted(values: Sequence[float], form: str = ".2f") -> str:
    """``32.47 ± 0.90 (3)``: with the number of seeds always, and a spread of two digits."""
    return over_seeds(values, form, spread_form=".2f", count="always")


def percent_over_seeds(shares: Sequence[float]) -> str:
    """`counted`, in %."""
    return counted([100 * share for share in shares])
