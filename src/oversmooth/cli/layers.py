"""`oversmooth layers`: which depth to embed with, and why cosines are high."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import STACK, advance, app, check_outputs, options_in, out, print_written, progress_bar
from oversmooth.cli.diagnose import Batch, Device, Dtype, Length, Seed
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from oversmooth.inputs.batches import Inputs
    from oversmooth.models import Loaded


Pool = StrEnum("Pool", ["mean", "last", "first"])
_input, _analysis, _output = options_in("Inputs"), options_in("Analysis"), options_in("Output")
_MODEL = "Hub id, timm name, directory or weights file."
_DATA = (
    "As of diagnose (images in parquet may have labels); or a .tsv file with a header: sentence and label, or "
    "sentence1, sentence2 and score."
)
_POOL = "One vector per input: the mean of its tokens, the last token of a decoder, or the first, such as [CLS]."
COUNT, LENGTH = 512, 128


@app.command()
def layers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)],
    data: Annotated[Path | None, _input("PATH", _DATA, show_default="built-in text or pictures")] = None,
    inputs: Annotated[
        int, _input("N", "Number of inputs or pairs, spread over the data.", "--inputs", min=1, max=10_000_000)
    ] = COUNT,
    length: Length = None,
    batch: Batch = None,
    pool: Annotated[Pool, _analysis("NAME", _POOL)] = Pool.mean,
    stack: Annotated[str | None, _analysis("NAME", STACK)] = None,
    seed: Seed = 0,
    json: Annotated[Path | None, _output("FILE", "Save all numbers, .json.")] = None,
    output: Annotated[Path | None, _output("FILE", "Write a chart: .png, .svg or .pdf.", "--output", "-o")] = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Compare the vectors of different inputs at every depth, and rank depths to embed with.

    Anisotropy, RankMe, token entropy, curvature and CKA, with errors; beside them a linear probe or the correlation
    with similarities, if the data have labels.
    """
    from oversmooth.diagnosis.ranking import layers as run
    from oversmooth.models import load
    from oversmooth.report import ranking

    check_outputs((model, data), json, chart=output)
    with progress_bar("inputs") as bars:
        shown = advance(bars, Path(model).name)
        loaded = load(model, device=device, dtype=dtype)
        chosen, labels = _inputs_of(loaded, data, inputs, length, batch)
        shown(0, chosen.count, "first input")
        found = run(loaded, chosen, labels, pool=pool.value, stack=stack, seed=seed, progress=shown)  # type: ignore[arg-type]
    out.print(f"\n{found.model}", style="bold")
    out.print(f"{found.data}; width {found.width:,}, {found.pool} pooling")
    out.print(ranking.table(found))
    for sentence in found.verdict:
        out.print(f"• {sentence}")
    for remark in found.remarks:
        out.print(f"  {remark}", style="dim")
    if json is not None:
        found.save(json)
    if output is not None:
        ranking.chart(found).save(output)
    print_written(json, output)


def _inputs_of(
    loaded: Loaded, data: Path | None, count: int, length: int | None, batch: int | None
) -> tuple[Inputs, Tensor | None]:
    if data is None or data.suffix.lower() != ".tsv":
        return loaded.inputs(data, count=count, length=length, batch=batch or 16), None
    from oversmooth.inputs.labelled import labelled_inputs

    if loaded.tokenizer is None:
        raise InputError(f"{data} has sentences, and {loaded.name} has no tokenizer; give data that it takes")
    most = length or min(LENGTH, loaded.longest or LENGTH)
    return labelled_inputs(loaded.tokenizer, data, count=count, length=most, batch=batch or 16)
