"""`oversmooth spectrum`: weights alone, read one layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oversmooth.cli.app import STACK, app, check_outputs, err, options_in, out, print_written, progress_bar
from oversmooth.cli.diagnose import is_saved

if TYPE_CHECKING:
    from oversmooth.anatomy import Anatomy
    from oversmooth.diagnosis.finished import Finished
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.results.parts import Spectrum


_weights, _output = options_in("Reading the weights"), options_in("Output")
_MODELS = "Directories, weight files, hub ids, timm names or saved diagnoses (.json)."
_JOINED = "Also analyse all heads jointly (slower), or heads alone."
_HEADS = "Number of heads, for weights without a configuration."
_NORM = "Position of the norm if the files do not state it: pre, post or none."


@app.command()
def spectrum(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=_MODELS)],
    joined: Annotated[bool, _weights(None, _JOINED, "--joined/--heads-only")] = True,
    heads: Annotated[int | None, _weights("N", _HEADS, min=1)] = None,
    stack: Annotated[str | None, _weights("NAME", STACK)] = None,
    norm: Annotated[str | None, _weights("NAME", _NORM)] = None,
    json: Annotated[Path | None, _output("FILE", "Save all eigenvalues of one model, .json.")] = None,
    output: Annotated[Path | None, _output("FILE", "Write a histogram: .png, .svg or .pdf.", "--output", "-o")] = None,
) -> None:
    """Compute the eigenvalues of H = (W_V W_O)ᵀ for every layer, from weights alone.

    Weights are read one layer at a time, and interrupted runs resume. Hub ids need oversmooth[models]; files on disk
    need no extra.
    """
    from oversmooth.models.sources import check_there
    from oversmooth.safety.errors import InputError

    check_outputs(models, json, chart=output)
    for name in models:
        check_there(name)
    if json is not None and len(models) > 1:
        raise InputError(f"--json {json} holds one model, not {len(models)}; give the models one by one")
    diagnoses = [spectra_of(name, joined, heads, stack, norm) for name in models]
    _show(diagnoses)
    if json is not None:
        diagnoses[0].save(json)
    if output is not None:
        from oversmooth.report import figures

        figures.save_one(diagnoses, "eigenvalues", output)
    print_written(json, output)


def spectra_of(
    name: str, joined: bool = True, heads: int | None = None, stack: str | None = None, norm: str | None = None
) -> Diagnosis:
    """One model, with progress; a saved diagnosis is taken as it is."""
    if is_saved(name):
        from oversmooth.diagnosis.result import Diagnosis

        return Diagnosis.load(name)
    from oversmooth.diagnosis.weights import diagnose_weights
    from oversmooth.models.remote import RemoteCheckpoint
    from oversmooth.safety.machine import in_words

    title, anatomy, memory = _anatomy(name, joined, heads, stack, norm)
    if kept := len(memory.read()) if memory is not None else 0:
        err.print(f"{title}: resuming after {kept} layers", soft_wrap=True)
    with progress_bar("layers") as bars:
        task = bars.add_task(title, total=len(anatomy))
        try:
            found = diagnose_weights(
                title, anatomy, joined=joined, memory=memory, progress=lambda done, _: bars.update(task, completed=done)
            )
        except KeyboardInterrupt:
            if memory is not None:
                bars.stop()
                err.print("finished layers are saved; run the same command to resume", soft_wrap=True)
            raise
    if isinstance(source := anatomy.layers[0].weights, RemoteCheckpoint):
        err.print(f"{title}: fetched {in_words(source.fetched)} of {in_words(source.size)}", soft_wrap=True)
    return found


def _anatomy(
    name: str, joined: bool, heads: int | None, stack: str | None, norm: str | None
) -> tuple[str, Anatomy, Finished[Spectrum] | None]:
    from oversmooth import models
    from oversmooth.anatomy import locate
    from oversmooth.anatomy.checkpoint import Checkpoint
    from oversmooth.anatomy.gguf_file import weights_of
    from oversmooth.anatomy.locate import find, norm_position
    from oversmooth.diagnosis.finished import Finished, question
    from oversmooth.models.trained_file import trained_file
    from oversmooth.results.parts import Spectrum
    from oversmooth.safety.files import cache_folder

    how: dict[str, Any] = dict(stack=stack, heads=heads, norm=norm_position(norm))
    path = Path(name)
    title = path.resolve().name if path.exists() else name
    if not path.exists():
        from oversmooth.models.from_timm import is_timm_name
        from oversmooth.models.hub import fetch
        from oversmooth.models.remote import in_parts

        if is_timm_name(name):
            loaded = models.load(name)
            return loaded.name, locate(loaded.model, **how), None
        if (remote := in_parts(name)) is not None:
            asked = question((), name, remote.identity, joined, heads, stack, norm)
            return title, find(remote, **how), Finished(cache_folder(), "spectrum", asked, Spectrum)
        path = fetch(name)
    checkpoint = weights_of(path)
    ours = isinstance(checkpoint, Checkpoint) and trained_file(path) is not None
    if ours or "oversmooth" in checkpoint.config:  # steered: the weights in use are computed from those in the file
        loaded = models.load(str(path))
        return loaded.name if ours else title, locate(loaded.model, **how), None
    asked = question(checkpoint.files, joined, heads, stack, norm, sorted(checkpoint.config.items(), key=str))
    return title, find(checkpoint, **how), Finished(cache_folder(), "spectrum", asked, Spectrum)


def _show(diagnoses: list[Diagnosis]) -> None:
    from oversmooth.report import terminal

    for diagnosis in diagnoses:
        m = diagnosis.model
        out.print(f"\n{diagnosis.name}", style="bold")
        seconds = diagnosis.provenance.get("seconds")
        took = "" if seconds is None else f"; {seconds} s"
        out.print(f"{m['layers']} layers of {m['heads']} heads, width {m['width']}{took}")
        out.print(terminal.spectra(diagnosis))
        if any(layer.spectrum and layer.spectrum.verdicts for layer in diagnosis.layers):
            out.print("Heads are counted by what weights alone determine; the others depend on attention.", style="dim")
        out.print("Re λ over all layers", style="bold")
        out.print(terminal.histogram(diagnosis))
        for remark in diagnosis.remarks:
            out.print(f"  {remark}", style="dim")
