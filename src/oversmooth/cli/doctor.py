"""`oversmooth doctor`: what is installed, and what it enables."""

from __future__ import annotations

import typer

from oversmooth.cli.app import app, out, status

_MARKS = {"yes": ("✓", "green"), "no": ("–", "dim"), "broken": ("✗", "red")}


@app.command()
def doctor() -> None:
    """Show which libraries, devices and data are found, and which commands they enable.

    The exit code is 1 if an installed library does not load, and 0 otherwise.
    """
    from rich.table import Table
    from rich.text import Text

    from oversmooth.demo import installation

    with status("importing libraries"):
        libraries = installation.libraries()
    sections = {
        "This installation": installation.versions(),
        "Devices": installation.devices(),
        "Optional libraries": libraries,
        "Data and models": installation.data(),
        "What works here": installation.work(libraries),
    }
    for title, findings in sections.items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column()
        table.add_column(overflow="fold")
        for finding in findings:
            mark, style = _MARKS[finding.state]
            table.add_row(Text(mark, style=style), finding.what, finding.detail)
        out.print(f"\n{title}", style="bold")
        out.print(table)
    if any(finding.state == "broken" for finding in libraries):
        raise typer.Exit(1)
