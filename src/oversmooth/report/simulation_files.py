"""A simulation as a file: its chart, its page, or its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oversmooth.report import shell, simulation, simulation_page
from oversmooth.report.figures import check_libraries
from oversmooth.safety.files import check_writable, whole_file
from oversmooth.theory.toy import ToyOutcome

ENDINGS = (".png", ".svg", ".pdf", ".html", ".json")


def check(path: Path) -> None:
    """Refuse what cannot be written, before the work is done that it is to show."""
    check_writable(path, ENDINGS)
    if path.suffix.lower() == ".html":
        shell.check(path)
    elif path.suffix.lower() != ".json":
        check_libraries()


def save(outcomes: list[ToyOutcome], path: Path, title: str) -> None:
    """The chart as PNG, SVG or PDF, the page as HTML (everything inside, no network), or the numbers as JSON."""
    ending = path.suffix.lower()
    if ending == ".html":
        shell.write(simulation_page.render(outcomes, title), path)
        return
    with whole_file(path) as temporary:
        if ending == ".json":
            temporary.write_text(json.dumps(simulation.numbers(outcomes, title), indent=1), encoding="utf-8")
        else:
            settings: dict[str, Any] = {"ppi": 160} if ending == ".png" else {}
            simulation.chart(outcomes, title).save(temporary, format=ending[1:], **settings)
