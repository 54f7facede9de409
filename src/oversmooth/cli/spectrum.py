"""`oversmooth spectrum`: weights alone, read one layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import app, err, out, progress_bar
from oversmooth.cli.diagnose import is_saved

if TYPE_CHECKING:
    from oversmooth.anatomy import Anatomy
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.diagnosis.weights import Memory


@app.command()
def spectrum(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="The models: directories, weight files, hub ids or timm names."),
    ],
    joined: Annotated[
        bool,
        typer.Option("--joined/--heads-only", help="Take all heads together as well, which is slower, or heads alone."),
    ] = True,
    heads: Annotated[
        int | None, typer.Option(help="The number of heads, for weights without a configuration.", min=1)
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="A part of the stack's name, for models with several stacks.")
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="Where the norm stands, if the files do not say it: pre, post or none.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Save all eigenvalues of one model as JSON.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a histogram: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Compute the eigenvalues of H = (W_V W_O)ᵀ, layer by layer, from weights alone.

    A stopped run goes on where it was. Files on disk need no extra; hub ids need oversmooth[models].
    """
    from oversmooth.models.sources import check_there
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError

    if json is not None:
        files.check_writable(json, (".json",))
    if output is not None:
        from oversmooth.report import figures

        figures.check(output)
    files.check_apart((json, output), models)
    for name in models:
        check_there(name)
    if json is not None and len(models) > 1:
        raise InputError(f"--json {json} holds one model, and {len(models)} were given; save them one by one")
    diagnoses = [spectra_of(name, joined, heads, stack, norm) for name in models]
    _show(diagnoses)
    if json is not None:
        diagnoses[0].save(json)
        out.print(f"wrote {json}")
    if output is not None:
        figures.save_one(diagnoses, "eigenvalues", output)
        out.print(f"wrote {output}")


def spectra_of(
    name: str, joined: bool = True, heads: int | None = None, stack: str | None = None, norm: str | None = None
) -> Diagnosis:
    """One model, with progress; a saved diagnosis is taken as it is."""
    if is_saved(name):
        from oversmooth.diagnosis.result import Diagnosis

        return Diagnosis.load(name)
    from oversmooth.diagnosis.weights import diagnose_weights

    title, anatomy, memory = _anatomy(name, joined, heads, stack, norm)
    if kept := len(memory.read()) if memory is not None else 0:
        err.print(f"{title}: {kept} layers were done before; going on")
    with progress_bar("layers") as bars:
        task = bars.add_task(title, total=len(anatomy))
        try:
            return diagnose_weights(
                title, anatomy, joined=joined, memory=memory, progress=lambda done, _: bars.update(task, completed=done)
            )
        except KeyboardInterrupt:
            if memory is not None:
                bars.stop()
                err.print("what is done is kept: the same command goes on from there")
            raise


def _anatomy(
    name: str, joined: bool, heads: int | None, stack: str | None, norm: str | None
) -> tuple[str, Anatomy, Memory | None]:
    from oversmooth.anatomy import locate
    from oversmooth.anatomy.checkpoint import Checkpoint
    from oversmooth.anatomy.locate import find, norm_position
    from oversmooth.diagnosis.weights import Memory
    from oversmooth.models.trained_file import trained_file

    position = norm_position(norm)
    path = Path(name)
    if not path.exists():
        from oversmooth.models import load
        from oversmooth.models.from_timm import is_timm_name
        from oversmooth.models.hub import fetch

        if is_timm_name(name):
            loaded = load(name)
            return loaded.name, locate(loaded.model, stack=stack, heads=heads, norm=position), None
        path = fetch(name)
        title = name
    else:
        title = path.resolve().name
    checkpoint = Checkpoint(path)
    ours = trained_file(path) is not None
    if ours or "oversmooth" in checkpoint.config:  # saved steered: its weights are computed from what is in the file
        from oversmooth import models

        loaded = models.load(str(path))
        return loaded.name if ours else title, locate(loaded.model, stack=stack, heads=heads, norm=position), None
    memory = Memory.of(checkpoint.files, joined, heads, stack, norm, sorted(checkpoint.config.items(), key=str))
    return title, find(checkpoint, stack=stack, heads=heads, norm=position), memory


def _show(diagnoses: list[Diagnosis]) -> None:
    from oversmooth.report import terminal

    for diagnosis in diagnoses:
        m = diagnosis.model
        out.print(f"\n{diagnosis.name}", style="bold")
        out.print(
            f"{m['layers']} layers of {m['heads']} heads, width {m['width']}"
            + (f"; {took} s" if (took := diagnosis.provenance.get("seconds")) is not None else "")
        )
        out.print(terminal.spectra(diagnosis))
        out.print("Re λ over all layers", style="bold")
        out.print(terminal.histogram(diagnosis))
        for remark in diagnosis.remarks:
            out.print(f"  {remark}", style="dim")
