"""`oversmooth reproduce neutreno`: what Nguyen et al. show, and what their readers ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from oversmooth.cli.app import Commands, out, parts_done, progress_bar, status
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Dtype, Length, diagnose_all
from oversmooth_papers.cli.reproduce import reproduce
from oversmooth_papers.cli.train import Data as TrainingData
from oversmooth_papers.cli.train import Device as TrainingDevice
from oversmooth_papers.cli.train import Force, say
from oversmooth_papers.cli.tune import BatchSize, Folds, Inputs, Methods, Rate, Seed

neutreno = Commands(
    help="Reproduce the tables of Nguyen et al. (NeuTRENO), ours beside the published figures.", no_args_is_help=True
)
reproduce.add_typer(neutreno, name="neutreno")
Models = Annotated[
    list[str] | None, typer.Argument(metavar="MODEL...", help="The models, as oversmooth diagnose takes them.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="The three small ViTs that come with the package, on a few of their images.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The table to write, .md.")]
_FEW = 4
"""Inputs of a quick version."""


@neutreno.command()
def kernel(
    models: Models = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    quick: Quick = False,
    output: Output = None,
    device: Device = None,
) -> None:
    """Measure how symmetric and how positive attention kernels are, as the paper's derivation assumes them."""
    from oversmooth_papers.tables.neutreno import kernel as recipe

    _run(recipe, recipe.kernels, _which(models, data, inputs, quick), length, output, device)


@neutreno.command()
def energy(
    models: Models = None,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    quick: Quick = False,
    strength: Annotated[float, typer.Option(help="λ̃ of the fidelity term; 0 leaves it out.")] = 0.6,
    output: Output = None,
    device: Device = None,
) -> None:
    """Measure whether attention lowers the paper's energies, and how far its Euler step is off the flow."""
    from oversmooth.safety import arguments
    from oversmooth_papers.tables.neutreno import energy as recipe

    arguments.number(strength, "--strength", "give a number, 0 or more", least=0.0)

    def measure(loaded: Any, given: Any, progress: Any) -> Any:
        return recipe.energies(loaded, given, strength, progress)

    _run(recipe, measure, _which(models, data, inputs, quick), length, output, device)


@dataclass(frozen=True)
class _Which:
    """Models, where their inputs come from, and how many."""

    models: list[str]
    data: Path | None
    inputs: int | None


def _which(models: list[str] | None, data: Path | None, inputs: int | None, quick: bool) -> _Which:
    from oversmooth.safety.errors import InputError

    if not quick:
        if not models:
            raise InputError("no model is named; name one, or give --quick for those that come with the package")
        return _Which(models, data, inputs)
    if models or data is not None:
        raise InputError("--quick has models and data of its own; leave yours out, or --quick")
    from oversmooth.demo import vits

    note = "quick: ViTs of 0.6 million weights that come with the package, on a few Fashion-MNIST images"
    out.print(note, style="dim", highlight=False, markup=False)
    return _Which([str(vits.file_of(variant)) for variant in vits.NAMES], vits.IMAGES, inputs or _FEW)


def _run(
    recipe: Any,
    measure: Callable[..., Any],
    which: _Which,
    length: int | None,
    output: Path | None,
    device: str | None,
) -> None:
    """Every model's table, one below the other."""
    from oversmooth.models import load
    from oversmooth.models.loaded import DEFAULT_COUNT
    from oversmooth.safety import files
    from oversmooth_papers.tables import table_text

    if output is not None:
        files.check_writable(output, (".md",))
    # What can be refused is, of all of them, before the first takes its time.
    prepared = []
    count = which.inputs or DEFAULT_COUNT
    for name in which.models:
        loaded = load(name, device=device)
        prepared.append((loaded, loaded.inputs(which.data, count=count, length=length, batch=1)))
    layers = []
    with progress_bar("inputs") as bars:
        for loaded, given in prepared:
            task = bars.add_task(loaded.name, total=given.count)
            layers += measure(loaded, given, lambda done, task=task: bars.update(task, completed=done))
    for model in dict.fromkeys(layer.model for layer in layers):
        out.print(f"\n{model}", highlight=False, markup=False)
        out.print(table_text.terminal(recipe.HEAD[1:], [layer.row[1:] for layer in layers if layer.model == model]))
    if output is not None:
        with files.whole_file(output) as temporary:
            temporary.write_text(recipe.markdown(layers), encoding="utf-8")
        out.print(f"wrote {output}", highlight=False, markup=False)


def _show(table: tuple[list[str], list[list[str]]], notes: list[str], output: Path | None, style: str = "dim") -> None:
    """A table with its notes, in the terminal and as a file."""
    from oversmooth.safety import files
    from oversmooth_papers.tables import table_text

    out.print(table_text.terminal(*table))
    for note in notes:
        out.print(note, style=style, highlight=False, markup=False)
    if output is not None:
        with files.whole_file(output) as temporary:
            temporary.write_text(table_text.markdown(*table, notes), encoding="utf-8")
        out.print(f"wrote {output}", highlight=False, markup=False)


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
    from oversmooth.report import figures
    from oversmooth.safety import files
    from oversmooth_papers.tables import table_text
    from oversmooth_papers.tables.neutreno import cosine as recipe

    which = _which(models, data, inputs, quick)
    files.check_apart(output or [], (*which.models, which.data))
    if (kept := recipe.kept_curves(which.models)) is not None:
        _show_kept(recipe, kept, output or [])
        return
    for path in output or []:
        figures.check(path, also=(".md",))
    settings = dict(spectra=False, ranks=0, seed=0)
    whole = diagnose_all(
        which.models, which.data, which.inputs, length, batch, device=device, dtype=dtype, settings=settings
    )
    diagnoses, common = recipe.shortened(whole)
    out.print(table_text.terminal(*recipe.rows(diagnoses)))
    for note in recipe.notes(diagnoses, common):
        out.print(note, style="dim", highlight=False, markup=False)
    for path in output or []:
        if path.suffix.lower() == ".md":
            with files.whole_file(path) as temporary:
                temporary.write_text(recipe.markdown(diagnoses, common), encoding="utf-8")
        else:
            figures.save_one(diagnoses, recipe.FIGURE, path)
        out.print(f"wrote {path}", highlight=False, markup=False)


def _show_kept(recipe: Any, kept: list[Any], outputs: list[Path]) -> None:
    """The curves of cells, as a table: what a figure is drawn of is a diagnosis."""
    from oversmooth.safety import files

    for path in outputs:
        files.check_writable(path, (".md",))
    curves, common = recipe.shortened(kept)
    _show(recipe.rows(curves), recipe.notes(curves, common), None)
    for path in outputs:
        with files.whole_file(path) as temporary:
            temporary.write_text(recipe.markdown(curves, common), encoding="utf-8")
        out.print(f"wrote {path}", highlight=False, markup=False)


@neutreno.command()
def robustness(
    trained: Annotated[
        list[Path],
        typer.Option("--trained", metavar="FILE", help="A model that oversmooth train wrote; may be repeated."),
    ],
    data: TrainingData = "cifar100",
    results: Annotated[Path, typer.Option(help="Directory that keeps the cells.")] = Path("results"),
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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The table to write, .md.")] = None,
    device: TrainingDevice = None,
    force: Force = False,
) -> None:
    """Test trained models under FGSM and PGD, and under the 15 corruptions.

    A cell per model is kept in results/neutreno/robustness; what is there is not run again.
    """
    from dataclasses import replace

    from oversmooth.safety import files
    from oversmooth_papers.tables.filling import Running
    from oversmooth_papers.tables.neutreno import robustness as recipe
    from oversmooth_papers.tasks.images.data import load

    if output is not None:
        files.check_writable(output, (".md",))
        files.check_apart([output], trained)
    files.check_folder(results)
    begun = recipe.QUICK if quick else recipe.Settings()
    settings = replace(
        begun,
        images=images or begun.images,
        radii=recipe.CURVE if curve else begun.radii,
        restarts=restarts,
        official=official,
        frost=frost,
    )
    models = recipe.named(trained)
    with status(f"reading {data}"):
        test = load(data, "test")
    with parts_done("done") as on_progress:
        running = Running(device=device, force=force, on_message=say, on_progress=on_progress)
        cells = recipe.measure(models, test, results, settings, running)
    _show(recipe.rows(cells, settings), recipe.notes(settings), output, style="yellow" if quick else "dim")


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
    results: Annotated[Path, typer.Option(help="Directory that keeps the cells.")] = Path("results"),
    inputs: Annotated[
        int, typer.Option(help="Test images, or windows of the validation text, the first ones.", min=1)
    ] = 32,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The table to write, .md.")] = None,
    device: TrainingDevice = None,
    force: Force = False,
) -> None:
    """Show which λ̃ the spectra of plain models propose, beside what training with λ̃ gave.

    What was computed of a model is kept in results/neutreno/prediction; accuracies, or perplexities, are those of the
    cells of ablation and language-ablation.
    """
    from oversmooth.safety import files
    from oversmooth_papers.tables.filling import Running
    from oversmooth_papers.tables.neutreno import prediction as recipe

    if output is not None:
        files.check_writable(output, (".md",))
        files.check_apart([output], trained)
    files.check_folder(results)
    models = recipe.named(trained)
    first = models[0].recipe
    with status(f"reading {data or first.data}"):
        given = recipe.KINDS[type(first)].load(first, data or first.data)
    with parts_done("inputs") as on_progress:
        running = Running(device=device, force=force, on_message=say, on_progress=on_progress)
        predictions = recipe.measure(models, given, results, inputs, running)
    _show(recipe.rows(predictions, results), recipe.notes(predictions, results), output)


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
    results: Annotated[Path, typer.Option(help="Directory that keeps the cells.")] = Path("results"),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The table to write, .md.")] = None,
    device: Device = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """What learned strengths bring to a trained model whose weights stay as they are.

    A cell per method is kept in results/neutreno/adaptation; what is there is not run again.
    """
    from oversmooth import models
    from oversmooth.inputs.sources import check_readable
    from oversmooth.models.loading import check_loadable
    from oversmooth.safety import files
    from oversmooth_papers import tuning
    from oversmooth_papers.tables.filling import Running
    from oversmooth_papers.tables.neutreno import adaptation as recipe
    from oversmooth_papers.tuning import report as report

    settings = tuning.Settings(folds=folds, steps=steps, lr=lr, batch=batch, seed=seed)
    methods = [tuning.tuning_method(text) for text in method or tuning.DEFAULT_METHODS]
    model, data = model or recipe.default_model(), data or recipe.default_data()
    if output is not None:
        files.check_writable(output, (".md",))
        files.check_apart([output], (model, data))
    files.check_folder(results)
    check_loadable(model)
    check_readable(data)
    with status(f"loading {Path(model).name}"):
        loaded = models.load(model, dtype="float32", device=device)
        images = tuning.read_labelled(loaded, data, count=inputs, classes=tuning.class_count(loaded.model))
        tuning.check_classifier(loaded.model, images, loaded.name)
        tuning.folds_of(len(images), folds, seed)
    out.print(report.detectable(len(images)), highlight=False, markup=False)
    with parts_done("images") as on_progress:
        running = Running(device=device, force=force, on_message=say, on_progress=on_progress)
        cells = recipe.measure(loaded, images, methods, settings, results, running)
    out.print(report.table(cells))
    for note in report.notes(len(images), settings.to_dict()):
        out.print(note, style="dim", highlight=False, markup=False)
    if output is not None:
        with files.whole_file(output) as temporary:
            temporary.write_text(recipe.markdown(cells), encoding="utf-8")
        out.print(f"wrote {output}", highlight=False, markup=False)
