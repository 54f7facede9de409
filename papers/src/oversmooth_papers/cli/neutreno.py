"""`oversmooth reproduce neutreno`: what Nguyen et al. show, and what their readers ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oversmooth.cli.app import out, parts_done, progress_bar, status
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Dtype, Length, diagnose_all
from oversmooth_papers.cli.reproduce import Page, Results, neutreno, show, write_page
from oversmooth_papers.cli.train import Data as TrainingData
from oversmooth_papers.cli.train import Device as TrainingDevice
from oversmooth_papers.cli.train import Force, print_message
from oversmooth_papers.cli.tune import BatchSize, Folds, Inputs, Methods, Rate, Seed, read

if TYPE_CHECKING:
    from oversmooth_papers.tables.filling import Running

Models = Annotated[
    list[str] | None, typer.Argument(metavar="MODEL...", help="The models, as oversmooth diagnose takes them.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="The three small ViTs that come with the package, on a few of their images.")
]
_FEW = 4
"""Inputs of a quick version."""


@neutreno.command()
def kernel(
    models: Models = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    quick: Quick = False,
    output: Page = None,
    device: Device = None,
) -> None:
    """Measure how symmetric and how positive attention kernels are, as the paper's derivation assumes them."""
    from oversmooth_papers.tables.neutreno import kernel as recipe

    _by_layer(recipe, recipe.kernels, _which(models, data, inputs, quick), length, output, device)


@neutreno.command()
def energy(
    models: Models = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    quick: Quick = False,
    strength: Annotated[float, typer.Option(help="λ̃ of the fidelity term; 0 leaves it out.")] = 0.6,
    output: Page = None,
    device: Device = None,
) -> None:
    """Measure whether attention lowers the paper's energies, and how far its Euler step is off the flow."""
    from oversmooth.safety import arguments
    from oversmooth_papers.tables.neutreno import energy as recipe

    arguments.number(strength, "--strength", "give a number, 0 or more", least=0.0)
    measure = partial(recipe.energies, strength=strength)
    _by_layer(recipe, measure, _which(models, data, inputs, quick), length, output, device)


def _which(
    models: list[str] | None, data: Path | None, inputs: int | None, quick: bool
) -> tuple[list[str], Path | None, int | None]:
    """Models, where their inputs come from, and how many."""
    from oversmooth.demo import vits
    from oversmooth.safety.errors import InputError

    if not quick:
        if not models:
            raise InputError("no model is named; name one, or give --quick for those that come with the package")
        return models, data, inputs
    if models or data is not None:
        raise InputError("--quick has models and data of its own; leave yours out, or --quick")
    note = "quick: ViTs of 0.6 million weights that come with the package, on a few Fashion-MNIST images"
    out.print(note, style="dim")
    return [str(vits.file_of(variant)) for variant in vits.NAMES], vits.IMAGES, inputs or _FEW


def _by_layer(
    recipe: Any,
    measure: Callable[..., list[Any]],
    which: tuple[list[str], Path | None, int | None],
    length: int | None,
    output: Path | None,
    device: str | None,
) -> None:
    """Every model's table, one below the other, and one sentence on all of them."""
    from oversmooth.models import load
    from oversmooth.models.loaded import DEFAULT_COUNT
    from oversmooth_papers.tables import table_text
    from oversmooth_papers.tables.neutreno.kernel import rows

    names, data, inputs = which
    # What can be refused is, of all of them, before the first takes its time.
    models = [load(name, device=device) for name in names]
    prepared = [(one, one.inputs(data, count=inputs or DEFAULT_COUNT, length=length, batch=1)) for one in models]
    measured: list[tuple[str, list[Any]]] = []
    with progress_bar("inputs") as bars:
        for loaded, given in prepared:
            task = bars.add_task(loaded.name, total=given.count)
            layers = measure(loaded, given, progress=lambda done, task=task: bars.update(task, completed=done))
            measured.append((loaded.name, layers))
    tables = [(name, rows(name, layers, len(recipe.HEAD), recipe.shown)) for name, layers in measured]
    for name, shown in tables:
        out.print(f"\n{name}")
        out.print(table_text.terminal(recipe.HEAD[1:], [row[1:] for row in shown]))
    write_page(output, table_text.markdown(recipe.HEAD, [row for _, shown in tables for row in shown]))
    out.print(recipe.conclusion([layer for _, layers in measured for layer in layers]))


@neutreno.command()
def cosine(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="The models, as oversmooth diagnose takes them; or cells of trained ones, results/TABLE/KEY.json.",
        ),
    ] = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    quick: Quick = False,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Table (.md) or figure (.png, .svg, .pdf) to write; may be repeated."),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Show the mean cosine similarity of tokens per layer, several models in one table and one figure."""
    from dataclasses import replace

    from oversmooth.report import figures
    from oversmooth.safety import files
    from oversmooth_papers.tables.neutreno import cosine as recipe

    names, data, inputs = _which(models, data, inputs, quick)
    outputs = output or []
    files.check_apart(outputs, (*names, data))
    curves, diagnoses = recipe.curves_of_cells(names), []
    for path in outputs:  # a figure is drawn of diagnoses, which cells are not
        figures.check(path, also=(".md",)) if curves is None else files.check_writable(path, (".md",))
    if curves is None:
        settings = dict(spectra=False, ranks=0, seed=0)
        diagnoses = diagnose_all(names, data, inputs, length, batch, device=device, dtype=dtype, settings=settings)
        curves = [recipe.curve_of(diagnosis) for diagnosis in diagnoses]
    curves, common = recipe.shortened(curves)
    tables = [path for path in outputs if path.suffix.lower() == ".md"]
    show(*recipe.rows(curves), recipe.notes(curves, common), *tables, style="dim")
    out.print(recipe.conclusion(curves))
    drawn = [replace(d, model={**d.model, "name": curve.name}) for d, curve in zip(diagnoses, curves, strict=False)]
    for path in outputs:
        if path not in tables:
            figures.save_one(drawn, recipe.FIGURE, path)
            out.print(f"wrote {path}")


@contextmanager
def _running(unit: str, device: str | None, force: bool) -> Iterator[Running]:
    """How cells are measured, with a bar for each model."""
    from oversmooth_papers.tables.filling import Running

    with parts_done(unit) as on_progress:
        yield Running(device=device, force=force, on_message=print_message, on_progress=on_progress)


@neutreno.command()
def robustness(
    trained: Annotated[
        list[Path],
        typer.Option("--trained", metavar="FILE", help="A model that oversmooth train wrote; may be repeated."),
    ],
    data: TrainingData = "cifar100",
    results: Results = Path("results"),
    images: Annotated[
        int | None, typer.Option(help="Test images, the first ones.", min=1, show_default="1000; 12 with --quick")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="ε of 0.5, 1, 2, 4 and 8 over 255, not of 1 and 4.")] = False,
    restarts: Annotated[int, typer.Option(help="Of PGD; the worst counts.", min=1, max=1000)] = 1,
    official: Annotated[
        Path | None, typer.Option(help="Folder of CIFAR-100-C's official files; by default corruptions are made.")
    ] = None,
    frost: Annotated[
        Path | None,
        typer.Option(
            help="Folder of ImageNet-C's pictures of frost, or imagenet-c-frost where OVERSMOOTH_DATA has it; by "
            "default textures of our own."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few images and steps, a minute on a CPU; not to be compared.")
    ] = False,
    output: Page = None,
    device: TrainingDevice = None,
    force: Force = False,
) -> None:
    """Test trained models under FGSM and PGD, and under the 15 corruptions.

    A cell per model is kept in results/neutreno/robustness; what is there is not run again.
    """
    from dataclasses import replace

    from oversmooth_papers.tables.neutreno import robustness as recipe
    from oversmooth_papers.tasks.images.data import load

    settings = replace(
        recipe.QUICK if quick else recipe.RobustnessSettings(), restarts=restarts, official=official, frost=frost
    )
    settings = replace(settings, images=images or settings.images, radii=recipe.CURVE if curve else recipe.RADII)
    models = recipe.named(trained)
    with status(f"reading {data}"):
        test = load(data, "test")
    with _running("done", device, force) as running:
        cells = recipe.measure(models, test, results, settings, running)
    show(*recipe.rows(cells, settings), recipe.notes(settings), output, style="yellow" if quick else "dim")


@neutreno.command()
def prediction(
    trained: Annotated[
        list[Path],
        typer.Option("--trained", metavar="FILE", help="A plain model that oversmooth train wrote; may be repeated."),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="What it was trained on, by name or folder.", show_default="the name in its recipe"),
    ] = None,
    results: Results = Path("results"),
    inputs: Annotated[
        int, typer.Option(help="Test images, or windows of the validation text, the first ones.", min=1)
    ] = 32,
    output: Page = None,
    device: TrainingDevice = None,
    force: Force = False,
) -> None:
    """Show which λ̃ the spectra of plain models propose, beside what training with λ̃ gave.

    What was computed of a model is kept in results/neutreno/prediction; accuracies, or perplexities, are those of the
    cells of ablation and language-ablation.
    """
    from oversmooth_papers.tables.neutreno import prediction as recipe

    models = recipe.named(trained)
    first = models[0].recipe
    with status(f"reading {data or first.data}"):
        given = recipe.KINDS[type(first)].load(first, data or first.data)
    with _running("inputs", device, force) as running:
        predictions = recipe.measure(models, given, results, inputs, running)
    show(*recipe.table(predictions, results), output, style="dim")


@neutreno.command()
def adaptation(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="An image classifier; by default DeiT-Tiny.", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="LABELLED", help="Labelled images, as oversmooth tune takes them.", show_default="imagenet-val-1k"
        ),
    ] = None,
    method: Methods = None,
    inputs: Inputs = None,
    folds: Folds = 5,
    steps: Annotated[int, typer.Option(help="Of AdamW in a fold.", min=1, max=1_000_000)] = 6,
    lr: Rate = 0.005,
    batch: BatchSize = 32,
    results: Results = Path("results"),
    output: Page = None,
    device: Device = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """What learned strengths bring to a trained model whose weights stay as they are.

    A cell per method is kept in results/neutreno/adaptation; what is there is not run again.
    """
    from oversmooth_papers import tuning
    from oversmooth_papers.tables import table_text
    from oversmooth_papers.tables.neutreno import adaptation as recipe
    from oversmooth_papers.tuning import report

    settings = tuning.TuningSettings(folds=folds, steps=steps, lr=lr, batch=batch, seed=seed)
    methods = [tuning.tuning_method(text) for text in method or tuning.DEFAULT_METHODS]
    model, data = model or recipe.default_model(), data or recipe.default_data()
    loaded, images = read(model, data, inputs, settings, device)
    with _running("images", device, force) as running:
        cells = recipe.measure(loaded, images, methods, settings, results, running)
    out.print(table_text.terminal(*report.terminal_rows(cells)))
    head, rows, notes = recipe.table(cells)
    for note in notes:
        out.print(note, style="dim")
    write_page(output, table_text.markdown(head, rows, notes))
