"""`oversmooth diagnose`: the main job, from models to a report."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import advance, app, out, progress_bar

if TYPE_CHECKING:
    from oversmooth.diagnosis.result import Diagnosis


MOST = 10_000_000
"""Of inputs, and of tokens: what lies beyond is a mistake, and would take days."""


class Variant(StrEnum):
    raw = "raw"
    folded = "folded"
    observed = "observed"


class Format(StrEnum):
    pdf = "pdf"
    svg = "svg"
    png = "png"


def _usable(device: str | None) -> str | None:
    if device is not None:
        from oversmooth.models.loading import check_device

        check_device(device)
    return device


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...", help="The models: hub ids, timm names, directories, safetensors files, or saved diagnoses."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="The data to run on: a text file, a folder of images, a parquet file or an .npz file. sample:skimage and "
        "sample:sklearn take the photographs of these libraries. By default prose or pictures of our own."
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        "--inputs",
        help="How many inputs to take, evenly spread over the data. By default 64, or 16 without --data.",
        min=1,
        max=MOST,
    ),
]
Length = Annotated[
    int | None,
    typer.Option(help="How many tokens each text has. By default 128, or as many as the model takes.", min=1, max=MOST),
]
Batch = Annotated[int, typer.Option(help="How many inputs to run at once.", min=1, max=MOST)]
Device = Annotated[
    str | None, typer.Option(help="The device to run on, such as cuda. By default the CPU.", callback=_usable)
]
Dtype = Annotated[
    str | None,
    typer.Option(help="The floating type, such as bfloat16. By default float32 on a CPU, and as stored elsewhere."),
]
Seed = Annotated[int, typer.Option(help="The seed of random weights and of the eigenvalue searches.")]


@app.command()
def diagnose(
    models: Models,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    json: Annotated[Path | None, typer.Option(help="Save the diagnosis of one model as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with all models, .html.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write every chart as a file into this directory.")] = None,
    format: Annotated[Format | None, typer.Option(help="The format of the figures.", show_default="pdf")] = None,
    twin: Annotated[
        bool, typer.Option("--twin", help="Diagnose each model's twin with random weights as well.")
    ] = False,
    spectra: Annotated[
        bool,
        typer.Option(
            "--spectra/--no-spectra", help="Compute spectra, dominance and extrapolation, or measure tokens alone."
        ),
    ] = True,
    joined: Annotated[int, typer.Option(help="For how many inputs all heads are taken together.", min=0)] = 1,
    exact: Annotated[
        bool, typer.Option("--exact", help="Take no shortcut for large arrays and for all heads together.")
    ] = False,
    ranks: Annotated[int, typer.Option(help="For how many inputs ranks are computed.", min=0)] = 4,
    variant: Annotated[
        Variant,
        typer.Option(help="How the norm before attention enters H: not at all, with its gamma, or as observed."),
    ] = Variant.raw,
    stack: Annotated[
        str | None, typer.Option(help="A part of the stack's name, for models with several stacks.")
    ] = None,
    depth: Annotated[
        int, typer.Option(help="How many further blocks to extrapolate over. 0 leaves it out.", min=0, max=10_000)
    ] = 24,
    look: Annotated[
        bool, typer.Option("--look/--no-look", help="Keep the tokens of the first input, to look at in the page.")
    ] = True,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python files that come with a checkpoint.")
    ] = False,
) -> None:
    """Find out whether and where models smooth their tokens, which part does it, and what the spectra predict.

    Models by hub id or directory need oversmooth[models], and timm names need oversmooth[timm].
    """
    from oversmooth.report import figures as drawn
    from oversmooth.report import page
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError

    if json is not None:
        files.check_writable(json, (".json",))
    if html is not None:
        page.check(html)
    if figures is not None:
        files.check_folder(figures)
    elif format is not None:
        raise InputError(f"--format {format.value} is that of figures, which were not asked for; give --figures DIR")
    files.check_apart((json, html, figures), (*models, data))
    if all(map(is_saved, models)):
        for option, given in (("--data", data), ("--inputs", inputs), ("--length", length), ("--twin", twin or None)):
            if given is not None:
                raise InputError(f"{option} is given, and {models[0]} was measured already; leave it out")
    wanted = len(models) + sum(not is_saved(name) for name in models if twin)
    if json is not None and wanted > 1:
        raise InputError(f"--json {json} holds one diagnosis, and {wanted} were asked for; save them one by one")
    if html is not None and wanted > page.MOST_MODELS:
        raise InputError(
            f"a page shows {page.MOST_MODELS} models at most, and {wanted} were asked for; make several pages"
        )
    settings = dict(
        spectra=spectra,
        joined=joined,
        exact=exact,
        ranks=ranks,
        variant=variant.value,
        stack=stack,
        depth=depth,
        look=look,
        seed=seed,
    )
    diagnoses = diagnose_all(
        models,
        data,
        inputs,
        length,
        batch,
        twin=twin,
        device=device,
        dtype=dtype,
        settings=settings,
        trust_remote_code=trust_remote_code,
    )
    show(diagnoses)
    if json is not None:
        diagnoses[0].save(json)
    if html is not None:
        page.save(diagnoses, html)
    written = [p for p in (json, html) if p is not None]
    if figures is not None:
        written += drawn.save(diagnoses, figures, (format or Format.pdf).value)
    for path in written:
        out.print(f"wrote {path}")


def diagnose_all(
    names: list[str],
    data: Path | None,
    count: int | None,
    length: int | None,
    batch: int,
    *,
    twin: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    settings: Mapping[str, object],
    trust_remote_code: bool = False,
) -> list[Diagnosis]:
    """Each model in turn, with progress; saved diagnoses are taken as they are."""
    from oversmooth.diagnosis.diagnose import diagnose as run
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.inputs.sources import check_readable
    from oversmooth.models import load
    from oversmooth.models.loaded import DATA_COUNT, DEFAULT_COUNT
    from oversmooth.models.loading import check_loadable

    # What can be refused is, of all of them, before the first takes its time.
    saved = {name: Diagnosis.load(name) for name in names if is_saved(name)}
    for name in names:
        if name not in saved:
            check_loadable(name)
    if data is not None:
        check_readable(data)
    diagnoses: list[Diagnosis] = []
    seed = int(str(settings["seed"]))
    wanted = [
        (name, random) for name in names for random in (False, True) if not random or (twin and not is_saved(name))
    ]
    with progress_bar("inputs") as bars:
        for name, random in wanted:
            if name in saved:
                diagnoses.append(saved[name])
                continue
            shown = advance(bars, f"{Path(name).name}{' (random)' if random else ''}")
            loaded = load(
                name, random=random, seed=seed, dtype=dtype, device=device, trust_remote_code=trust_remote_code
            )
            few = DEFAULT_COUNT if data is None else DATA_COUNT
            inputs = loaded.inputs(data, count=count or few, length=length, batch=batch)
            shown(0, inputs.count, "studying one input")
            diagnoses.append(run(loaded, inputs, progress=shown, **settings))  # type: ignore[arg-type]
    return diagnoses


def is_saved(name: str) -> bool:
    """Whether a name is that of a saved diagnosis."""
    return name.endswith(".json") and not name.endswith(".index.json")


def show(diagnoses: list[Diagnosis]) -> None:
    """Tables and verdicts."""
    from oversmooth.report import terminal

    for diagnosis in diagnoses:
        p = diagnosis.provenance
        out.print(f"\n{diagnosis.name}", style="bold")
        out.print(
            f"{p['data']}, {p['inputs']} inputs" + (f", top-1 {p['top1']:.1%}" if p.get("top1") is not None else "")
        )
        out.print(terminal.layers(diagnosis))
        for sentence in diagnosis.verdict:
            out.print(f"• {sentence}")
        for remark in diagnosis.remarks:
            out.print(f"  {remark}", style="dim")
    if len(diagnoses) > 1:
        out.print("\nSide by side", style="bold")
        out.print(terminal.overview(diagnoses))
        if any(d.accuracy for d in diagnoses):
            out.print(terminal.accuracies(diagnoses))
    rules = sorted({d.provenance["counting_rule"] for d in diagnoses if d.smoothing_share is not None})
    for rule in rules:
        out.print(f"A case: {rule}.", style="dim")
