"""`oversmooth demo`: the main job on models that come as packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import app, out, progress_bar


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write, .html.")] = Path("demo.html"),
    seed: Annotated[int, typer.Option(help="Of the random twins.")] = 0,
) -> None:
    """Diagnose MiniLM and an ALBERT beside their random twins, and write the page."""
    from oversmooth import demo as recipe
    from oversmooth import files
    from oversmooth.cli.diagnose import show
    from oversmooth.report import page

    files.check_writable(output, (".html", ".htm"))
    found = []
    with progress_bar("inputs") as bars:
        for name, make in recipe.models():
            for random in (False, True):
                title = f"{name}{' (random)' if random else ''}"
                task = bars.add_task(f"{title}: loading", total=None)

                def advance(done: int, total: int | None, what: str, task=task, title=title) -> None:  # type: ignore[no-untyped-def]
                    bars.update(task, description=f"{title}: {what}", completed=done, total=total)

                found.append(recipe.run(make, random, seed, advance))
    show(found)
    page.save(found, output)
    out.print(f"\nwrote {output}", highlight=False, markup=False)
