"""`oversmooth spans`: which blocks can be left out or run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import advance, app, check_outputs, options_in, out, print_written, progress_bar
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Dtype, Length, inputs_of
from oversmooth.safety.errors import InputError

_measure, _output, _machine = options_in("Measuring"), options_in("Output"), options_in("Model and device")
_COUNT = 16
_DROP = "Leave spans out. Without --drop and --repeat: both."
_PREDICT = "Measure no effect: rank spans by what the unchanged pass predicts."
_LONGEST = dict(show_default="all of up to 12 blocks, else 4", min=1, max=10_000)
_TRUST = "Run Python files that come with a checkpoint."


@app.command()
def spans(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, timm name, directory or safetensors file.")],
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = None,
    drop: Annotated[bool, _measure(None, _DROP, "--drop")] = False,
    repeat: Annotated[bool, _measure(None, "Run spans twice.", "--repeat")] = False,
    predict: Annotated[bool, _measure(None, _PREDICT, "--predict")] = False,
    longest: Annotated[int | None, _measure("N", "Blocks of the longest span.", **_LONGEST)] = None,
    json: Annotated[Path | None, _output("FILE", "Save all spans, with the diagnosis of tokens, .json.")] = None,
    html: Annotated[Path | None, _output("FILE", "Write a page, .html.")] = None,
    output: Annotated[Path | None, _output("FILE", "Write the maps: .png, .svg or .pdf.", "--output", "-o")] = None,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Annotated[bool, _machine(None, _TRUST, "--trust-remote-code")] = False,
) -> None:
    """Measure which blocks of a model can be left out, and which can be run twice.

    Every span of blocks is left out and repeated exactly, and the model's own loss is measured. An interrupted run
    resumes.
    """
    from oversmooth.diagnosis import spans as measuring
    from oversmooth.inputs.sources import check_readable
    from oversmooth.models import load
    from oversmooth.models.loading import check_loadable
    from oversmooth.report import figures, page, terminal
    from oversmooth.safety.files import cache_folder

    if predict and (drop or repeat or output is not None):
        raise InputError("--predict measures nothing, for --drop, --repeat and --output; leave it or them out")
    check_outputs((model, data), json, html, output)
    check_loadable(model)
    if data is not None:
        check_readable(data)
    with progress_bar("passes") as bars:
        shown = advance(bars, Path(model).name)
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
        given = inputs_of(loaded, data, inputs or _COUNT, length, batch, alone=True)
        which = dict(drop=not predict and (drop or not repeat), repeat=not predict and (repeat or not drop))
        how = dict(longest=longest, memory=cache_folder(), progress=shown)
        found = measuring.spans(loaded, given, **which, **how)  # type: ignore[arg-type]
    assert found.spans is not None
    out.print(f"\n{found.name}", style="bold")
    out.print(f"{found.provenance['data']}, {found.spans.inputs} inputs")
    for line in terminal.spans(found.spans):
        out.print(line)
    for remark in found.remarks:
        out.print(f"  {remark}", style="dim")
    if json is not None:
        found.save(json)
    if html is not None:
        page.save([found], html)
    if output is not None:
        figures.save_one([found], "spans", output)
    print_written(json, html, output)
