"""`oversmooth tune`: a trained classifier helped without retraining."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import app, out, parts_done, status
from oversmooth.cli.diagnose import MOST, Device
from oversmooth_papers.cli.reproduce import write_page

if TYPE_CHECKING:
    from oversmooth.models import Loaded
    from oversmooth_papers import tuning

Labelled = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="LABELLED",
        help="The labelled images: parquet with image and label, .npz with images and labels, or a folder per class.",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        help="The method, as NAME (learned from 0) or NAME:setting=value,... Repeat it for several.",
        show_default="neutreno, featscale, attnscale, valueresidual",
    ),
]
Folds = Annotated[
    int, typer.Option(help="The number of parts. Each is tested by strengths learned on the others.", min=2, max=MOST)
]
Inputs = Annotated[
    int | None,
    typer.Option("--inputs", help="How many images to take, evenly spread. By default all.", min=2, max=MOST),
]
Rate = Annotated[float, typer.Option("--lr", help="The learning rate of AdamW.")]
BatchSize = Annotated[int, typer.Option("--batch", help="How many images each step takes.", min=1, max=MOST)]
Seed = Annotated[int, typer.Option(help="The seed of the folds and of the order of images.")]


@app.command()
def tune(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The image classifier, as oversmooth diagnose takes it.")
    ],
    data: Labelled,
    method: Methods = None,
    inputs: Inputs = None,
    folds: Folds = 5,
    epochs: Annotated[
        int, typer.Option(help="How often a fold goes through the images that it learns from.", min=1, max=MOST)
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(help="The number of AdamW's steps in a fold, in place of epochs.", min=1, max=MOST)
    ] = None,
    lr: Rate = 0.01,
    batch: BatchSize = 32,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the result, .json.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the model tuned on all images in this directory, new or empty. Takes one --method."),
    ] = None,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Learn only the strengths of steering methods on labelled images, and test what that brings.

    All weights stay as they are. Every image is tested once, by strengths that never saw it, beside the model as it
    was. Needs oversmooth[models].
    """
    from oversmooth import models
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError
    from oversmooth.safety.foreign import json_text
    from oversmooth_papers import tuning
    from oversmooth_papers.tables import table_text
    from oversmooth_papers.tuning import report

    # What can be refused is, before the model takes its time.
    settings = tuning.TuningSettings(folds=folds, epochs=epochs, steps=steps, lr=lr, batch=batch, seed=seed)
    methods = [tuning.tuning_method(text) for text in method or tuning.DEFAULT_METHODS]
    if output is not None:
        files.check_writable(output, (".json",))
    if save is not None:
        files.check_new_folder(save)
        if len(methods) != 1:
            raise InputError(
                f"--save {save} holds one tuned model, and {len(methods)} methods were given; give one --method"
            )
    files.check_apart((output, save), (model, data))
    loaded, images = read(model, data, inputs, settings, device)
    with parts_done("images") as on_progress:
        before = tuning.baseline(loaded.model, images, batch, lambda *told: on_progress(loaded.name, *told))
        results = [
            tuning.cross_validate(
                loaded.model, one, images, before, settings, lambda *told, one=one: on_progress(str(one), *told)
            ).to_dict()
            for one in methods
        ]
        if save is not None:
            total, steps = len(images), settings.steps_on(len(images))
            learning = lambda step: on_progress("all images", step * total // steps, total, "learning")  # noqa: E731
            tuning.tune(loaded.model, methods[0], images, settings, on_step=learning)
    out.print(table_text.terminal(*report.terminal_rows(results)))
    for note in report.notes(len(images), settings.to_dict()):
        out.print(note, style="dim")
    if save is not None:
        models.save(loaded, save)
        out.print(f"wrote {save}")
    content = {"model": loaded.name, "data": images.what, "settings": settings.to_dict(), "methods": results}
    write_page(output, json_text(content, indent=1) + "\n")


def read(
    model: str, data: Path, inputs: int | None, settings: tuning.TuningSettings, device: str | None
) -> tuple[Loaded, tuning.Labelled]:
    """The classifier and its labelled images; says what so many images can show."""
    from oversmooth import models
    from oversmooth.inputs.sources import check_readable
    from oversmooth.models.loading import check_loadable
    from oversmooth_papers import tuning
    from oversmooth_papers.tuning import report

    check_loadable(model)
    check_readable(data)
    with status(f"loading {Path(model).name}"):
        loaded = models.load(model, dtype="float32", device=device)
        images = tuning.read_labelled(loaded, data, count=inputs)
        tuning.check_classifier(loaded.model, images, loaded.name)
        tuning.folds_of(len(images), settings.folds, settings.seed)
    for note in images.skipped:
        out.print(note, style="dim")
    out.print(report.detectable(len(images)))
    return loaded, images
