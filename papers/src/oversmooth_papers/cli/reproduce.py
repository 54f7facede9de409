"""`oversmooth reproduce`: the papers' tables and figures for models that the user names, or that were trained."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import Commands, advance, app, duration, out, progress_bar, status
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Dtype, Length, Seed, Variant, diagnose_all
from oversmooth_papers.cli.train import Device as TrainingDevice
from oversmooth_papers.cli.train import load

if TYPE_CHECKING:
    from oversmooth.diagnosis.result import Diagnosis

reproduce = Commands(
    help="Reproduce tables and figures of the papers, next to the published results.", no_args_is_help=True
)
app.add_typer(reproduce, name="reproduce")
neutreno = Commands(
    help="Reproduce the tables of Nguyen et al. (NeuTRENO), next to the published results.", no_args_is_help=True
)
reproduce.add_typer(neutreno, name="neutreno")
text = Commands(
    help="Reproduce the text experiments of Dovonon et al.: constrained language models.", no_args_is_help=True
)
reproduce.add_typer(text, name="text")


def _checked(*endings: str) -> Callable[[Path | None], Path | None]:
    """Of an option: raise `InputError` before any work if the file could not be written."""

    def check(path: Path | None) -> Path | None:
        from oversmooth.safety import files

        if path is not None:
            files.check_writable(path, endings)
        return path

    return check


Page = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the table to this file, .md.", callback=_checked(".md"))
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Write the figure to this file: .png, .svg or .pdf.",
        callback=_checked(".pdf", ".svg", ".png"),
    ),
]
_TABLE2 = "The models of table 2, instead of names"
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL...]", help="Hub ids, timm names, directories or safetensors files; or saved diagnoses (.json)."
    ),
]
Trained = Annotated[
    bool, typer.Option("--trained", help="Use ViT-Ti, ViT-Ti⁺ and ViT-Ti⁻ of table 2.", rich_help_panel=_TABLE2)
]
Share = Annotated[
    float,
    typer.Option(
        help="The column of table 2: 1 (its models come with the repository), 0.5 or 0.1.", rich_help_panel=_TABLE2
    ),
]
ModelsFolder = Annotated[
    Path, typer.Option(help="The results directory; models are in its subdirectory models.", rich_help_panel=_TABLE2)
]
Results = Annotated[Path, typer.Option(help="The directory of cells and models.")]
SeedToo = Annotated[int, typer.Option(help="Seed of random weights, of Arnoldi's starts, and of --trained models.")]
Rule = StrEnum("Rule", ["heads", "joined", "real"])


def write_page(path: Path | None, text: str) -> None:
    """Write a table or a page, if a path is given."""
    from oversmooth.safety.files import write_text

    if path is not None:
        write_text(path, text)
        out.print(f"wrote {path}")


def show(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    *outputs: Path | None,
    style: str | None = None,
) -> None:
    """Print a table with its notes, and write it to the files that are given."""
    from oversmooth_papers.tables import table_text

    out.print(table_text.terminal(head, rows))
    for note in notes:
        out.print(note, style=style)
    for output in outputs:
        write_page(output, table_text.markdown(head, rows, notes))


def _draw(diagnoses: list[Diagnosis], figure: str, path: Path | None) -> None:
    from oversmooth.report import figures

    if path is not None:
        figures.save_one(diagnoses, figure, path)
        out.print(f"wrote {path}")


def _named(
    models: list[str] | None, trained: bool, share: float, results: Path, seed: int | None = None, *, none: bool = False
) -> list[str]:
    """The models to use. none: whether the list may be empty."""
    from oversmooth.safety.errors import InputError

    if trained and models:
        raise InputError(f"both {models[0]} and --trained were given; name models, or take table 2's")
    if trained:
        from oversmooth_papers.tables.trained_models import find

        return [str(path) for path in find(results, share, seed)]
    if not models and not none:
        raise InputError("no model was named; name some, or give --trained for table 2's")
    return list(models or [])


@reproduce.command()
def table1(
    models: Models = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    rule: Annotated[
        Rule,
        typer.Option(help="heads: one maximum per head; joined: all heads jointly; real: as heads, with real parts."),
    ] = Rule.heads,
    variant: Annotated[Variant, typer.Option(help="How the norm enters H.")] = Variant.raw,
    trained: Trained = False,
    share: Share = 1.0,
    results: ModelsFolder = Path("results"),
    output: Page = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
) -> None:
    """Make table 1 of Dovonon et al.: the share of (input, layer, head) triples whose smoothing eigenvalue dominates.

    With --trained it covers all available seeds of table 2's models.
    """
    from oversmooth_papers.tables import table1 as recipe

    names, joined = _named(models, trained, share, results), rule is Rule.joined
    counted = "real" if rule is Rule.real else "complex"
    settings = dict(
        joined=sys.maxsize if joined else 0, ranks=0, depth=0, variant=variant.value, rule=counted, seed=seed
    )
    diagnoses = diagnose_all(names, data, inputs, length, batch, device=device, dtype=dtype, settings=settings)
    show(recipe.COLUMNS, recipe.rows(diagnoses, joined), recipe.notes(diagnoses, joined), output)


@reproduce.command()
def fig2(
    models: Models = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    trained: Trained = False,
    share: Share = 1.0,
    results: ModelsFolder = Path("results"),
    output: Output = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: SeedToo = 0,
) -> None:
    """Plot figure 2 of Dovonon et al.: three smoothing metrics by layer."""
    from oversmooth.report import terminal
    from oversmooth_papers.figures import FIG2

    names = _named(models, trained, share, results, seed)
    settings = dict(spectra=False, seed=seed)
    diagnoses = diagnose_all(names, data, inputs, length, batch, device=device, dtype=dtype, settings=settings)
    out.print(terminal.overview(diagnoses))
    _draw(diagnoses, FIG2, output)


@reproduce.command()
def fig3(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL | PLAIN SMOOTH SHARPEN]",
            help="A trained model to steer, or three models of oversmooth train; by default a ViT-Ti.",
        ),
    ] = None,
    data: Data = None,
    inputs: Count = None,
    batch: Batch = 16,
    trained: Trained = False,
    share: Share = 1.0,
    results: ModelsFolder = Path("results"),
    output: Output = None,
    device: Device = None,
    seed: SeedToo = 0,
) -> None:
    """Plot figure 3 of Dovonon et al.: a model constrained to sharpen, constrained to smooth, and unmodified."""
    from oversmooth.models.loaded import DATA_COUNT, DEFAULT_COUNT
    from oversmooth.report import terminal
    from oversmooth.results.verdict import constraint
    from oversmooth_papers.figures import fig3 as recipe

    names = _named(models, trained, share, results, seed, none=True)
    count, diagnoses = inputs or (DEFAULT_COUNT if data is None else DATA_COUNT), []
    with progress_bar("cases") as bars:
        todo = recipe.cases(names, seed, device)
        task = bars.add_task("", total=len(todo))
        for case in todo:
            bars.update(task, description=case.name)
            diagnoses.append(recipe.run(case, lambda loaded: loaded.inputs(data, count=count, batch=batch or 16), seed))
            bars.advance(task)
    out.print(terminal.overview(diagnoses))
    for diagnosis in diagnoses:
        if sentence := constraint(diagnosis):
            out.print(f"{diagnosis.name}: {sentence}")
    _draw(diagnoses, recipe.FIGURE, output)


@reproduce.command()
def steering(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A trained model.")],
    data: Data = None,
    inputs: Count = None,
    batch: Batch = 16,
    spectra: Annotated[int, typer.Option(help="Inputs whose spectra are computed.", min=1)] = 16,
    output: Page = None,
    device: Device = None,
) -> None:
    """Apply each method and strength to a trained model without training: curves, prediction, top-1."""
    from oversmooth.models import load
    from oversmooth.models.loaded import DATA_COUNT, DEFAULT_COUNT
    from oversmooth_papers.tables import steering as recipe

    count = inputs or (DEFAULT_COUNT if data is None else DATA_COUNT)
    loaded = load(model, device=device)
    diagnoses = []
    with status("reading the inputs"):
        whole, few = (loaded.inputs(data, count=n, batch=batch or 16).kept() for n in (count, min(spectra, count)))
    with progress_bar("inputs") as bars:
        for name, method, layers in recipe.SWEEP:
            diagnoses.append(recipe.sweep(loaded, whole, few, name, method, layers, advance(bars, name)))
    show(recipe.COLUMNS, recipe.rows(diagnoses), [], output)


@reproduce.command()
def fig5(
    models: Models = None,
    trained: Trained = False,
    share: Share = 1.0,
    results: ModelsFolder = Path("results"),
    output: Output = None,
    seed: Annotated[int, typer.Option(help="Seed of --trained models.", rich_help_panel=_TABLE2)] = 0,
) -> None:
    """Plot figure 5 of Dovonon et al.: the eigenvalues of H, from the weights alone."""
    from oversmooth.cli.spectrum import spectra_of
    from oversmooth.report import terminal
    from oversmooth_papers.figures import FIG5, FIG5_PUBLISHED

    diagnoses = [spectra_of(name) for name in _named(models, trained, share, results, seed)]
    for diagnosis in diagnoses:
        out.print(f"{diagnosis.name}: {terminal.share(diagnosis.negative_share)} of Re λ below zero")
        out.print(terminal.histogram(diagnosis))
    out.print(FIG5_PUBLISHED, style="dim")
    _draw(diagnoses, FIG5, output)


@text.command("figures")
def figures_of_text(
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory for fig2, fig3, fig5 and asymmetry.")],
    table: Annotated[str, typer.Option(help="The table whose models to use: causal, wikitext or masked.")] = "causal",
    quick: Annotated[bool, typer.Option("--quick", help="Use the models of the table's --quick.")] = False,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    results: Results = Path("results"),
    ending: Annotated[str, typer.Option(help="The format: svg, png or pdf.")] = "svg",
    seed: Annotated[int, typer.Option(help="Seed of the models.", min=0)] = 0,
    device: Device = None,
) -> None:
    """Plot figures 2, 3 and 5 of Dovonon et al. for trained language models, and the asymmetry of H during training."""
    from oversmooth.report import terminal
    from oversmooth.safety import files
    from oversmooth_papers.figures import FIG5_PUBLISHED
    from oversmooth_papers.tables.text import figures as recipe

    files.check_folder(output)
    models = recipe.trained(table, results, seed, quick=quick)
    paths, settings = [str(model.path) for model in models], dict(depth=0, joined=0, seed=seed)
    measured = diagnose_all(paths, data, inputs, length, batch, device=device, settings=settings)
    drawn = recipe.named(measured, models)
    out.print(terminal.overview(drawn))
    for diagnosis in drawn:
        out.print(f"{diagnosis.name}: {terminal.share(diagnosis.negative_share)} of Re λ below zero")
    out.print(FIG5_PUBLISHED)
    for path in recipe.write(drawn, recipe.asymmetries(models), output, ending):
        out.print(f"wrote {path}")


@reproduce.command()
def models(
    pack: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all models to one archive, .zip.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Import the models of an archive that --pack wrote.")
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Export the tables' trained models to one archive, or import them from one."""
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
    out.print("\n".join([*titles, done]))


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
    device: TrainingDevice = None,
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
    out.print(f"{recorded['title']} ({path})")
    for figure in checked.figures:
        out.print(
            f"{figure.score}: {figure.recorded:.4f} recorded, {figure.again:.4f} now, {figure.verdict} "
            f"(difference {figure.again - figure.recorded:+.4f}, allowed {figure.allowed:.4f})"
        )
    for note in (*checked.notes, f"took {duration(time.monotonic() - began)}"):
        out.print(note, style="dim")
    if not checked.agrees:
        raise typer.Exit(1)


@reproduce.command()
def first_paper(output: Page = None, results: Results = Path("results")) -> None:
    """List the claims of Dovonon et al. with our results, from the available cells."""
    from oversmooth_papers.tables.cells import check_there
    from oversmooth_papers.tables.first_paper import page

    check_there(results)
    text = page(results)
    if output is None:
        out.print(text, soft_wrap=True)
    write_page(output, text)


@reproduce.command()
def claims(output: Page = None, results: Results = Path("results")) -> None:
    """List the main claims of both papers: the published result, ours, and whether they agree by one rule."""
    from oversmooth_papers.tables import claims as recipe
    from oversmooth_papers.tables.cells import check_there

    check_there(results)
    show(recipe.HEAD, recipe.rows(results), [recipe.NOTE], output)
