"""`oversmooth gallery`: real models side by side, a page for each and one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import advance, app, err, option, out, progress_bar

_MODELS = (
    "minilm, mpnet, chemistry-albert, vit-plain, vit-smooth, vit-sharpen, deit-tiny or stories15m; or any hub id, timm "
    "name or path."
)
_DEFAULT = "all named models that are installed"


@app.command()
def gallery(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL...]", help=_MODELS, show_default=_DEFAULT)
    ] = None,
    output: Annotated[Path, option("DIR", "Directory for pages, diagnoses and the table.", "--output", "-o")] = Path(
        "gallery"
    ),
    seed: Annotated[int, option("N", "Seed of the eigenvalue searches.")] = 0,
) -> None:
    """Diagnose real models; write a page for each and one table of all.

    Writes NAME.html and NAME.json per model, and the table as gallery.json, gallery.md and index.html. Needs
    oversmooth[models], except for the ViTs that come with the package.
    """
    from oversmooth.demo import gallery as known
    from oversmooth.demo import gallery_table
    from oversmooth.report import page
    from oversmooth.report.style import arrow
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError

    files.check_folder(output)
    page.check(output / "index.html")
    asked = [known.named(word) for word in models] if models else list(known.entries().values())
    missing = {entry.key: text for entry in asked if (text := entry.missing())}
    for key, text in missing.items():
        if models:
            raise InputError(f"{key} is not available: {text}")
        err.print(f"{key} is left out: {text}", soft_wrap=True)
    table = []
    for entry in asked:
        if entry.key in missing:
            continue
        with progress_bar("inputs") as bars:
            diagnosis = entry.run(seed, advance(bars, entry.title))
        table.append(gallery_table.figures(entry, diagnosis))
        diagnosis.save(output / f"{entry.key}.json")
        page.save([diagnosis], output / f"{entry.key}.html", [("all models of the gallery", "index.html")])
        out.print(f"{entry.title}: HFC/LFC {arrow(table[-1]['hfc_lfc'])}, {table[-1]['seconds']:.0f} s")
    gallery_table.write(table, output, "gallery")
    out.print(f"wrote {len(table)} page{'' if len(table) == 1 else 's'}, and {output / 'index.html'} with the table")
