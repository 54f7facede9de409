"""`oversmooth reproduce models` and `verify`: share trained models, and test one again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import duration, out, status
from oversmooth_papers.cli.reproduce import Page, print_line, reproduce, show, write_page
from oversmooth_papers.cli.train import Device, load

Results = Annotated[Path, typer.Option(help="The directory of cells and models.")]


@reproduce.command()
def models(
    pack: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all models to one archive, .zip.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Import the models of an archive that --pack wrote.")
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Export the tables' trained models to one archive with checksums, or import them from one."""
    from oversmooth.safety.errors import InputError
    from oversmooth_papers.tables import trained_models

    if pack is not None and source is None:
        titles = trained_models.pack(results, pack)
        done = f"wrote {pack}: {len(titles)} models"
    elif source is not None and pack is None:
        titles = trained_models.unpack(source, results)
        done = f"{len(titles)} models imported into {results / 'models'}"
    else:
        raise InputError("give one of --pack FILE and --from FILE")
    print_line("\n".join([*titles, done]))


@reproduce.command()
def verify(
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="The cell's twelve-digit key, as status lists it, or its file.")
    ],
    data: Annotated[str | None, typer.Option(help="The data it was tested on.", show_default="the recipe's")] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model's file.", show_default="the one in results/models")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Test only on the first so many images; below 1,000 the result is undecided.", min=10),
    ] = None,
    results: Results = Path("results"),
    device: Device = None,
) -> None:
    """Test a cell's model again and compare the result with the recorded one: minutes on a CPU.

    The exit code is 1 if they differ by more than rounding explains, or if there are too few images to decide.
    """
    from oversmooth_papers.engine.recipe import read_recipe
    from oversmooth_papers.tables import verify as recipe

    began = time.monotonic()
    path, recorded = recipe.find_cell(cell, results)
    file = recipe.model_of(recorded, results, model)
    own = read_recipe(recorded["recipe"])
    loaded = load(data or own.data, own)
    with status(f"testing {recorded['title']}"):
        checked = recipe.verify(recorded, file, loaded, device=device, images=images)
    print_line(f"{recorded['title']} ({path})")
    for figure in checked.figures:
        print_line(
            f"{figure.score}: {figure.recorded:.4f} recorded, {figure.again:.4f} now, {figure.verdict} "
            f"(difference {figure.again - figure.recorded:+.4f}, allowed {figure.allowed:.4f})"
        )
    for note in (*checked.notes, f"took {duration(time.monotonic() - began)}"):
        print_line(note, style="dim")
    if not checked.agrees:
        raise typer.Exit(1)


@reproduce.command()
def first_paper(
    output: Page = None,
    results: Results = Path("results"),
) -> None:
    """List the claims of Dovonon et al. with our results, from the available cells."""
    from oversmooth_papers.tables.cells import check_there
    from oversmooth_papers.tables.first_paper import page

    check_there(results)
    text = page(results)
    if output is None:
        out.print(text, soft_wrap=True)
    write_page(output, text)


@reproduce.command()
def claims(
    output: Page = None,
    results: Results = Path("results"),
) -> None:
    """List the main claims of both papers: the published result, ours, and whether they agree by one rule."""
    from oversmooth_papers.tables import claims as recipe
    from oversmooth_papers.tables.cells import check_there

    check_there(results)
    show(recipe.HEAD, recipe.rows(results), [recipe.NOTE], output)
