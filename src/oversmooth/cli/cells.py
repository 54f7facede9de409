"""`oversmooth reproduce table2`, `table3`, `depth` and `status`: tables of trained models, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oversmooth.cli.app import out, progress_bar
from oversmooth.cli.reproduce import reproduce
from oversmooth.cli.train import Data, Device, Force, leave, leaves_when_asked, load, on_nan_named, progress, say

if TYPE_CHECKING:
    from rich.table import Table

    from oversmooth.reproduce.cells import Home
    from oversmooth.train.tasks.images.recipe import Recipe

Cells = Annotated[
    list[str] | None,
    typer.Option("--cells", help="Which: a variant (plain), a share (10%), or both (plain:10%); by default all."),
]
Seeds = Annotated[
    int | None, typer.Option(help="Seeds of each cell.", min=1, max=1000, show_default="3; 1 with --quick")
]
Results = Annotated[Path, typer.Option(help="Directory that keeps the cells.")]
Output = Annotated[
    list[Path] | None, typer.Option("--output", "-o", help="Table (.md) or chart (.png, .svg, .pdf) to write as well.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small version, minutes on a CPU; not to be compared.")]
Show = Annotated[bool, typer.Option("--show", help="Run nothing: show what is there.")]
AtOnce = Annotated[int, typer.Option(help="Runs at once, each in a process.", min=1, max=256)]
OnNan = Annotated[
    str, typer.Option("--on-nan", help="retry: a step that is not finite sends a run back to its checkpoint; or stop.")
]
Minutes = Annotated[float | None, typer.Option(help="Stop at checkpoints after so long.", min=0)]
Wiring = Annotated[str | None, typer.Option(help="paper or code, an unknown of the recipe.", show_default="paper")]
Initialisation = Annotated[
    str | None, typer.Option(help="truncated or torch, an unknown of the recipe.", show_default="truncated")
]
OutputBias = Annotated[
    bool | None,
    typer.Option(
        "--output-bias/--no-output-bias",
        help="Of ViT⁺'s and ViT⁻'s attention, an unknown of the recipe.",
        show_default="output-bias",
    ),
]


@reproduce.command()
def table2(
    cells: Cells = None,
    seeds: Seeds = None,
    quick: Quick = False,
    data: Data = "cifar100",
    results: Results = Path("results"),
    at_once: AtOnce = 1,
    minutes: Minutes = None,
    show: Show = False,
    output: Output = None,
    wiring: Wiring = None,
    initialisation: Initialisation = None,
    output_bias: OutputBias = None,
    device: Device = None,
    on_nan: OnNan = "retry",
    force: Force = False,
) -> None:
    """The first paper's table 2: accuracy against the share of training data, for ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻.

    Cells that are not there yet are run, and kept; interrupted ones go on from their checkpoint next time.
    """
    from oversmooth.reproduce import cells as kept
    from oversmooth.reproduce import table2 as recipe

    _check_outputs(output)
    every = recipe.recipes(seeds or (1 if quick else 3), quick=quick)
    every = kept.with_options(every, wiring=wiring, initialisation=initialisation, output_bias=output_bias)
    name = recipe.QUICK_NAME if quick else recipe.NAME
    tested = recipe.QUICK_TEST_IMAGES if quick else None
    every, why = _filled(every, cells, name, data, results, show, tested, at_once, minutes, device, on_nan, force)
    values = recipe.found(every, results, name)
    _present(recipe.table(values, quick), recipe.markdown(values, quick), output, lambda: recipe.chart(values, quick))
    _after(recipe.QUICK_NOTE if quick else "", quick, why)


def _filled(
    every: list[Recipe],
    words: list[str] | None,
    table: Home,
    data: str,
    results: Path,
    show: bool,
    tested: int | None,
    at_once: int,
    minutes: float | None,
    device: str | None,
    on_nan: str,
    force: bool,
) -> tuple[list[Recipe], str]:
    """The cells as they fit the data, those that the words name run; and "finished", or why these are not all there.

    tested: so many test images for a quick version, which is fitted to the data; None for the paper's.
    """
    from oversmooth.reproduce import cells as kept
    from oversmooth.safety import files
    from oversmooth.train.engine.result import first_of_test

    if show:
        return (every if tested is None else kept.like_those_there(every, results, str(table))), "finished"
    files.check_folder(results)  # what can be refused is, before the data is read, which takes a while
    retry = on_nan_named(on_nan)
    kept.chosen(every, words or [])
    with leaves_when_asked():
        splits = load(data)
        if tested is not None:
            every = [one.fitted(splits.train) for one in every]
            splits, at_once = first_of_test(splits, tested), 1
        wanted = kept.chosen(every, words or [])
        for one in wanted:
            one.check_fits(splits.train)
        with progress() as told:
            filled = kept.fill(
                wanted,
                splits,
                results,
                table,
                data=data,
                at_once=at_once,
                minutes=minutes,
                device=device,
                on_nan=retry,
                force=force,
                told=say,
                progress=told,
            )
    return every, filled.why


def _after(note: str, quick: bool, why: str) -> None:
    if note:
        out.print(note, style="yellow" if quick else "dim", highlight=False, markup=False)
    if why != "finished":
        out.print(f"{why}: not all cells are there; the same command goes on", highlight=False)
        leave(why)


@reproduce.command()
def depth(
    share: Annotated[float, typer.Option(help="Of the training images; the paper's was not published.")] = 0.1,
    cells: Annotated[
        list[str] | None,
        typer.Option("--cells", help="Which: a variant (plain), a depth (depth24), or both (plain:depth24)."),
    ] = None,
    seeds: Seeds = None,
    quick: Quick = False,
    data: Data = "cifar100",
    results: Results = Path("results"),
    at_once: AtOnce = 1,
    minutes: Minutes = None,
    show: Show = False,
    output: Output = None,
    wiring: Wiring = None,
    initialisation: Initialisation = None,
    output_bias: OutputBias = None,
    device: Device = None,
    on_nan: OnNan = "retry",
    force: Force = False,
) -> None:
    """The first paper's "more layers": accuracy, and how smooth tokens end, with 12, 24 and 48 blocks.

    The cells of 12 blocks are table 2's: they are taken from there, or run and kept there.
    """
    from oversmooth.reproduce import cells as kept
    from oversmooth.reproduce import depth as recipe

    _check_outputs(output)
    every = recipe.recipes(seeds or (1 if quick else 3), share=share, quick=quick)
    every = kept.with_options(every, wiring=wiring, initialisation=initialisation, output_bias=output_bias)
    table = recipe.QUICK_NAME if quick else recipe.home
    tested = recipe.QUICK_TEST_IMAGES if quick else None
    every, why = _filled(every, cells, table, data, results, show, tested, at_once, minutes, device, on_nan, force)
    values = recipe.found(every, results, table)
    text = recipe.markdown(values, share, quick)
    _present(recipe.table(values, share, quick), text, output, lambda: recipe.chart(values, share, quick))
    _after(recipe.QUICK_NOTE if quick else recipe.NOTE, quick, why)


@reproduce.command()
def table3(
    share: Annotated[float, typer.Option(help="Of which of table 2's models: 1, 0.5 or 0.1.")] = 1.0,
    seeds: Seeds = None,
    quick: Quick = False,
    data: Data = "cifar100",
    results: Results = Path("results"),
    models: Annotated[Path | None, typer.Option(help="Folder of models, by default the results' own.")] = None,
    official: Annotated[Path | None, typer.Option(help="Folder of CIFAR-100-C's official files.")] = None,
    show: Show = False,
    output: Output = None,
    wiring: Wiring = None,
    initialisation: Initialisation = None,
    output_bias: OutputBias = None,
    device: Device = None,
    force: Force = False,
) -> None:
    """The first paper's table 3: accuracy of table 2's models against the intensity of corruption."""
    from oversmooth.reproduce import cells as kept
    from oversmooth.reproduce import table2, table3
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError
    from oversmooth.train.engine.result import first_of_test

    _check_outputs(output)
    every = table2.recipes(seeds or (1 if quick else 3), quick=quick)
    every = kept.with_options(every, wiring=wiring, initialisation=initialisation, output_bias=output_bias)
    every = [one for one in every if quick or one.share == share]
    if not every:
        raise InputError(f"table 2 has no models of a share of {share:g}; choose 1, 0.5 or 0.1")
    name = table3.QUICK_NAME if quick else table3.NAME
    if official is not None:
        name += "-official"  # other pictures, and so other cells
    if not show:
        files.check_folder(results)
        splits = load(data)
        if quick:
            every = [one.fitted(splits.train) for one in every]
            splits = first_of_test(splits, table2.QUICK_TEST_IMAGES)
        every[0].check_fits(splits.test)
        with progress_bar("corruptions") as bars:
            tasks: dict[str, Any] = {}

            def told(title: str, done: int, total: int, what: str) -> None:
                if title not in tasks:
                    tasks[title] = bars.add_task(title, total=total)
                bars.update(tasks[title], completed=done, description=f"{title}: {what}")

            lacking = table3.fill(
                every,
                splits.test,
                results,
                name,
                models=models,
                official=official,
                device=device,
                force=force,
                told=told,
            )
        for one in lacking:
            say(f"{one.title}: no model; oversmooth reproduce table2 makes it")
    else:
        every = kept.like_those_there(every, results, name)
    values = table3.found(every, results, name)
    text = table3.markdown(values, share, quick)
    _present(table3.table(values, share, quick), text, output, lambda: table3.chart(values, share, quick))


@reproduce.command()
def status(results: Results = Path("results")) -> None:
    """Which cells are there, and which are on their way."""
    from rich import box
    from rich.table import Table

    from oversmooth.reproduce import cells as kept

    rows = kept.status(results)
    if not rows:
        out.print(f"{results} has no cells yet; oversmooth reproduce table2 makes some", highlight=False)
        return
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("table", "cell", "accuracy", "on", "when"):
        shown.add_column(heading, justify="right" if heading == "accuracy" else "left")
    for row in rows:
        shown.add_row(*row)
    out.print(shown)


def _check_outputs(output: list[Path] | None) -> None:
    from oversmooth.report import figures
    from oversmooth.safety import files

    files.check_apart(output or [])
    for path in output or []:
        figures.check(path, also=(".md",))


def _present(table: Table, markdown: str, output: list[Path] | None, chart: Any) -> None:
    from oversmooth.report import figures
    from oversmooth.safety import files

    out.print(table)
    for path in output or []:
        if path.suffix.lower() == ".md":
            with files.whole_file(path) as temporary:
                temporary.write_text(markdown, encoding="utf-8")
        else:
            figures.write(chart(), path)
        out.print(f"wrote {path}", highlight=False, markup=False)
