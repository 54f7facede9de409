"""`oversmooth watch`: the metrics of training runs, live in the terminal and as a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oversmooth.cli.app import app, option, out
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    from oversmooth.monitor.history import History

_HTML = "Page to write, .html; rewritten at every new snapshot."
_FOLLOW = "Keep updating until Ctrl-C, or show the current state once."
_LINES = "▁▂▃▄▅▆▇█"


@app.command()
def watch(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of monitored training runs.")],
    html: Annotated[Path | None, option("FILE", _HTML)] = None,
    follow: Annotated[bool, option(None, _FOLLOW, "--follow/--once")] = False,
    seconds: Annotated[float, option("X", "Seconds between updates.")] = 5.0,
) -> None:
    """Plot the metrics that training runs have logged: the latest snapshot by depth, and each metric over time."""
    from rich.console import Group
    from rich.live import Live

    from oversmooth.monitor.history import FILE, History
    from oversmooth.report import training

    if seconds <= 0:
        raise InputError(f"--seconds is {seconds:g}; give a number above 0")
    if html is not None:
        training.check(html)

    def read() -> list[History]:
        return [
            waiting(run) if follow and run.is_dir() and not (run / FILE).exists() else History.load(run) for run in runs
        ]

    def waiting(run: Path) -> History:
        """An empty history, for a run without a snapshot yet if there is time to wait for it."""
        history = History()
        history.about = {"name": run.resolve().name}
        return history

    def write(histories: list[History]) -> None:
        if html is not None and any(len(history) for history in histories):
            training.save(histories, html)

    histories = read()
    write(histories)
    if not follow:
        for history in histories:
            out.print(table_of(history))
        if html is not None:
            out.print(f"wrote {html}")
        return
    seen = [history.steps for history in histories]
    with Live(Group(*map(table_of, histories)), console=out, refresh_per_second=4) as live:
        while True:
            time.sleep(seconds)
            histories = read()
            if (new := [history.steps for history in histories]) != seen:
                seen = new
                live.update(Group(*map(table_of, histories)))
                write(histories)


def table_of(history: History) -> Any:
    """One row per metric: the latest snapshot by depth, its ends, and the last block over time."""
    from rich.table import Table
    from rich.text import Text

    from oversmooth.report.style import number

    steps = history.steps
    count = f"{len(steps)} snapshot{'' if len(steps) == 1 else 's'}"
    span = f"{count}, step {steps[-1]:,}" if steps else "no snapshots yet"
    table = Table(title=Text(f"{history.name}: {span}"), title_justify="left", box=None, header_style="dim")
    for heading in ("", "first → last block", "by depth", "last block over time"):
        table.add_column(heading)
    for name in history.metrics:
        rows = [row[name] for row in history.rows if name in row]
        last = (rows[-1] or [None]) if isinstance(rows[-1], list) else [rows[-1]]
        over = [(row[-1] if row else None) if isinstance(row, list) else row for row in rows]
        ends = f"{number(last[0])} → {number(last[-1])}" if len(last) > 1 else number(last[0])
        table.add_row(Text(name), ends, bars(last), f"{bars(over)} {number(over[0])} → {number(over[-1])}")
    return table


def bars(values: list[float | None], most: int = 32) -> str:
    """Numbers as a row of blocks, thinned to fit a line; a dot for a missing number.

    >>> bars([0.0, 0.5, 1.0]), bars([None, 2.0]), bars([1.0, 1.0])
    ('▁▅█', '·▁', '▁▁')
    """
    stride = max(1, -(-len(values) // most))
    kept = values[::stride]
    known = [value for value in kept if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    scale = (len(_LINES) - 1) / (high - low) if high > low else 0.0
    return "".join("·" if value is None else _LINES[int((value - low) * scale + 0.5)] for value in kept)
