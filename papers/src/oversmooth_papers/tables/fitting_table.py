"""A table for terminals of any width: where its words do not fit beside each other, rows stand one under the other."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

_UNKNOWN = ("", "–")
_ANY_WIDTH = 10_000


class FittingTable(Table):
    """As rich draws it where that breaks no word; else every row as a name, with a line per column under it.

    Rich itself cuts words and leaves out columns, the last first, without a sign of it.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=_ANY_WIDTH)
        if self.__rich_measure__(console, unlimited).maximum <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        narrow, whole = self._widths()
        self._set(narrow)
        left = options.max_width - self.__rich_measure__(console, unlimited).maximum
        if left >= 0:
            for _ in range(left):  # more to those that break most
                most = max(range(len(narrow)), key=lambda place: whole[place] - narrow[place])
                narrow[most] += 1
            self._set(narrow)
            yield from super().__rich_console__(console, options)
            return
        yield Group(*(part for row in range(self.row_count) for part in self._stacked(row)), Text(""))

    def _widths(self) -> tuple[list[int], list[int]]:
        """Of each column: of its longest word, and of its longest line."""
        narrow, whole = [], []
        for column in self.columns:
            texts = [str(column.header), *map(str, column.cells)]
            lines = max(cell_len(line) for text in texts for line in text.splitlines() or [""])
            words = max((cell_len(word) for text in texts for word in text.split()), default=0)
            narrow.append(lines if column.no_wrap else words)
            whole.append(lines)
        return narrow, whole

    def _set(self, widths: list[int]) -> None:
        """Rich itself would take from the widest columns, words or not."""
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width

    def _stacked(self, row: int) -> list[Text | Table]:
        """What is not known is left out: there would be a line of dashes for each."""
        cells = [str(list(column.cells)[row]) for column in self.columns]
        lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        lines.add_column(style="dim")
        lines.add_column()
        for column, cell in list(zip(self.columns, cells, strict=True))[1:]:
            if cell not in _UNKNOWN:
                lines.add_row(f"  {' '.join(str(column.header).split())}", Text(cell))
        return [Text(""), Text(cells[0], style="bold"), lines]
