"""`oversmooth reproduce models` and `verify`: trained models for others, and one figure checked again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import duration, out, status
from oversmooth_papers.cli.reproduce import Page, print_line, reproduce, show, write_page
from oversmooth_papers.cli.train import Device, load

Results = Annotated[Path, typer.Option(help="Directory that keeps cells and models.")]


@reproduce.command()
def models(
    pack: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all models into one archive, .zip.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take the models of an archive that --pack wrote.")
    ] = None,
    results: Results = Path("results"),
) -> None:
    """The trained models of the tables as one archive with checksums, or from one."""
    from oversmooth.safety.errors import InputError
    from oversmooth_papers.tables import trained_models

    if pack is not None and source is None:
        titles = trained_models.pack(results, pack)
        done = f"wrote {pack}: {len(titles)} models"
    elif source is not None and pack is None:
        titles = trained_models.unpack(source, results)
        done = f"{len(titles)} models taken into {results / 'models'}"
    else:
        raise InputError("give one of --pack FILE and --from FILE")
    print_line("\n".join([*titles, done]))


@reproduce.command()
def verify(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Twelve digits, as status lists them, or a cell's file.")],
    data: Annotated[str | None, typer.Option(help="What it was tested on.", show_default="the recipe's")] = None,
    model: Annotated[Path | None, typer.Option(help="Its model.", show_default="the one in results/models")] = None,
    images: Annotated[
        int | None, typer.Option(help="Only so many test images, the first; fewer than 1,000 cannot agree.", min=10)
    ] = None,
    results: Results = Path("results"),
    device: Device = None,
) -> None:
    """Test the model of a cell again, and compare with the figure that the cell holds: minutes on a CPU.

    Leaves with exit code 1 where they differ by more than rounding explains, or where the images are too few to tell.
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
    """Dovonon et al.'s claims line by line, ours beside the published, from the cells that are there."""
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
    """The main claims of both papers: the published figure, ours, and whether they agree by one rule."""
    from oversmooth_papers.tables import claims as recipe
    from oversmooth_papers.tables.cells import check_there

    check_there(results)
    show(recipe.HEAD, recipe.rows(results), [recipe.NOTE], output)
