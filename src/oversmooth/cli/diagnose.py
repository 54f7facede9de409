"""`oversmooth diagnose`: the main job, from models to a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oversmooth.cli.app import STACK, advance, app, check_outputs, err, options_in, out, print_written, progress_bar
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.inputs.batches import Inputs
    from oversmooth.models import Loaded


MOST = 10_000_000  # limit of inputs and of tokens: more would take days


Variant = StrEnum("Variant", ["raw", "folded", "observed"])
Format = StrEnum("Format", ["pdf", "svg", "png"])
Special = StrEnum("Special", ["both", "count", "leave"])


def _usable(device: str | None) -> str | None:
    if device is not None:
        from oversmooth.models.loading import check_device

        check_device(device)
    return device


_input, _analysis = options_in("Inputs"), options_in("Analysis")
_output, _machine = options_in("Output"), options_in("Model and device")
_MODELS = "Hub ids, timm names, directories, safetensors files or saved diagnoses (.json)."
_DATA = (
    "Text file, image folder, parquet or .npz file; or sample:skimage or sample:sklearn for the photographs of these "
    "libraries."
)
_COUNT = dict(show_default="64 with --data, else 16; 4 for large models on a CPU", min=1, max=MOST)
_LENGTH = dict(show_default="128, or the model's limit", min=1, max=MOST)
_BATCH = dict(show_default="16; fewer for long texts", min=1, max=MOST)
_DTYPE = "float32 on a CPU, else that of the checkpoint"

Data = Annotated[Path | None, _input("PATH", _DATA, show_default="built-in text or pictures")]
Count = Annotated[int | None, _input("N", "Number of inputs, spread evenly over the data.", "--inputs", **_COUNT)]
Length = Annotated[int | None, _input("N", "Tokens per text, for language models.", **_LENGTH)]
Batch = Annotated[int | None, _input("N", "Inputs per forward pass.", **_BATCH)]
Device = Annotated[str | None, _machine("NAME", "Device, such as cuda.", show_default="cpu", callback=_usable)]
Dtype = Annotated[str | None, _machine("NAME", "Floating type, such as bfloat16.", show_default=_DTYPE)]
Seed = Annotated[int, _analysis("N", "Seed of random weights and eigenvalue searches.")]

_LEAVE_OUT = "Positions of tokens to exclude from token metrics, such as [CLS] and registers: 0,1,2 or -1 for the last."
_SPECIAL = (
    "Special tokens, such as [CLS]: leave them out of token metrics, count them, or give HFC/LFC and cos with both."
)
_ROLE = "Measure tokens by role, too: prefix=0-19; may be repeated. By default [CLS], registers and patches."
_RANDOM = "Also diagnose a randomly initialised copy of each model."
_SPECTRA = "Compute spectra, dominance and extrapolation. Without: tokens only."
_VARIANT = "How H includes the norm before attention: raw (not at all), folded (with its gamma) or observed."
_FORMAT = "Format of the charts: pdf, svg or png; may be repeated."
_EXAMPLE = "Store token similarities and attention of the first input for the page."
_STREAM = "Read one block at a time, for models larger than memory."
_MOST_MEMORY = "Memory of the device that --stream may take, such as 12GB."
_MAP = "Distribution over GPUs, memory and disk by accelerate, such as auto."
_TRUST = "Run Python files that come with a checkpoint."


@app.command()
def diagnose(
    context: typer.Context,
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=_MODELS)],
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = None,
    leave_out: Annotated[str | None, _input("LIST", _LEAVE_OUT)] = None,
    special: Annotated[Special, _input("NAME", _SPECIAL)] = Special.both,
    role: Annotated[list[str] | None, _input("NAME=LIST", _ROLE, show_default=False)] = None,
    random_init: Annotated[bool, _input(None, _RANDOM, "--random-init")] = False,
    spectra: Annotated[bool, _analysis(None, _SPECTRA)] = True,
    depth: Annotated[
        int, _analysis("N", "Repeats of the last block to predict; 0 for none.", min=0, max=1_000_000)
    ] = 48,
    variant: Annotated[Variant, _analysis("NAME", _VARIANT)] = Variant.raw,
    joined: Annotated[int, _analysis("N", "Inputs for which all heads are also analysed jointly (slow).", min=0)] = 1,
    ranks: Annotated[int, _analysis("N", "Inputs for which ranks are computed.", min=0)] = 4,
    exact: Annotated[bool, _analysis(None, "Use no approximations for large arrays (slow).", "--exact")] = False,
    stack: Annotated[str | None, _analysis("NAME", STACK)] = None,
    seed: Seed = 0,
    json: Annotated[Path | None, _output("FILE", "Save the diagnosis of one model, .json.")] = None,
    html: Annotated[Path | None, _output("FILE", "Write one page for all models, .html.")] = None,
    figures: Annotated[Path | None, _output("DIR", "Write every chart to this directory.")] = None,
    format: Annotated[list[Format] | None, _output("NAME", _FORMAT, show_default="pdf")] = None,
    example: Annotated[bool, _output(None, _EXAMPLE)] = True,
    device: Device = None,
    dtype: Dtype = None,
    stream: Annotated[bool, _machine(None, _STREAM, "--stream")] = False,
    max_memory: Annotated[str | None, _machine("SIZE", _MOST_MEMORY, show_default="what is free")] = None,
    device_map: Annotated[str | None, _machine("NAME", _MAP, show_default="one device")] = None,
    trust_remote_code: Annotated[bool, _machine(None, _TRUST, "--trust-remote-code")] = False,
) -> None:
    """Measure whether and where models smooth their tokens, which sublayer does it, and what the spectra predict.

    Hub ids and directories need oversmooth[models]; timm names need oversmooth[timm].
    """
    from oversmooth.report import figures as drawn
    from oversmooth.report import page
    from oversmooth.safety.processes import joined as processes_joined

    _check_outputs(models, data, json, html, figures, format, random_init)
    if all(map(is_saved, models)):
        shown = {"models", "json", "html", "figures", "format"}
        refuse_without_effect(context, {*context.params} - shown, f"{models[0]} is a saved diagnosis")
    if not spectra:
        refuse_without_effect(context, {"variant", "joined", "depth"}, "--no-spectra measures tokens only")
    settings: dict[str, Any] = dict(spectra=spectra, joined=joined, exact=exact, ranks=ranks, stack=stack)
    settings |= dict(variant=variant.value, depth=depth, example=example, seed=seed)
    settings |= dict(special_tokens=special.value, roles=dict(map(_role, role)) if role else None)
    if leave_out is not None:
        settings["special"] = _positions(leave_out)
    machine: dict[str, Any] = dict(device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    machine |= dict(stream=stream, max_memory=max_memory, device_map=device_map)
    if not stream:
        refuse_without_effect(context, {"max_memory"}, "it limits what --stream takes")
    with processes_joined() as (rank, world):
        settings["processes"], out.quiet, err.quiet = world > 1, rank > 0, rank > 0
        given = models, data, inputs, length, batch
        diagnoses = diagnose_all(*given, random_init=random_init, settings=settings, **machine)
    if rank:
        return
    show(diagnoses)
    if json is not None:
        diagnoses[0].save(json)
    if html is not None:
        page.save(diagnoses, html)
    written = [p for p in (json, html) if p is not None]
    if figures is not None:
        for one in dict.fromkeys(format or [Format.pdf]):
            written += drawn.save(diagnoses, figures, one.value)
    print_written(*written)


def _check_outputs(
    models: list[str],
    data: Path | None,
    json: Path | None,
    html: Path | None,
    figures: Path | None,
    format: list[Format] | None,
    random_init: bool,
) -> None:
    """Refuse outputs that cannot be written, or hold fewer models, before the work."""
    from oversmooth.report import page
    from oversmooth.safety import files

    wanted = len(models) + sum(not is_saved(name) for name in models if random_init)
    check_outputs((*models, data), json, html)
    if figures is not None:
        files.check_folder(figures)
        files.check_apart((json, html, figures), (*models, data))
    elif format:
        raise InputError(f"--format {format[0].value} has no effect without --figures; add --figures DIR")
    if json is not None and wanted > 1:
        remedy = "leave --random-init out" if len(models) == 1 else "diagnose the models one by one"
        raise InputError(f"--json {json} holds one diagnosis, not {wanted}; {remedy}")
    if html is not None and wanted > page.MOST_MODELS:
        raise InputError(f"--html shows at most {page.MOST_MODELS} models, not {wanted}; make several pages")


def refuse_without_effect(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse options that were given and would change nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name in names and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{name.replace('_', '-')} has no effect: {why}; leave it out")


def _role(text: str) -> tuple[str, list[int]]:
    name, _, places = text.partition("=")
    parts = [part.split("-") for part in places.split(",")]
    if not name or not all(part.isdigit() for ends in parts for part in ends) or max(map(len, parts)) > 2:
        raise InputError(f"--role is {text!r}; give a name and positions, such as prefix=0-19 or cls=0")
    return name, [place for ends in parts for place in range(int(ends[0]), int(ends[-1]) + 1)]


def _positions(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--leave-out is {text!r}; give positions, such as 0,1,2 or -1") from None


def diagnose_all(
    names: list[str],
    data: Path | None,
    count: int | None,
    length: int | None,
    batch: int | None,
    *,
    random_init: bool = False,
    settings: Mapping[str, Any],
    stream: bool = False,
    **machine: Any,
) -> list[Diagnosis]:
    """Diagnose each model in turn, with progress; saved diagnoses are loaded.

    settings: of `oversmooth.diagnose`. machine: device and more, as `oversmooth.models.load` has them.
    """
    from oversmooth.cli.estimate import announcement
    from oversmooth.diagnosis.diagnose import diagnose as run
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.inputs.sources import check_readable
    from oversmooth.models import load
    from oversmooth.models.loading import check_loadable, check_streams

    # Every model is checked before the first one takes its time.
    saved = {name: Diagnosis.load(name) for name in names if is_saved(name)}
    for name in names:
        if name not in saved:
            check_loadable(name)
            if stream:
                check_streams(name, random_init)
    if data is not None:
        check_readable(data)
    diagnoses: list[Diagnosis] = []
    with progress_bar("inputs") as bars:
        for name, random in ((name, random) for name in names for random in (False, True)[: 1 + random_init]):
            if name in saved:
                diagnoses += [] if random else [saved[name]]
                continue
            shown = advance(bars, f"{Path(name).name}{' (random)' if random else ''}")
            loaded = load(name, random=random, seed=settings["seed"], stream=stream, **machine)
            inputs = inputs_of(loaded, data, count, length, batch, alone=len(names) == 1)
            shown(0, inputs.count, "first input")
            if line := announcement(loaded, inputs, settings):
                err.print(line, soft_wrap=True)
            try:
                diagnoses.append(run(loaded, inputs, progress=shown, **settings))
            except KeyboardInterrupt:
                if stream:
                    bars.stop()
                    err.print("finished blocks are saved; run the same command to resume", soft_wrap=True)
                raise
    return diagnoses


def inputs_of(
    loaded: Loaded, data: Path | None, count: int | None, length: int | None, batch: int | None, *, alone: bool
) -> Inputs:
    """Inputs of one model, by default as many as fit it."""
    from oversmooth.cli.estimate import default_batch, default_count

    if length is not None and loaded.kind == "vision":
        if alone:
            raise InputError(f"--length has no effect: {loaded.name} takes images; leave it out")
        err.print(f"--length has no effect on {loaded.name}, which takes images", soft_wrap=True)
        length = None
    count = count or default_count(loaded, data is not None)
    return loaded.inputs(data, count=count, length=length, batch=batch or default_batch(loaded, length))


def is_saved(name: str) -> bool:
    """Whether a name is a saved diagnosis."""
    return name.endswith(".json") and not name.endswith(".index.json")


def show(diagnoses: list[Diagnosis]) -> None:
    """Print tables and verdicts."""
    from oversmooth.report import terminal

    for diagnosis in diagnoses:
        p = diagnosis.provenance
        top1 = f", top-1 {p['top1']:.1%}" if p.get("top1") is not None else ""
        out.print(f"\n{diagnosis.name}", style="bold")
        out.print(f"{p['data']}, {p['inputs']} inputs{top1}")
        out.print(terminal.layers(diagnosis))
        for table in (terminal.special(diagnosis), terminal.roles(diagnosis)):
            if table is not None:
                out.print(table)
        for sentence in diagnosis.verdict:
            out.print(f"• {sentence}")
        for remark in diagnosis.remarks:
            out.print(f"  {remark}", style="dim")
    if len(diagnoses) > 1:
        out.print("\nSide by side", style="bold")
        out.print(terminal.overview(diagnoses))
        if any(d.accuracy for d in diagnoses):
            out.print(terminal.accuracies(diagnoses))
    for rule in sorted({d.provenance["counting_rule"] for d in diagnoses if d.smoothing_share is not None}):
        out.print(f"Counting rule of the smoothing share: {rule}.", style="dim")
