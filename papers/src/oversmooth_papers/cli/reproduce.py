"""`oversmooth reproduce`: the papers' tables and figures for models that the user names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import Commands, advance, app, out, progress_bar, status
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Dtype, Length, Seed, Variant, diagnose_all

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


def check_page(path: Path | None) -> Path | None:
    """Raise `InputError` before any work if the table could not be written."""
    from oversmooth.safety import files

    if path is not None:
        files.check_writable(path, (".md",))
    return path


def _check_figure(path: Path | None) -> Path | None:
    from oversmooth.report import figures

    if path is not None:
        figures.check(path)
    return path


Page = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the table to this file, .md.", callback=check_page)
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the figure to this file: .png, .svg or .pdf.", callback=_check_figure),
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
Results = Annotated[
    Path, typer.Option(help="The results directory; models are in its subdirectory models.", rich_help_panel=_TABLE2)
]
SeedToo = Annotated[int, typer.Option(help="Seed of random weights, of Arnoldi's starts, and of --trained models.")]
Rule = StrEnum("Rule", ["heads", "joined", "real"])


def print_line(text: str, style: str | None = None) -> None:
    """Print a line."""
    out.print(text, style=style)


def write_page(path: Path | None, text: str) -> None:
    """Write a table or a page, if a path is given."""
    from oversmooth.safety.files import whole_file

    if path is not None:
        with whole_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print_line(f"wrote {path}")


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
        print_line(note, style)
    for output in outputs:
        write_page(output, table_text.markdown(head, rows, notes))


def _draw(diagnoses: list[Diagnosis], figure: str, path: Path | None) -> None:
    from oversmooth.report import figures

    if path is not None:
        figures.save_one(diagnoses, figure, path)
        print_line(f"wrote {path}")


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
    results: Results = Path("results"),
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
    results: Results = Path("results"),
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
    results: Results = Path("results"),
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
            print_line(f"{diagnosis.name}: {sentence}")
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
    results: Results = Path("results"),
    output: Output = None,
    seed: Annotated[int, typer.Option(help="Seed of --trained models.", rich_help_panel=_TABLE2)] = 0,
) -> None:
    """Plot figure 5 of Dovonon et al.: the eigenvalues of H, from the weights alone."""
    from oversmooth.cli.spectrum import spectra_of
    from oversmooth.report import terminal
    from oversmooth_papers.figures import FIG5, FIG5_PUBLISHED

    diagnoses = [spectra_of(name) for name in _named(models, trained, share, results, seed)]
    for diagnosis in diagnoses:
        print_line(f"{diagnosis.name}: {terminal.share(diagnosis.negative_share)} of Re λ below zero")
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
    results: Annotated[Path, typer.Option(help="The directory of cells and models.")] = Path("results"),
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
        print_line(f"{diagnosis.name}: {terminal.share(diagnosis.negative_share)} of Re λ below zero")
    print_line(FIG5_PUBLISHED)
    for path in recipe.write(drawn, recipe.asymmetries(models), output, ending):
        print_line(f"wrote {path}")
